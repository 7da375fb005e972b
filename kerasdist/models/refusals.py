"""Refuses models that cannot be exact or would silently do something else, and says why."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models import pure


def refuse_scope() -> None:
    """Refuses a call inside the scope of another strategy."""
    if tf.distribute.has_strategy():
        raise KerasdistError(
            "kerasdist was called inside the scope of a `tf.distribute` strategy. Expected a call "
            "outside of it: kerasdist places the work itself. You may build and compile the model "
            "in `with strategy.scope():`, but move this call out of it."
        )


def refuse_unsupported(model: keras.Model, *, to_train: bool = True) -> None:
    """Refuses optimizers and layers that cannot be exact."""
    stateful_reason(model)
    if to_train:
        for optimizer in pure.optimizers_of(model):
            _refuse_optimizer(optimizer)


def _refuse_optimizer(given: keras.optimizers.Optimizer) -> None:
    inner, _, _ = pure.loss_scale(given)
    for optimizer in (inner, *getattr(inner, "optimizers", ())):
        kind = type(optimizer).__name__
        if kind in pure.REFUSED_OPTIMIZERS:
            reason, instead = pure.REFUSED_OPTIMIZERS[kind]
            raise KerasdistError(
                f"kerasdist does not support the optimizer {kind!r}: {reason}. Use {instead!r}."
            )
        if optimizer.gradient_accumulation_steps:
            steps = optimizer.gradient_accumulation_steps
            raise KerasdistError(
                f"Received the optimizer {kind!r} with `gradient_accumulation_steps={steps}`. "
                "Expected an optimizer without it: it cannot run on several devices (Keras 3.15). "
                f"Leave it out. For the same effect, give `fit` {steps} times the `batch_size`, "
                f"and {steps} times as many `shards` as devices."
            )
        if optimizer.ema_overwrite_frequency and optimizer.use_ema:
            raise KerasdistError(
                f"Received the optimizer {kind!r} with "
                f"`ema_overwrite_frequency={optimizer.ema_overwrite_frequency}`. Expected an "
                "optimizer without it: training would continue from the average. Leave it out and "
                "use `fit(ema=...)`, which keeps the average separate from the weights."
            )


_called: ContextVar[tuple[str, ...]] = ContextVar("_called", default=())


@contextlib.contextmanager
def called_by_model(*methods: str) -> Iterator[None]:
    """In this block, kerasdist stands in for methods of Keras (see `kerasdist.enable`).

    A model's own `fit` has run then, and ended in `super().fit`.
    """
    token = _called.set(methods)
    try:
        yield
    finally:
        _called.reset(token)


def refuse_bypassed(model: keras.Model, *methods: str) -> None:
    """Refuses overridden methods that Keras would call, but kerasdist does not."""
    name = type(model).__name__
    for method in methods:
        if method in _called.get() or not pure.overrides(model, method):
            continue
        if not pure.preprocesses(model, method):
            raise KerasdistError(
                f"The model {name!r} overrides `{method}`, which kerasdist does not call: it uses "
                "its own loop. Expected Keras's method. Move the code into the data, a callback, "
                "`call` or `compute_loss`, or train with Keras's `fit`."
            )
        if getattr(model, "preprocessor", None) is not None:
            raise KerasdistError(
                f"The model {name!r} has a preprocessor that its `{method}` applies to the data, "
                "but kerasdist does not call that method. Expected preprocessed data. Preprocess "
                "it once, before the call: `data = model.preprocess_samples(x, y)` and then "
                "`model.preprocessor = None`."
            )


def stateful_reason(model: keras.Model) -> str:
    """Why a model with `stateful=True` must run on whole batches; "" if it has no such layer."""
    for layer in pure.all_layers(model):
        if not isinstance(layer, keras.layers.RNN) or not layer.stateful:
            continue
        if layer.states is None:
            raise KerasdistError(
                f"The layer {layer.name!r} has `stateful=True`, so the model must know the batch "
                "size. Start it with `keras.Input(batch_shape=(batch_size, ...))`."
            )
        return f"the layer {layer.name!r} keeps a state for each row of a batch (`stateful=True`)"
    return ""


def whole_batch_reason(error: KerasdistError) -> str:
    """The first sentence of an InexactLossError or InexactStateError, as a reason."""
    text = str(error).split(": ")[0].removesuffix(".")
    return text[0].lower() + text[1:]


def whole_batch_note(
    model: keras.Model, reason: str, titles: Sequence[str], *, tests: bool = False
) -> str:
    """What is said if a model cannot be computed on parts of a batch."""
    does = "is evaluated" if tests else "trains"
    return (
        f"Note: {type(model).__name__!r} {does} on one device ({titles[0]}), with whole batches: "
        f"{reason}. The result is that of one device. See docs/model-contract.md."
    )


def refuse_whole_batch(model: keras.Model, reason: str) -> None:
    """Several workers read parts of the data each."""
    raise KerasdistError(
        f"{type(model).__name__!r} cannot be computed on parts of a batch: {reason}. Several "
        "workers read a part of each batch each. Train it without `launch`, in one process."
    )


def refuse_unfrozen(model: keras.Model) -> None:
    """The optimizer has no state for weights that were frozen when it was built."""
    unknown = pure.unknown_to_optimizer(model)
    if unknown:
        raise KerasdistError(
            f"{len(unknown)} weights of {type(model).__name__!r} train now, such as "
            f"{unknown[0].path!r}, and did not when its optimizer was built. Expected an optimizer "
            "that knows all of them. Call `model.compile` again after you change `trainable`."
        )


def warn_if_frozen(model: keras.Model) -> None:
    """Warns as Keras does. Metrics and other state are still computed."""
    if not model.trainable_variables:
        warnings.warn("The model does not have any trainable weights.", stacklevel=3)


def refuse_random(model: keras.Model, operations: Sequence[str]) -> None:
    """Refuses `tf.random`: its numbers depend on when and where they are drawn."""
    if operations:
        raise KerasdistError(
            f"The model {type(model).__name__!r} draws random numbers with `tf.random` (operation "
            f"{operations[0]!r}). They depend on the number of devices. `deterministic=True` "
            "expects `keras.random`, which kerasdist seeds for each step and shard. Use for "
            "example `keras.random.normal(shape, seed=keras.random.SeedGenerator(0))`, or leave "
            "out `deterministic`."
        )


def batch_norm_note(model: keras.Model, batch_size: int | None, shards: int) -> str | None:
    """The note that BatchNormalization differs on several shards, or None if it does not."""
    kind = keras.layers.BatchNormalization
    layers = [v for v in pure.all_layers(model) if isinstance(v, kind) and v.trainable]
    names = [layer.name for layer in layers if not layer.synchronized]
    if shards == 1 or not names:
        return None
    rows = "a part of each batch"
    if batch_size is not None:
        # Fewer than 16 make noisy statistics. The loss is then far from that of one device.
        size = batch_size // shards
        rows = f"{'only ' if size < 16 else ''}{size} of a batch's {batch_size} examples"
        if size == 0:
            rows = f"a batch's {batch_size} examples leave some of them empty"
    first = f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return (
        f"Note: BatchNormalization ({first}) takes its statistics over each of {shards} shards "
        f"({rows}). Keras on one device takes them over the whole batch. Results agree for equal "
        "`shards`. For Keras's result, pass `sync_batch_norm=True` (`--sync-batch-norm`)."
    )
