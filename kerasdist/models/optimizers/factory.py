"""`optimizer`: makes an optimizer from its name and settings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import keras

from kerasdist.errors import KerasdistError
from kerasdist.models.optimizers import chosen_weights
from kerasdist.models.optimizers.config import OptimizerConfig, config_of
from kerasdist.models.optimizers.schedules import schedule

# By name: Keras's class, kerasdist's class that chooses weights, and the default arguments.
_KINDS: Mapping[str, tuple[Any, Any, Mapping[str, Any]]] = {
    "sgd": (keras.optimizers.SGD, chosen_weights.SGD, {}),
    "momentum": (keras.optimizers.SGD, chosen_weights.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (keras.optimizers.Adam, chosen_weights.Adam, {}),
    "adamw": (keras.optimizers.AdamW, chosen_weights.AdamW, {"weight_decay": 0.004}),
    "rmsprop": (keras.optimizers.RMSprop, chosen_weights.RMSprop, {"momentum": 0.0}),
    "lion": (keras.optimizers.Lion, chosen_weights.Lion, {}),
    "muon": (
        keras.optimizers.Muon,
        chosen_weights.Muon,
        {"weight_decay": 0.004, "momentum": 0.95, "nesterov": True},
    ),
    "kernel_muon": (chosen_weights.KernelMuon, chosen_weights.KernelMuon, {"momentum": 0.7}),
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
        total_steps: Number of steps of the whole training. Schedules with an end stop there.
        learning_rate_factors: Factors of the learning rate by regular expression. A weight gets the
            factor of the first expression found in its path. Weight decay ignores the factors.
        arguments: More arguments of the Keras class, for example `exclude_layers` of Muon.
        **changes: Settings of `kerasdist.OptimizerConfig`, such as `learning_rate`.

    Returns:
        An optimizer to compile a model with: Keras's own class, or a class derived from it if
        weights are chosen. That class is saved and loaded together with the choice.

    Raises:
        KerasdistError: If a setting is unknown or out of range, or a schedule has no end. When the
            optimizer is built, if an expression matches no path.

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
        # For the weights that Muon leaves to Adam.
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


def _checked(factors: Mapping[str, float]) -> Mapping[str, float]:
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
