"""Decides whether XLA compiles a model: as the caller says, or as Keras's `fit` would decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras

from kerasdist.devices import gpus, private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.errors import KerasdistError
from kerasdist.models import pure


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
    has_accelerator: Callable[[], bool] = gpus.has_accelerator,
    has_xla: Callable[[], bool] = gpus.has_xla,
) -> Jit:
    """Whether XLA compiles a built, compiled model on these devices.

    Args:
        wanted: What the caller says; None leaves the decision to the model and the devices.
        model: The model. `compile(jit_compile=...)` decides if `wanted` is None.
        placement: The devices.
        deterministic: Whether GPUs use deterministic operations. XLA does not have all of them.
        has_accelerator: Whether this machine has a device that is not a CPU.
        has_xla: Whether XLA can compile for the GPUs.
    """
    if wanted is not None:
        if wanted and placement.is_gpu:
            _refuse_cudnn(model)
        return Jit(wanted, is_chosen=True)
    compiled = bool(model.jit_compile)
    # Keras replaces "auto" when it compiles (3.15.1). Where there are only CPUs, "auto" is False,
    # so True comes from the caller. Elsewhere, True is either, and the rules below hold.
    is_chosen = compiled and not has_accelerator()
    is_on = is_chosen or (
        compiled
        and placement.is_gpu
        and not (deterministic or private_tensorflow.is_op_determinism_enabled())
        and all(layer.supports_jit for layer in pure.all_layers(model))
        and has_xla()
    )
    # All workers must compute alike. Their machines could differ.
    is_on = bool(placement.of_all(int(is_on)).min())
    return Jit(is_on, is_chosen and is_on)


def _refuse_cudnn(model: keras.Model) -> None:
    """Refuses layers that insist on cuDNN. Those with `use_cudnn="auto"` run without it."""
    for layer in pure.all_layers(model):
        if getattr(layer, "use_cudnn", None) is True:
            raise KerasdistError(
                f"Received `jit=True` and the layer {layer.name!r} with `use_cudnn=True`. Expected "
                "one of them: XLA cannot compile cuDNN's recurrent layers. Leave out `jit`, and "
                "the layer uses cuDNN; or make the layer with `use_cudnn='auto'`."
            )
