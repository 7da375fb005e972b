"""Optimizers by name, with weight decay and learning rates for chosen variables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from kerasdist.errors import KerasdistError
from kerasdist.models import kernel_muon
from kerasdist.models.optimizer_config import OptimizerConfig, config_of
from kerasdist.models.schedules import schedule

# Of two dimensions in some layers (GRU, attention), and no kernels nevertheless.
_NO_KERNEL = re.compile(r"(bias|gamma|beta|scale)$")


class _Choosing(keras.optimizers.Optimizer):
    """Chooses variables when it is built, where Keras wants them, or parts of their names, before.

    Keras's own exclusion is not saved with the optimizer: a loaded one decays everything.
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

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        if self.weight_decay:
            is_chosen = _chosen(self.weight_decay_on, variables)
            rest = [v for v in variables if not is_chosen(v)]
            super().exclude_from_weight_decay(var_list=rest)
        self._factors = _factors(self.learning_rate_factors, variables)
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self.learning_rate_factors:
            factor = self._factors[self._get_variable_index(variable)]
            learning_rate = learning_rate if factor == 1 else learning_rate * factor
        super().update_step(gradient, variable, learning_rate)

    def exclude_from_weight_decay(self, var_list=None, var_names=None) -> None:
        raise KerasdistError(
            "Received a call of `exclude_from_weight_decay`, and this optimizer chooses by "
            f"`weight_decay_on={self.weight_decay_on!r}`. Expected one of both. Name the weights "
            "that decay in `weight_decay_on`."
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "weight_decay_on": self.weight_decay_on,
            "learning_rate_factors": dict(self.learning_rate_factors),
        }


def _path(variable: Any) -> str:
    return getattr(variable, "path", variable.name)


def _chosen(expression: str, variables: Sequence[Any]) -> Callable[[Any], bool]:
    """The test of whether a variable decays."""
    if expression == "all":
        return lambda variable: True
    if expression == "kernels":
        return lambda v: len(v.shape) >= 2 and _NO_KERNEL.search(v.name) is None
    _check_found(expression, variables, "weight_decay_on")
    return lambda variable: re.search(expression, _path(variable)) is not None


def _factors(factors: Mapping[str, float], variables: Sequence[Any]) -> list[float]:
    """The factor of each variable: of the first expression that is found in its path, or 1."""
    for expression in factors:
        _check_found(expression, variables, "learning_rate_factors")
    return [
        next((f for expression, f in factors.items() if re.search(expression, _path(v))), 1.0)
        for v in variables
    ]


def _check_found(expression: str, variables: Sequence[Any], name: str) -> None:
    paths = [_path(variable) for variable in variables]
    if not any(re.search(expression, path) for path in paths):
        raise KerasdistError(
            f"Received {expression!r} in `{name}`, which is found in no path of a trainable "
            f"weight. Expected a part of one of {', '.join(paths[:20])}"
            f"{', …' if len(paths) > 20 else ''}. Correct the expression."
        )


_registered = keras.saving.register_keras_serializable(package="kerasdist")


@_registered
class SGD(_Choosing, keras.optimizers.SGD):
    """Keras's SGD that chooses variables."""


@_registered
class Adam(_Choosing, keras.optimizers.Adam):
    """Keras's Adam that chooses variables."""


@_registered
class AdamW(_Choosing, keras.optimizers.AdamW):
    """Keras's AdamW that chooses variables."""


@_registered
class RMSprop(_Choosing, keras.optimizers.RMSprop):
    """Keras's RMSprop that chooses variables."""


@_registered
class Lion(_Choosing, keras.optimizers.Lion):
    """Keras's Lion that chooses variables."""


@_registered
class Muon(_Choosing, keras.optimizers.Muon):
    """Keras's Muon that chooses variables."""


@_registered
class KernelMuon(_Choosing, kernel_muon.KernelMuon):
    """Muon for kernels of convolutions, and Nesterov's SGD for the others, that chooses variables.

    Keras has no such class, so there is only this one.
    """


