"""One evaluation or prediction, from its options to its results."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasdist.devices.placement import Placement
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.model_files.loading import model_of
from kerasdist.models import refusals
from kerasdist.models.contract import ensure_compiled
from kerasdist.models.value_checks import AllowNan
from kerasdist.training import arguments
from kerasdist.training.checked_data import CheckedData, DataChecker, check_ends
from kerasdist.training.epochs.callbacks import Hooks
from kerasdist.training.epochs.validation import outputs, test
from kerasdist.training.options import CallbackLike, DataLike, PathLike


@dataclass(frozen=True)
class TestOptions:
    """The checked options of `evaluate` and `predict`."""

    batch_size: int | None = None
    steps: int | None = None
    allow_nan: AllowNan = False
    callbacks: Sequence[keras.callbacks.Callback] = ()

    @classmethod
    def checked(
        cls,
        *,
        batch_size: int | None,
        steps: int | None,
        callbacks: CallbackLike | None,
        allow_nan: AllowNan = False,
    ) -> TestOptions:
        arguments.check_counts(steps=steps)
        arguments.check_allow_nan(allow_nan)
        steps = arguments.capped_steps("steps", steps)
        return cls(batch_size, steps, allow_nan, arguments.as_callbacks(callbacks))


def evaluate_model(
    model_or_run: keras.Model | PathLike,
    data: DataLike,
    options: TestOptions,
    placement: Placement,
) -> dict[str, Any]:
    """Loss and metrics over `data`."""
    with placement.together(), placement.guarded(), contextlib.ExitStack() as stack:
        model = model_of(model_or_run)
        ensure_compiled(model)
        refusals.refuse_unsupported(model, to_train=False)
        refusals.refuse_bypassed(model, "evaluate")
        checker = DataChecker(stack, model, placement, placement.num_replicas)
        checked = checker.to_test(
            data, name="data", batch_size=options.batch_size, allow_nan=options.allow_nan
        )
        if options.steps is None:
            check_ends(checked.stream, "data", "steps")
        engine = _engine(model, placement, checked)
        stack.callback(engine.close)
        hooks = _hooks(engine, checked, options)
        logs = test(engine, checked.feed, options.steps, hooks, use_ema=False)
        engine.state.write_back("trainable", "other")  # What `call` changes, as in Keras.
        return logs


def predict_with(
    model_or_run: keras.Model | PathLike,
    data: DataLike,
    options: TestOptions,
    placement: Placement,
) -> Any:
    """The model's outputs for `data`, in its order."""
    with placement.together(), placement.guarded(), contextlib.ExitStack() as stack:
        model = model_of(model_or_run)
        refusals.refuse_bypassed(model, "predict", "predict_step")
        checker = DataChecker(stack, model, placement, placement.num_replicas)
        checked = checker.to_predict(data, batch_size=options.batch_size)
        if options.steps is None:
            check_ends(checked.stream, "data", "steps")
        engine = _engine(model, placement, checked)
        stack.callback(engine.close)
        found = outputs(engine, checked.feed, options.steps, _hooks(engine, checked, options))
        engine.state.write_back("trainable", "other")
        return found


def _engine(model: keras.Model, placement: Placement, checked: CheckedData) -> Engine:
    settings = Settings(
        shards=placement.num_replicas,
        gather_metrics=checked.findings.gather_metrics,
        num_test_denominators=checked.findings.num_denominators,
        test_state_rules=checked.rules,
    )
    return Engine(model, placement, settings)


def _hooks(engine: Engine, checked: CheckedData, options: TestOptions) -> Hooks:
    """Callbacks that are told what Keras tells them in `evaluate` and `predict`."""
    steps = options.steps or checked.stream.num_batches
    return Hooks(engine, options.callbacks, has_history=False, verbose=0, epochs=1, steps=steps)
