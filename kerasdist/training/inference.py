"""`evaluate` and `predict`."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import keras

from kerasdist.data.feed import Feed, preparation
from kerasdist.data.streams import open_stream
from kerasdist.devices.placement import place
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.model_files.loading import model_of
from kerasdist.models import inspection, refusals
from kerasdist.models.contract import ensure_compiled
from kerasdist.models.verdicts import state_rules
from kerasdist.training import arguments, checked_data
from kerasdist.training.callbacks import Hooks
from kerasdist.training.checked_data import DEFAULT_TEST_BATCH_SIZE
from kerasdist.training.validation import outputs, test


def evaluate(
    model_or_run: keras.Model | str | os.PathLike,
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    devices: Any = "auto",
    allow_nan: bool = False,
    callbacks: Any = None,
) -> dict[str, Any]:
    """Computes loss and metrics over all of `data`, exactly, on any number of devices.

    Args:
        model_or_run: A compiled `keras.Model`, a `kerasdist.Model`, or the folder of a finished
            run (for its other models see `kerasdist.load`).
        data: Data in any form that `fit` takes.
        batch_size: Examples a batch, over all devices, for data that is not in batches.
        steps: How many batches; all by default.
        devices: As in `fit`.
        allow_nan: As in `fit`.
        callbacks: A Keras callback, or a list of them, for their `on_test_*` hooks.

    Returns:
        A dict of floats by name.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(loss="mse", optimizer="sgd")
        >>> kerasdist.evaluate(model, (np.ones((3, 2)), np.ones((3, 1))))
        {'loss': 1.0}
    """
    arguments.check_counts(epochs=1, steps=steps)
    steps = arguments.capped_steps("steps", steps)
    callbacks = arguments.as_callbacks(callbacks)
    refusals.refuse_scope()
    placement = place(devices)
    with contextlib.ExitStack() as stack:
        stack.enter_context(placement.together())
        model = model_of(model_or_run)
        ensure_compiled(model)
        refusals.refuse_unsupported(model, to_train=False)
        refusals.refuse_bypassed(model, "evaluate")
        feed, findings, rules = checked_data.feed_to_test(
            stack,
            model,
            data,
            "data",
            placement,
            placement.num_replicas,
            batch_size=batch_size,
            allow_nan=allow_nan,
        )
        if steps is None:
            arguments.check_ends(feed.stream, "data", "steps")
        settings = Settings(
            shards=placement.num_replicas,
            gather_metrics=findings.gather_metrics,
            num_test_denominators=findings.num_denominators,
            test_state_rules=rules,
        )
        engine = Engine(model, placement, settings)
        hooks = Hooks(engine, callbacks, has_history=False, **_params(feed, steps))
        logs = test(engine, feed, steps, hooks, use_ema=False)
        engine.state.write_back("trainable", "other")  # What `call` changes, as in Keras.
        return logs


def predict(
    model_or_run: keras.Model | str | os.PathLike,
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    devices: Any = "auto",
    callbacks: Any = None,
) -> Any:
    """Computes the model's outputs for all of `data`, in its order.

    Args:
        model_or_run: A `keras.Model`, which need not be compiled, or the folder of a finished run.
        data: Data in any form that `fit` takes; targets may be missing.
        batch_size: Examples a batch, over all devices, for data that is not in batches.
        steps: How many batches; all by default.
        devices: As in `fit`.
        callbacks: A Keras callback, or a list of them, for their `on_predict_*` hooks.

    Returns:
        Arrays in the structure of the model's outputs.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Rescaling(2.0)])
        >>> kerasdist.predict(model, np.array([[1.0], [3.0]])).tolist()
        [[2.0], [6.0]]
    """
    arguments.check_counts(epochs=1, steps=steps)
    steps = arguments.capped_steps("steps", steps)
    callbacks = arguments.as_callbacks(callbacks)
    refusals.refuse_scope()
    placement = place(devices)
    with contextlib.ExitStack() as stack:
        stack.enter_context(placement.together())
        model = model_of(model_or_run)
        refusals.refuse_bypassed(model, "predict", "predict_step")
        stream = open_stream(
            data, batch_size=batch_size, default_batch_size=DEFAULT_TEST_BATCH_SIZE
        )
        stack.callback(stream.close)
        if steps is None:
            arguments.check_ends(stream, "data", "steps")
        shards = placement.num_replicas
        refusals.refuse_stateful(model, shards)
        findings = inspection.build_for_prediction(model, stream.element_spec)
        rules = state_rules(model, stream.first_batch, findings, shards, training=False)
        share = placement.share(shards)
        prepare = preparation(
            model, stream, labels=(), name="data", need_targets=False, share=share
        )
        feed = Feed(stream, prepare=prepare)
        stack.callback(feed.close)
        settings = Settings(shards=shards, test_state_rules=rules)
        engine = Engine(model, placement, settings)
        hooks = Hooks(engine, callbacks, has_history=False, **_params(feed, steps))
        found = outputs(engine, feed, steps, hooks)
        engine.state.write_back("trainable", "other")
        return found


def _params(feed: Feed, steps: int | None) -> dict[str, Any]:
    """What Keras tells the callbacks of `evaluate` and `predict`."""
    return {"verbose": 0, "epochs": 1, "steps": steps or feed.stream.num_batches}
