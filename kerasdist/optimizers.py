"""Importing this registers kerasdist's optimizers, schedules and losses with Keras.

After that, `keras.saving.load_model` reads a compiled model that uses them.
"""

from kerasdist.models.losses import SmoothedCrossentropy
from kerasdist.models.optimizer_config import OptimizerConfig, count_steps
from kerasdist.models.optimizers import optimizer
from kerasdist.models.schedules import schedule

__all__ = ["OptimizerConfig", "SmoothedCrossentropy", "count_steps", "optimizer", "schedule"]
