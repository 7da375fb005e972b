"""Decides whether XLA compiles a model: as the caller says, or as Keras's `fit` would decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
import tensorflow as tf

from kerasdist.devices import gpus, private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.models.fields import Batch, fields_read
from kerasdist.models.tensors.composites import is_composite, is_sparse


@dataclass(frozen=True)
class Jit:
    """Whether XLA compiles, and who decided it.

    Attributes:
        is_on: Whether XLA compiles the forward and backward pass.
        is_chosen: Whether the caller chose this. Otherwise the model and the devices decided, and
            the decision may differ on other devices.
    """

    is_on: bool
    is_chosen: bool


def decide(
    wanted: bool | None,
    model: keras.Model,
    placement: Placement,
    *,
    deterministic: bool,
    spec: Batch = None,
    has_accelerator: Callable[[], bool] = gpus.has_accelerator,
    has_xla: Callable[[], bool] = gpus.has_xla,
) -> Jit:
    """Whether XLA compiles a built, compiled model on these devices.

    Args:
        wanted: What the caller says; None leaves the decision to the model and the devices.
        model: The model. `compile(jit_compile=...)` decides if `wanted` is None.
        placement: The devices.
        deterministic: Whether GPUs use deterministic operations. XLA does not have all of them.
        spec: The spec of a batch. XLA takes neither strings nor sparse or ragged tensors.
        has_accelerator: Whether this machine has a device that is not a CPU.
        has_xla: Whether XLA can compile for the GPUs.
    """
    odd = None if spec is None else _not_for_xla(model, spec)
    if wanted is not None:
        if wanted and placement.is_gpu:
            _refuse_cudnn(model)
        if wanted and odd is not None:
            raise KerasdistError(
                f"Received `jit=True` and {odd}. Expected dense numbers: XLA cannot compile a "
                "model that reads anything else. Leave out `jit`."
            )
        return Jit(wanted, is_chosen=True)
    compiled = bool(model.jit_compile)
    if compiled and odd is not None and not has_accelerator():
        raise KerasdistError(
            f"Received a model with `jit_compile=True` and {odd}. Expected dense numbers: XLA "
            "cannot compile a model that reads anything else. Compile it with `jit_compile=False`."
        )
    # Keras replaces "auto" when it compiles (3.15.1). Where there are only CPUs, "auto" is False,
    # so True comes from the caller. Elsewhere, True is either, and the rules below hold.
    is_chosen = compiled and not has_accelerator()
    is_on = is_chosen or (
        compiled
        and odd is None
        and placement.is_gpu
        and not (deterministic or private_tensorflow.is_op_determinism_enabled())
        and all(layer.supports_jit for layer in pure.all_layers(model))
        and has_xla()
    )
    # All workers must compute alike. Their machines could differ.
    is_on = bool(placement.of_all(int(is_on)).min())
    return Jit(is_on, is_chosen and is_on)


def _not_for_xla(model: keras.Model, spec: Batch) -> str | None:
    """A field of the data that XLA cannot take, in words."""
    for path, leaf in fields_read(model, spec):
        if leaf.dtype == tf.string:
            return f"strings in the field {path!r}"
        if is_composite(leaf):
            return f"a {'sparse' if is_sparse(leaf) else 'ragged'} tensor in the field {path!r}"
    return None


def _refuse_cudnn(model: keras.Model) -> None:
    """Refuses layers that insist on cuDNN. Those with `use_cudnn="auto"` run without it."""
    for layer in pure.all_layers(model):
        if getattr(layer, "use_cudnn", None) is True:
            raise KerasdistError(
                f"Received `jit=True` and the layer {layer.name!r} with `use_cudnn=True`. Expected "
                "one of them: XLA cannot compile cuDNN's recurrent layers. Leave out `jit`, and "
                "the layer uses cuDNN; or make the layer with `use_cudnn='auto'`."
            )
