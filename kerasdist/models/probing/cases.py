"""What a probe saw of some rows of a batch: the whole, and its two parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from kerasdist.models import pure
from kerasdist.models.probing.gradient_sums import Gradients
from kerasdist.models.probing.rounding import as_float64


@dataclass(frozen=True)
class Mode:
    """One way to evaluate the rows.

    With a `seed` the rows come in another order, and each row of floats in the inputs and outputs
    is multiplied by a factor of that row. If it also `weighs`, so are the sample weights. If
    `begin` is not None, all state starts from it.
    """

    training: bool
    seed: int | None = None
    begin: float | None = None
    weighs: bool = False

    @property
    def is_altered(self) -> bool:
        """Whether the model may get values that it does not get in training."""
        return self.seed is not None or self.begin is not None


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation of some rows gave: new values of state, and what metrics grew by.

    `gradients` are those for the weights, if the model trains: of the loss, or of each loss by
    `add_loss` if the probe evaluates no other.
    """

    loss: float
    state: dict[int, np.ndarray]
    denominators: Sequence[tf.Tensor]
    draws: pure.Draws
    outputs: Sequence[np.ndarray | None]
    added: Sequence[np.ndarray]
    metrics: dict[int, np.ndarray]
    gradients: Sequence[Gradients] = ()


@dataclass(frozen=True)
class Case:
    """The whole, its two parts, and the whole `again` with other random numbers.

    In `again` only the draws differ that cannot be made equal for all rows. For each loss with
    gradients, `gaps` say how far those of the parts are from those of the whole: their weighted
    mean, and their sum (`gradient_sums.gap`).
    """

    mode: Mode
    whole: Evaluation
    again: Evaluation
    parts: list[Evaluation]
    gaps: Sequence[tuple[float, float]] = ()

    @property
    def has_loss(self) -> bool:
        """Whether the losses can be compared: they are finite and do not depend on chance."""
        seen = (self.whole, *self.parts)
        return (
            all(part.draws.are_alike and np.isfinite(part.loss) for part in seen)
            and np.isclose(self.again.loss, self.whole.loss, rtol=1e-5).item()
        )

    @property
    def by_chance(self) -> set[int]:
        """The state that differs when it is computed again."""
        again = self.again.state
        return {
            key
            for key, value in self.whole.state.items()
            if key not in again
            or not np.allclose(as_float64(value), as_float64(again[key]), rtol=1e-5, equal_nan=True)
        }

    @property
    def comparable(self) -> set[int]:
        """The state that can be compared, whatever the loss and other state are."""
        seen = (self.whole, *self.parts)
        return {
            key
            for key in self.whole.state
            if all(
                key in part.state and np.isfinite(as_float64(part.state[key])).all()
                for part in seen
            )
        } - self.by_chance
