"""Where an optimizer counts its updates, and its loss scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.models import pure


@dataclass(frozen=True)
class Counters:
    """The places, among an optimizer's variables, of its number of updates and its loss scale.

    A `LossScaleOptimizer` has variables for its scale and for the number of finite steps since it
    last changed. `fixed_scale` is the `loss_scale_factor` of other optimizers.
    """

    updates: int
    scale_and_count: tuple[int, int] | None
    growth_steps: int | None
    fixed_scale: float | None

    @classmethod
    def of(cls, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> Counters:
        inner, scale, count = pure.loss_scale(optimizer)
        place = {id(v): i for i, v in enumerate(variables)}
        return cls(
            place[id(optimizer.iterations)],
            (place[id(scale)], place[id(count)]) if scale is not None else None,
            getattr(optimizer, "dynamic_growth_steps", None),
            inner.loss_scale_factor,
        )

    def scale(self, values: Sequence[tf.Tensor]) -> tf.Tensor | None:
        """The factor of the loss; None if there is none."""
        if self.scale_and_count is not None:
            return values[self.scale_and_count[0]]
        return None if self.fixed_scale is None else tf.constant(self.fixed_scale, tf.float64)
