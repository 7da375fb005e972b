"""Weight decay with a factor of the learning rate for each variable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import keras

_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule
# What `exclude_from_weight_decay` remembers, and no configuration has.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class FactoredDecay(keras.optimizers.Optimizer):
    """A Keras optimizer whose weight decay takes `factor_of` times the learning rate.

    Keras decays all variables before it updates the first one, with the rate of all of them.
    """

    _factor_now: float | None = None

    def factor_of(self, variable: keras.Variable) -> float:
        raise NotImplementedError

    @property
    def learning_rate(self) -> Any:
        """The rate of variables without a factor, except while others decay."""
        rate = super().learning_rate
        return rate if self._factor_now is None else rate * self._factor_now

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        keras.optimizers.Optimizer.learning_rate.fset(self, value)

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        groups: dict[float, list[keras.Variable]] = defaultdict(list)
        for variable in variables:
            groups[self.factor_of(variable)].append(variable)
        for factor, group in groups.items():
            self._factor_now = None if factor == 1 else factor
            try:
                super()._apply_weight_decay(group)
            finally:
                self._factor_now = None


def remade(
    optimizer: keras.optimizers.Optimizer, kind: type[keras.optimizers.Optimizer], **more: Any
) -> keras.optimizers.Optimizer:
    """An optimizer of another class with the same settings and `more`. It must not be built yet."""
    config = optimizer.get_config()
    if isinstance(optimizer._learning_rate, _SCHEDULE):  # A custom one may not be registered.
        config["learning_rate"] = optimizer._learning_rate
    made = kind(**config, **more)
    for name in _EXCLUDED:
        if name in vars(optimizer):
            setattr(made, name, vars(optimizer)[name])
    return made


def without_decay(model: keras.Model) -> list[str]:
    """The paths of the weights that `exclude_from_weight_decay` named. The optimizer is built."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not any(name in vars(optimizer) for name in _EXCLUDED):
        return []
    return [v.path for v in model.trainable_variables if not optimizer._use_weight_decay(v)]
