"""Import this to register kerasdist's optimizers, schedules and losses with Keras.

After that, `keras.saving.load_model` reads a compiled model that uses them.
"""

from kerasdist.models.losses import SmoothedCrossentropy
from kerasdist.models.optimizers.config import OptimizerConfig, count_steps
from kerasdist.models.optimizers.factory import optimizer
from kerasdist.models.optimizers.layer_rates import layer_rates
from kerasdist.models.optimizers.schedules import schedule

__all__ = [
    "OptimizerConfig",
    "SmoothedCrossentropy",
    "count_steps",
    "layer_rates",
    "optimizer",
    "schedule",
]