# By name: Keras's class, ours that chooses variables, and what it is given where nothing is set.
_KINDS: Mapping[str, tuple[Any, Any, Mapping[str, Any]]] = {
    "sgd": (keras.optimizers.SGD, SGD, {}),
    "momentum": (keras.optimizers.SGD, SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (keras.optimizers.Adam, Adam, {}),
    "adamw": (keras.optimizers.AdamW, AdamW, {"weight_decay": 0.004}),
    "rmsprop": (keras.optimizers.RMSprop, RMSprop, {"momentum": 0.0}),
    "lion": (keras.optimizers.Lion, Lion, {}),
    "muon": (
        keras.optimizers.Muon,
        Muon,
        {"weight_decay": 0.004, "momentum": 0.95, "nesterov": True},
    ),
    "kernel_muon": (KernelMuon, KernelMuon, {"momentum": 0.7}),
}


def optimizer(
    settings: str | OptimizerConfig,
    *,
    total_steps: int | None = None,
    learning_rate_factors: Mapping[str, float] | None = None,
    arguments: Mapping[str, Any] | None = None,
    **changes: Any,
) -> keras.optimizers.Optimizer:
    """Returns an optimizer by its name, with its schedule and its weight decay.

    Args:
        settings: "sgd", "momentum", "adam", "adamw", "rmsprop", "lion", "muon" or "kernel_muon"; or
            settings, such as a recipe's `Config`.
        total_steps: Steps of the whole training, where the schedules with an end have it.
        learning_rate_factors: Factors of the learning rate by regular expressions of variables'
            paths; the first that is found counts. Weight decay goes by the learning rate alone.
        arguments: More arguments of the Keras class, for example `exclude_layers` of Muon.
        **changes: Settings of `kerasdist.OptimizerConfig`, such as `learning_rate`.

    Returns:
        An optimizer to compile a model with: Keras's own class, or one derived from it where
        variables are chosen, which is saved and loaded with that choice.

    Raises:
        KerasdistError: If a setting is unknown or out of range, or a schedule has no end. When the
            optimizer is built, if an expression is found in no path.

    Example:
        >>> import kerasdist
        >>> optimizer = kerasdist.optimizer(
        ...     "momentum", learning_rate=0.1, weight_decay=0.01, schedule="poly", total_steps=100
        ... )
        >>> type(optimizer).__name__, optimizer.momentum, optimizer.weight_decay_on
        ('SGD', 0.9, 'kernels')
    """
    config = config_of(settings, "optimizer", changes)
    plain, choosing, defaults = _KINDS[config.optimizer]
    learning_rate = schedule(config, total_steps=total_steps)
    given: dict[str, Any] = {"learning_rate": learning_rate, "weight_decay": None, **defaults}
    if config.weight_decay is not None:
        given["weight_decay"] = float(config.weight_decay)
    if config.momentum is not None and "momentum" in defaults:
        given["momentum"] = float(config.momentum)
    if "nesterov" in defaults:
        given["nesterov"] = config.nesterov
    if config.optimizer == "muon":
        # Of the weights that it leaves to Adam.
        given["adam_weight_decay"] = given["weight_decay"]
    chooses = bool(given["weight_decay"]) and config.weight_decay_on != "all"
    given |= arguments or {}
    if not chooses and not learning_rate_factors:
        return plain(**given)
    return choosing(
        **given,
        weight_decay_on=config.weight_decay_on,
        learning_rate_factors=_checked(learning_rate_factors or {}),
    )


def _checked(factors: Mapping[str, Any]) -> Mapping[str, float]:
    for expression, factor in factors.items():
        try:
            re.compile(expression)
            valid = 0 <= factor < math.inf
        except (re.error, TypeError):
            valid = False
        if not valid:
            raise KerasdistError(
                f"Received {{{expression!r}: {factor!r}}} in `learning_rate_factors`. Expected a "
                "regular expression and a finite number of at least 0. Correct it."
            )
    return factors
