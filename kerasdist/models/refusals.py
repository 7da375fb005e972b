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
    """Refuses overridden steps, and optimizers and layers that cannot be exact."""
    name = type(model).__name__
    for method in ("train_step", "test_step"):
        if pure.overrides(model, method):
            raise KerasdistError(
                f"The model {name!r} overrides `{method}`. Expected Keras's own method: kerasdist "
                "computes gradients and updates itself. Override "
                "`compute_loss(x, y, y_pred, sample_weight, training)` instead."
            )
    if to_train:
        _refuse_optimizer(model)
    for layer in pure.all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise KerasdistError(
                f"The layer {layer.name!r} has `synchronized=True`. Expected "
                "`synchronized=False`: statistics are taken over each shard. Set it to False. For "
                "statistics over more examples, use fewer shards."
            )


def _refuse_optimizer(model: keras.Model) -> None:
    inner, _, _ = pure.loss_scale(model.optimizer)
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


def refuse_stateful(model: keras.Model, shards: int) -> None:
    """Refuses `stateful=True` on several shards: a state belongs to a row of the whole batch."""
    for layer in pure.all_layers(model):
        if not isinstance(layer, keras.layers.RNN) or not layer.stateful:
            continue
        if shards == 1 and layer.states is None:
            raise KerasdistError(
                f"The layer {layer.name!r} has `stateful=True`, so the model must know the batch "
                "size. Start it with `keras.Input(batch_shape=(batch_size, ...))`."
            )
        if shards > 1:
            raise KerasdistError(
                f"The layer {layer.name!r} has `stateful=True`, and there are {shards} shards. "
                "Expected one shard: the layer keeps a state for each row of a batch, and a shard "
                "has only some of the rows. Use `devices=1, shards=1`."
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
    first = f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return (
        f"Note: BatchNormalization ({first}) takes its statistics over each of {shards} shards "
        f"({rows}). Keras on one device takes them over the whole batch. Results agree for equal "
        "`shards`. To come closer to one device, use fewer shards or a larger batch."
    )
