"""Learning rate schedules that are exact at every step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.optimizers.config import ENDING, OptimizerConfig, config_of


@keras.saving.register_keras_serializable(package="kerasdist")
@dataclass(frozen=True)
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """`learning_rate` times a factor: first a linear warm-up, then a decay.

    Steps are integers and factors are float64, so that a long training does not lose steps by
    rounding. (Keras's own schedules count steps in float32.) The result has Keras's `floatx`.
    One-cycle is a warm-up and a polynomial decay of power 1.

    Example:
        >>> float(Schedule("poly", learning_rate=0.5, decay_steps=10, power=1.0)(5))
        0.25
    """

    shape: str  # constant, exponential, poly or cosine
    learning_rate: float
    warmup_steps: int = 0
    start_factor: float = 0.0
    decay_steps: int = 1  # counted from the end of the warm-up
    decay_rate: float = 1.0
    staircase: bool = False
    power: float = 1.0
    end_factor: float = 0.0

    def __call__(self, step: tf.Tensor | keras.Variable | int) -> tf.Tensor:
        step = tf.cast(keras.ops.convert_to_tensor(step), tf.int64)
        factor = self._decay(tf.maximum(step - self.warmup_steps, 0))
        if self.warmup_steps:
            rise = _wide(step) / self.warmup_steps
            rising = self.start_factor + (1 - self.start_factor) * rise
            factor = tf.where(step < self.warmup_steps, rising, factor)
        return tf.cast(self.learning_rate * factor, keras.config.floatx())

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        if self.shape == "constant":
            return tf.ones([], tf.float64)
        if self.shape == "exponential":
            count = _wide(step // self.decay_steps if self.staircase else step)
            count = count if self.staircase else count / self.decay_steps
            return tf.constant(self.decay_rate, tf.float64) ** count
        done = _wide(tf.minimum(step, self.decay_steps)) / self.decay_steps
        left = (1 - done) ** self.power
        if self.shape == "cosine":
            left = (1 + tf.cos(math.pi * done)) / 2
        return self.end_factor + (1 - self.end_factor) * left

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return dataclasses.asdict(self)


def _wide(step: tf.Tensor) -> tf.Tensor:
    return tf.cast(step, tf.float64)


def schedule(
    settings: str | OptimizerConfig, *, total_steps: int | None = None, **changes: Any
) -> float | Schedule:
    """Returns a learning rate by the name of its schedule, for any Keras optimizer.

    Args:
        settings: "constant", "exponential", "poly", "cosine" or "onecycle"; or settings, such as a
            recipe's `Config`.
        total_steps: Number of steps of the whole training, with the warm-up. "poly", "cosine" and
            "onecycle" end there, unless `decay_steps` is given. `kerasdist.count_steps` computes
            it.
        **changes: Settings of `kerasdist.OptimizerConfig`, such as `learning_rate`.

    Returns:
        A Keras schedule. A constant learning rate without warm-up is a plain number, so that
        callbacks such as ReduceLROnPlateau can change it.

    Raises:
        KerasdistError: If a setting is unknown or out of range, or a schedule has no end.

    Example:
        >>> import kerasdist
        >>> rates = kerasdist.schedule("cosine", learning_rate=0.1, warmup_steps=4, total_steps=20)
        >>> [round(float(rates(step)), 3) for step in (0, 4, 12, 20)]
        [0.02, 0.1, 0.05, 0.0]
    """
    config = config_of(settings, "schedule", changes)
    config.check_optimizer(total_steps)
    learning_rate, warmup_steps = float(config.learning_rate), int(config.warmup_steps)
    if config.schedule == "constant" and not warmup_steps:
        return learning_rate
    shape: str = config.schedule
    decay_steps, power = config.decay_steps or 1, float(config.power)
    if shape in ENDING:
        end = config.decay_steps or total_steps
        if end is None:
            raise KerasdistError(
                f"Received `schedule={shape!r}` without a number of steps. Expected the step at "
                "which the schedule ends. Give `total_steps`, for example "
                "`kerasdist.count_steps(num_examples, batch_size, epochs)`, or `decay_steps`."
            )
        if shape == "onecycle":
            shape, power = "poly", 1.0
            warmup_steps = warmup_steps or int(config.peak_at * end)
        decay_steps = end - warmup_steps
    start_factor = config.start_factor
    if start_factor is None:
        # Not zero: the first step would do nothing.
        start_factor = 1 / (warmup_steps + 1)
    return Schedule(
        shape=shape,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        start_factor=float(start_factor),
        decay_steps=int(decay_steps),
        decay_rate=float(config.decay_rate),
        staircase=bool(config.staircase),
        power=power,
        end_factor=float(config.end_factor),
    )
