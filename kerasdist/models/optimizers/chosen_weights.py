"""Keras's optimizers with weight decay, and factors of the learning rate, for chosen weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.optimizers import kernel_muon

# Some layers (GRU, attention) have such weights with two dimensions. They still are not kernels.
_NO_KERNEL = re.compile(r"(bias|gamma|beta|scale)$")


class _Choosing(keras.optimizers.Optimizer):
    """Chooses the weights when it is built. Keras's own optimizers must be told before.

    Keras does not save which weights are excluded from decay: a loaded optimizer decays them all.
    """

    def __init__(
        self,
        *args: Any,
        weight_decay_on: str = "kernels",
        learning_rate_factors: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.weight_decay_on = weight_decay_on
        self.learning_rate_factors = dict(learning_rate_factors or {})

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        if self.weight_decay:
            is_chosen = _chosen(self.weight_decay_on, variables)
            rest = [v for v in variables if not is_chosen(v)]
            super().exclude_from_weight_decay(var_list=rest)
        self._factors = _factors(self.learning_rate_factors, variables)
        super().build(variables)

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        if self.learning_rate_factors:
            factor = self._factors[self._get_variable_index(variable)]
            learning_rate = learning_rate if factor == 1 else learning_rate * factor
        super().update_step(gradient, variable, learning_rate)

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[keras.Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        raise KerasdistError(
            "`exclude_from_weight_decay` was called, but this optimizer chooses the weights by "
            f"`weight_decay_on={self.weight_decay_on!r}`. Use only one of the two. Name the "
            "weights that decay in `weight_decay_on`."
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "weight_decay_on": self.weight_decay_on,
            "learning_rate_factors": dict(self.learning_rate_factors),
        }


def _path(variable: keras.Variable) -> str:
    return getattr(variable, "path", variable.name)


def _chosen(
    expression: str, variables: Sequence[keras.Variable]
) -> Callable[[keras.Variable], bool]:
    """Returns the test for whether a variable decays."""
    if expression == "all":
        return lambda variable: True
    if expression == "kernels":
        return lambda v: len(v.shape) >= 2 and _NO_KERNEL.search(v.name) is None
    _check_found(expression, variables, "weight_decay_on")
    return lambda variable: re.search(expression, _path(variable)) is not None


def _factors(factors: Mapping[str, float], variables: Sequence[keras.Variable]) -> list[float]:
    """Each variable gets the factor of the first expression found in its path, or 1."""
    for expression in factors:
        _check_found(expression, variables, "learning_rate_factors")
    return [
        next((f for expression, f in factors.items() if re.search(expression, _path(v))), 1.0)
        for v in variables
    ]


def _check_found(expression: str, variables: Sequence[keras.Variable], name: str) -> None:
    paths = [_path(variable) for variable in variables]
    if not any(re.search(expression, path) for path in paths):
        raise KerasdistError(
            f"Received {expression!r} in `{name}`, which matches no path of a trainable weight. "
            f"Expected a part of one of {', '.join(paths[:20])}"
            f"{', …' if len(paths) > 20 else ''}. Correct the expression."
        )


_registered = keras.saving.register_keras_serializable(package="kerasdist")


@_registered
class SGD(_Choosing, keras.optimizers.SGD):
    """Keras's SGD that chooses weights."""


@_registered
class Adam(_Choosing, keras.optimizers.Adam):
    """Keras's Adam that chooses weights."""


@_registered
class AdamW(_Choosing, keras.optimizers.AdamW):
    """Keras's AdamW that chooses weights."""


@_registered
class RMSprop(_Choosing, keras.optimizers.RMSprop):
    """Keras's RMSprop that chooses weights."""


@_registered
class Lion(_Choosing, keras.optimizers.Lion):
    """Keras's Lion that chooses weights."""


@_registered
class Muon(_Choosing, keras.optimizers.Muon):
    """Keras's Muon that chooses weights."""


@_registered
class KernelMuon(_Choosing, kernel_muon.KernelMuon):
    """Muon for the kernels of convolutions and Nesterov's SGD for the rest, that chooses weights.

    Keras has no such class, so `kerasdist.optimizer` always makes this one.
    """
