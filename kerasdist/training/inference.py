"""`evaluate` and `predict`, from their arguments to their results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import keras

from kerasdist.data.feed import Feed
from kerasdist.devices.placement import Placement, place
from kerasdist.devices.shard_counts import resolve_shards
from kerasdist.engine import sums
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.errors import KerasdistError
from kerasdist.model_files.loading import model_of
from kerasdist.models import refusals
from kerasdist.models.contract import ensure_compiled
from kerasdist.models.value_checks import AllowNan
from kerasdist.phases.phase import is_shown, phase
from kerasdist.training import arguments
from kerasdist.training.checked_data import CheckedData, DataChecker, check_ends
from kerasdist.training.engines import engine_for
from kerasdist.training.epochs.callbacks import Hooks
from kerasdist.training.epochs.validation import outputs, test
from kerasdist.training.keras_arguments import packing
from kerasdist.training.keras_arguments.hints import check_model, with_hints
from kerasdist.training.keras_arguments.verbosity import checked_verbose
from kerasdist.training.options import CallbackLike, DataLike, DeviceLike, PathLike
from kerasdist.training.progress.bar import number
from kerasdist.training.progress.reporter import Reporter


@with_hints
def evaluate(
    model_or_run: keras.Model | PathLike,
    x: DataLike | None = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: CallbackLike | None = None,
    return_dict: bool = True,
    *,
    data: DataLike | None = None,
    devices: DeviceLike = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    allow_nan: bool = False,
) -> dict[str, Any]:
    """Computes the exact loss and metrics over all of `data`, on any number of devices.

    Args:
        model_or_run: A compiled `keras.Model`, a `kerasdist.Model`, or the folder of a finished
            run (for its other models see `kerasdist.load`).
        x: Data in any form that `fit` takes. Without `y`, a tuple is `(x, y[, sample_weight])`.
        y: The targets, if `x` is arrays.
        batch_size: Examples per batch, over all devices, for data that is not batched yet. Default:
            32, or for arrays with `steps` as many as make that many batches.
        verbose: 1 and 2 print a line with the results, and on a terminal 1 shows a bar before. 0
            and "auto" are silent.
        sample_weight: The weight of each example, if `x` is arrays.
        steps: How many batches. Default: all.
        callbacks: A Keras callback, or a list of them. Their `on_test_*` hooks are called.
        return_dict: Only True: the result is always a dict.
        data: The same as `x`.
        devices: As in `fit`.
        shards: As in `fit`.
        deterministic: As in `fit`.
        allow_nan: As in `fit`.

    Returns:
        A dict of floats by name.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(loss="mse", optimizer="sgd")
        >>> kerasdist.evaluate(model, np.ones((3, 2)), np.ones((3, 1)))
        {'loss': 1.0}
    """
    check_model(model_or_run, "evaluate")
    if not return_dict:
        raise KerasdistError(
            "Received `return_dict=False`. Expected True: `kerasdist.evaluate` returns a dict of "
            "names and values. Read a value by its name: `kerasdist.evaluate(...)['loss']`."
        )
    data = packing.packed(x, y, sample_weight, data=data)
    options = TestOptions.checked(
        batch_size=batch_size,
        steps=steps,
        allow_nan=allow_nan,
        callbacks=callbacks,
        verbose=verbose,
        shards=shards,
        deterministic=deterministic,
    )
    refusals.refuse_scope()
    return _evaluate(model_or_run, data, options, place(devices))


@with_hints
def predict(
    model_or_run: keras.Model | PathLike,
    x: DataLike | None = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: CallbackLike | None = None,
    *,
    data: DataLike | None = None,
    devices: DeviceLike = "auto",
    shards: int | None = None,
    deterministic: bool = False,
) -> Any:
    """Computes the model's outputs for all of `data`, in the same order.

    Args:
        model_or_run: A `keras.Model`, compiled or not, or the folder of a finished run.
        x: Data in any form that `fit` takes, with or without targets. A tuple is
            `(x, y[, sample_weight])`, a list is several inputs.
        batch_size: As in `evaluate`.
        verbose: As in `evaluate`, without results.
        steps: How many batches. Default: all.
        callbacks: A Keras callback, or a list of them. Their `on_predict_*` hooks are called.
        data: The same as `x`.
        devices: As in `fit`.
        shards: As in `fit`, with `deterministic`.
        deterministic: With the same `shards`, get the same bits on any number of devices.

    Returns:
        Arrays in the structure of the model's outputs.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Rescaling(2.0)])
        >>> kerasdist.predict(model, np.array([[1.0], [3.0]])).tolist()
        [[2.0], [6.0]]
    """
    check_model(model_or_run, "predict")
    data = packing.packed(x, None, None, data=data)
    options = TestOptions.checked(
        batch_size=batch_size,
        steps=steps,
        callbacks=callbacks,
        verbose=verbose,
        shards=shards,
        deterministic=deterministic,
    )
    refusals.refuse_scope()
    return _predict(model_or_run, data, options, place(devices))


@dataclass(frozen=True)
class TestOptions:
    """The checked options of `evaluate` and `predict`."""

    batch_size: int | None = None
    steps: int | None = None
    allow_nan: AllowNan = False
    callbacks: Sequence[keras.callbacks.Callback] = ()
    verbose: int | str = 0
    shards: int | None = None
    deterministic: bool = False

    @classmethod
    def checked(
        cls,
        *,
        batch_size: int | None,
        steps: int | None,
        callbacks: CallbackLike | None,
        allow_nan: AllowNan = False,
        verbose: int | str = 0,
        shards: int | None = None,
        deterministic: bool = False,
    ) -> TestOptions:
        arguments.check_counts(steps=steps)
        arguments.check_allow_nan(allow_nan)
        steps = arguments.capped_steps("steps", steps)
        level = checked_verbose(verbose)
        found = arguments.as_callbacks(callbacks)
        return cls(batch_size, steps, allow_nan, found, level, shards, deterministic)

    @contextlib.contextmanager
    def computing(self, placement: Placement) -> Iterator[contextlib.ExitStack]:
        """What surrounds a pass. With `verbose=1`, a terminal shows how far it is."""
        reporter = Reporter("live" if self.verbose == 1 and placement.is_chief else "silent")
        with (
            reporter.showing_phases(),
            placement.together(),
            placement.guarded(),
            contextlib.ExitStack() as stack,
        ):
            yield stack

    def tell(self, feed: Feed, began: float, logs: Mapping[str, Any], placement: Placement) -> None:
        """Prints one line, in the words of Keras's `verbose=2`. "auto" is silent here."""
        if not isinstance(self.verbose, int) or not self.verbose or not placement.is_chief:
            return
        seconds, done = time.perf_counter() - began, feed.position
        each = f"{1000 * seconds / max(done, 1):.0f}ms/step"
        total = self.steps or feed.stream.num_batches or done
        values = "".join(f" - {name}: {number(value)}" for name, value in logs.items())
        print(f"{done}/{total} - {seconds:.0f}s - {each}{values}", flush=True)


