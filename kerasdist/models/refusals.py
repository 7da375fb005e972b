"""What cannot be exact, or would silently do something else: refused by name, or said."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models import pure


def refuse_scope() -> None:
    """A call inside the scope of another strategy."""
    if tf.distribute.has_strategy():
        raise KerasdistError(
            "kerasdist was called inside the scope of a `tf.distribute` strategy. Expected a call "
            "outside of it: kerasdist places the work itself. Build and compile the model in "
            "`with strategy.scope():` if you like, and move this call out."
        )


def refuse_unsupported(model: keras.Model, *, to_train: bool = True) -> None:
    """What cannot be exact, or would silently do something else, by name."""
    name = type(model).__name__
    for method, instead in (("train_step", "compute_loss"), ("test_step", "compute_loss")):
        if pure.overrides(model, method):
            raise KerasdistError(
                f"Received the model {name!r}, which overrides `{method}`. Expected Keras's own: "
                "the engine differentiates and updates by itself. Override "
                f"`{instead}(x, y, y_pred, sample_weight, training)` instead."
            )
    if to_train:
        _refuse_optimizer(model)
    for layer in pure.all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise KerasdistError(
                f"Received the layer {layer.name!r} with `synchronized=True`. Expected "
                "`synchronized=False`: statistics are taken over each shard. Set it to False; for "
                "statistics over more examples use fewer shards."
            )


def _refuse_optimizer(model: keras.Model) -> None:
    inner, _, _ = pure.loss_scale(model.optimizer)
    for optimizer in (inner, *getattr(inner, "optimizers", ())):
        kind = type(optimizer).__name__
        if kind in pure.REFUSED_OPTIMIZERS:
            reason, instead = pure.REFUSED_OPTIMIZERS[kind]
            raise KerasdistError(
                f"Received the optimizer {kind!r}. Expected another: {reason}. Use {instead!r}."
            )
        if optimizer.gradient_accumulation_steps:
            steps = optimizer.gradient_accumulation_steps
            raise KerasdistError(
                f"Received the optimizer {kind!r} with `gradient_accumulation_steps={steps}`. "
                "Expected none: it cannot run on several devices (Keras 3.15). Leave it out and "
                f"give `fit` {steps} times the `batch_size`, with `shards` {steps} times the "
                "devices."
            )
        if optimizer.ema_overwrite_frequency and optimizer.use_ema:
            raise KerasdistError(
                f"Received the optimizer {kind!r} with "
                f"`ema_overwrite_frequency={optimizer.ema_overwrite_frequency}`. Expected none: "
                "training would continue from the average. Leave it out and use `fit(ema=...)`, "
                "which keeps the average beside the weights."
            )


def refuse_bypassed(model: keras.Model, *methods: str) -> None:
    """Methods that Keras would call, and kerasdist does not."""
    name = type(model).__name__
    for method in methods:
        if not pure.overrides(model, method):
            continue
        if not pure.preprocesses(model, method):
            raise KerasdistError(
                f"The model {name!r} overrides `{method}`, which kerasdist does not call: it has a "
                "loop of its own. Expected Keras's method. Move what it does into the data, a "
                "callback, `call` or `compute_loss`, or train with Keras's `fit`."
            )
        if getattr(model, "preprocessor", None) is not None:
            raise KerasdistError(
                f"The model {name!r} has a preprocessor, which its `{method}` applies to the data, "
                "and kerasdist does not call that. Expected data that is preprocessed. Do it once, "
                "before the call: `data = model.preprocess_samples(x, y)` and then "
                "`model.preprocessor = None`."
            )


def refuse_stateful(model: keras.Model, shards: int) -> None:
    """Recurrent layers whose states belong to the rows of a whole batch."""
    for layer in pure.all_layers(model):
        if not isinstance(layer, keras.layers.RNN) or not layer.stateful:
            continue
        if shards == 1 and layer.states is None:
            raise KerasdistError(
                f"The layer {layer.name!r} with `stateful=True` is not built, and a state needs "
                "the size of a batch. Expected a model that knows it. Begin the model with "
                "`keras.Input(batch_shape=(batch_size, ...))`."
            )
        if shards > 1:
            raise KerasdistError(
                f"Received the layer {layer.name!r} with `stateful=True` and {shards} shards. "
                "Expected one shard: the layer keeps a state for each row of a batch, and a shard "
                "has only some of the rows. Use `devices=1, shards=1`."
            )


def warn_if_frozen(model: keras.Model) -> None:
    """As Keras does; metrics and other state are computed all the same."""
    if not model.trainable_variables:
        warnings.warn("The model does not have any trainable weights.", stacklevel=3)


def refuse_random(model: keras.Model, operations: Sequence[str]) -> None:
    """Random numbers that depend on when and where they are drawn."""
    if operations:
        raise KerasdistError(
            f"The model {type(model).__name__!r} draws random numbers with `tf.random` (operation "
            f"{operations[0]!r}), which is not the same on any number of devices. "
            "`deterministic=True` expects `keras.random`, which kerasdist seeds for each step and "
            "shard. Use for example `keras.random.normal(shape, seed=keras.random.SeedGenerator(0)"
            ")`, or leave out `deterministic`."
        )


def batch_norm_note(model: keras.Model, batch_size: int | None, shards: int) -> str | None:
    """What BatchNormalization does on several shards; None where it does what it does on one."""
    kind = keras.layers.BatchNormalization
    layers = [v for v in pure.all_layers(model) if isinstance(v, kind) and v.trainable]
    names = [layer.name for layer in layers if not layer.synchronized]
    if shards == 1 or not names:
        return None
    rows = "a part of each batch"
    if batch_size is not None:
        # Fewer than that make noisy statistics, and the loss of one device is far off.
        size = batch_size // shards
        rows = f"{'only ' if size < 16 else ''}{size} of a batch's {batch_size} examples"
    first = f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return (
        f"Note: BatchNormalization ({first}) takes its statistics over each of {shards} shards, "
        f"{rows}, where Keras on one device takes them over the whole batch. Results agree for "
        "equal `shards`. Use fewer shards, or a larger batch, to come closer to one device."
    )