def _evaluate(
    model_or_run: keras.Model | PathLike,
    data: DataLike,
    options: TestOptions,
    placement: Placement,
) -> dict[str, Any]:
    """Loss and metrics over `data`."""
    began = time.perf_counter()
    with options.computing(placement) as stack:
        model = model_of(model_or_run)
        ensure_compiled(model)
        refusals.refuse_unsupported(model, to_train=False)
        refusals.refuse_bypassed(model, "evaluate")
        deterministic = options.deterministic
        shards = resolve_shards(options.shards, placement.num_replicas, deterministic)
        stack.enter_context(sums.fixed_graphs(deterministic, placement.is_gpu))
        checker = DataChecker(stack, model, placement, shards)
        with phase("checking the model and the data"):
            checked = checker.to_test(
                data,
                name="data",
                batch_size=options.batch_size,
                steps=options.steps,
                allow_nan=options.allow_nan,
            )
        if options.steps is None:
            check_ends(checked.stream, "data", "steps")
        engine = stack.enter_context(
            _engine(model, placement, checked, shards, deterministic=deterministic)
        )
        hooks = _hooks(engine, checked, options)
        with phase("evaluating", unit="batch") as evaluating:
            show = evaluating.reached if is_shown() else None
            logs = test(
                engine, checked.feed, options.steps, hooks, use_ema=False, call=None, show=show
            )
        engine.state.write_back("trainable", "other")  # What `call` changes, as in Keras.
        options.tell(checked.feed, began, logs, placement)
        return logs


def _predict(
    model_or_run: keras.Model | PathLike,
    data: DataLike,
    options: TestOptions,
    placement: Placement,
) -> Any:
    """The model's outputs for `data`, in its order."""
    began = time.perf_counter()
    with options.computing(placement) as stack:
        model = model_of(model_or_run, to_predict=True)
        refusals.refuse_bypassed(model, "predict")
        deterministic, shards = options.deterministic, placement.num_replicas
        if deterministic:
            shards = resolve_shards(options.shards, shards, deterministic)
        stack.enter_context(sums.fixed_graphs(deterministic, placement.is_gpu))
        checker = DataChecker(stack, model, placement, shards)
        with phase("checking the model and the data"):
            checked = checker.to_predict(data, batch_size=options.batch_size, steps=options.steps)
        if options.steps is None:
            check_ends(checked.stream, "data", "steps")
        engine = stack.enter_context(
            _engine(model, placement, checked, shards, deterministic=deterministic)
        )
        total = options.steps or checked.stream.num_batches
        with phase("predicting", total, unit="batch") as predicting:
            hooks = _hooks(engine, checked, options)
            found = outputs(engine, checked.feed, options.steps, hooks, predicting.reached)
        engine.state.write_back("trainable", "other")
        options.tell(checked.feed, began, {}, placement)
        return found


def _engine(
    model: keras.Model,
    placement: Placement,
    checked: CheckedData,
    shards: int,
    *,
    deterministic: bool = False,
) -> AbstractContextManager[Engine]:
    own, reason = checked.findings.own_step, checked.whole_reason
    if checked.findings.synchronizes:
        reason = "a layer takes statistics over whole batches, also to evaluate"
    if reason and shards > 1:
        if placement.workers is not None:
            refusals.refuse_whole_batch(model, reason)
        placement, shards = placement.alone(), 1
    settings = Settings(
        shards=shards,
        deterministic=deterministic,
        gather_metrics=checked.findings.gather_metrics,
        num_test_denominators=checked.num_denominators,
        test_state_rules=checked.verdict.rules,
        whole_test_loss=checked.verdict.whole,
        own_steps={} if own is None else {own.method: own},
        drawn=checked.findings.drawn,
    )
    return engine_for(model, placement, settings)


def _hooks(engine: Engine, checked: CheckedData, options: TestOptions) -> Hooks:
    """Callbacks that are told what Keras tells them in `evaluate` and `predict`."""
    steps = options.steps or checked.stream.num_batches
    return Hooks(
        engine, options.callbacks, has_history=False, verbose=options.verbose, epochs=1, steps=steps
    )
