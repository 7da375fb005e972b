"""An optimizer and its schedule as settings, checked without TensorFlow: options of any recipe."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from kerasdist.errors import KerasdistError, closest

OptimizerName = Literal[
    "sgd", "momentum", "adam", "adamw", "rmsprop", "lion", "muon", "kernel_muon"
]
ScheduleName = Literal["constant", "exponential", "poly", "cosine", "onecycle"]
# Those whose formula has an end, which is the training's unless `decay_steps` names another.
ENDING = ("poly", "cosine", "onecycle")


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of an optimizer, its schedule and its weight decay, for a recipe's `Config`.

    A `Config` that inherits from it has these settings as options of `kerasdist fit`, and is what
    `kerasdist.optimizer` takes. A setting with another default keeps its help.

    Example:
        >>> from dataclasses import dataclass
        >>> import kerasdist
        >>> @dataclass(frozen=True)
        ... class Config(kerasdist.OptimizerConfig):
        ...     optimizer: str = "momentum"
        ...     learning_rate: float = 0.1
        ...     epochs: int = 3
        >>> Config(schedule="cosine", weight_decay=0.01).learning_rate
        0.1
    """

    optimizer: OptimizerName = field(
        default="adam",
        metadata={
            "help": "sgd, momentum (SGD with momentum), adam, adamw, rmsprop, lion, muon or "
            "kernel_muon (Muon for convolutions)"
        },
    )
    learning_rate: float = field(
        default=0.001, metadata={"help": "largest step size, which the schedule lowers"}
    )
    schedule: ScheduleName = field(
        default="constant",
        metadata={"help": "learning rate by step: constant, exponential, poly, cosine or onecycle"},
    )
    warmup_steps: int = field(
        default=0,
        metadata={
            "help": "steps in which the learning rate rises first; of onecycle, instead of peak-at"
        },
    )
    decay_steps: int | None = field(
        default=None,
        metadata={
            "help": "exponential: steps of one decay by decay-rate; poly, cosine and onecycle: the "
            "step at which they end (default: the training's last)"
        },
    )
    decay_rate: float = field(default=0.1, metadata={"help": "exponential: factor of one decay"})
    staircase: bool = field(
        default=False, metadata={"help": "exponential: decay once every decay-steps, by jumps"}
    )
    power: float = field(
        default=0.9, metadata={"help": "poly: the exponent of (1 - step / total steps)"}
    )
    peak_at: float = field(
        default=0.25, metadata={"help": "onecycle: part of the steps before the peak"}
    )
    start_factor: float | None = field(
        default=None,
        metadata={
            "help": "where a warm-up starts, as a part of the learning rate (default: the first "
            "of its even steps above 0)"
        },
    )
    end_factor: float = field(
        default=0.0,
        metadata={"help": "where poly, cosine and onecycle end, as a part of the learning rate"},
    )
    momentum: float | None = field(
        default=None,
        metadata={
            "help": "of momentum (default 0.9), rmsprop (0), muon (0.95) and kernel_muon (0.7)"
        },
    )
    nesterov: bool = field(
        default=True, metadata={"help": "Nesterov's variant of the optimizers momentum and muon"}
    )
    weight_decay: float | None = field(
        default=None,
        metadata={
            "help": "part of a weight that each step takes away, times the learning rate (default: "
            "0.004 of adamw and muon, else none)"
        },
    )
    weight_decay_on: str = field(
        default="kernels",
        metadata={"help": "weights that decay: kernels, all, or a regular expression of paths"},
    )

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # `dataclass` runs after this and would drop the help of a setting that has a new default.
        for inherited in dataclasses.fields(cls):
            value = cls.__dict__.get(inherited.name, inherited)
            if not isinstance(value, dataclasses.Field):
                setattr(cls, inherited.name, field(default=value, metadata=inherited.metadata))

    def __post_init__(self) -> None:
        """Refuses what is out of range. A subclass with its own begins with `super()`'s."""
        self.check_optimizer()

    def check_optimizer(self, total_steps: int | None = None) -> None:
        """Refuses unknown names and numbers out of range.

        Args:
            total_steps: Steps of the whole training, where they are known: what does not fit into
                them is refused, too.

        Raises:
            KerasdistError: Says which setting, and what is expected.
        """
        for name, known in _NAMES.items():
            value = getattr(self, name)
            if value not in known:
                raise KerasdistError(
                    f"Received `{name}={value!r}`. Expected one of {', '.join(known)}."
                    f"{closest(value, known)} Correct the setting."
                )
        for name, (kind, is_optional, expected, valid) in _RANGES.items():
            value = getattr(self, name)
            if value is None and is_optional:
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not valid(value):
                raise KerasdistError(
                    f"Received `{name}={value!r}`. Expected {expected}. Correct the setting."
                )
        self._check_expression()
        self._check_steps(total_steps)

    def _check_expression(self) -> None:
        try:
            re.compile(self.weight_decay_on)
        except (re.error, TypeError) as error:
            raise KerasdistError(
                f"Received `weight_decay_on={self.weight_decay_on!r}`, which is no regular "
                f"expression: {error}. Expected 'kernels', 'all', or an expression that is found "
                "in the paths of weights. Correct it, for example 'dense.*/kernel'."
            ) from error

    def _check_steps(self, total_steps: int | None) -> None:
        if total_steps is not None:
            _check_count("total_steps", total_steps)
        if self.schedule == "exponential" and self.decay_steps is None:
            raise KerasdistError(
                "Received `schedule='exponential'` without `decay_steps`. Expected the number of "
                f"steps after which the learning rate is `decay_rate={self.decay_rate!r}` times "
                "what it was. Add it."
            )
        ends = {"total_steps": total_steps}
        if self.schedule in ENDING:
            ends["decay_steps"] = self.decay_steps
        for name, end in ends.items():
            if end is not None and self.warmup_steps >= end:
                raise KerasdistError(
                    f"Received `warmup_steps={self.warmup_steps}` and `{name}={end}`. Expected "
                    "fewer steps of warm-up: the rest would never come. Use a shorter warm-up, or "
                    "train longer."
                )


_NAMES = {"optimizer": get_args(OptimizerName), "schedule": get_args(ScheduleName)}


def _is_finite_from_0(value: Any) -> bool:
    return 0 <= value < math.inf


# Of each number: its type, whether it may be left out, what is expected, and the test of that.
_Range = tuple[type, bool, str, Callable[[Any], bool]]
_RANGES: Mapping[str, _Range] = {
    "learning_rate": (Real, False, "a finite number of at least 0", _is_finite_from_0),
    "warmup_steps": (Integral, False, "a whole number of at least 0", lambda value: value >= 0),
    "decay_steps": (Integral, True, "a whole number of at least 1", lambda value: value >= 1),
    "decay_rate": (Real, False, "a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "power": (Real, False, "a finite number above 0", lambda value: 0 < value < math.inf),
    "peak_at": (Real, False, "a part of at least 0 and below 1", lambda value: 0 <= value < 1),
    "start_factor": (Real, True, "a fraction from 0 to 1", lambda value: 0 <= value <= 1),
    "end_factor": (Real, False, "a fraction from 0 to 1", lambda value: 0 <= value <= 1),
    "momentum": (Real, True, "a number of at least 0 and below 1", lambda value: 0 <= value < 1),
    "weight_decay": (Real, True, "a finite number of at least 0", _is_finite_from_0),
}


def config_of(settings: Any, name: str, changes: Mapping[str, Any]) -> OptimizerConfig:
    """`settings` with `changes`; text is the value of the setting `name`, with the defaults."""
    known = [each.name for each in dataclasses.fields(OptimizerConfig)]
    for change in changes:
        if change not in known:
            raise KerasdistError(
                f"Received the argument {change!r}. Expected one of {', '.join(known)}."
                f"{closest(change, known)} Correct the name."
            )
    if isinstance(settings, OptimizerConfig):
        return dataclasses.replace(settings, **changes) if changes else settings
    return OptimizerConfig(**{name: settings, **changes})


def count_steps(
    num_examples: int, batch_size: int, epochs: int = 1, steps: int | None = None
) -> int:
    """Returns the optimizer steps of a training, which schedules with an end need.

    Args:
        num_examples: Examples of one epoch.
        batch_size: Global batch size; the last batch of an epoch may be smaller and counts, too.
        epochs: Passes over the examples.
        steps: Steps to train instead of epochs, as `kerasdist.fit` has it.

    Example:
        >>> import kerasdist
        >>> kerasdist.count_steps(50_000, 128, epochs=10)
        3910
    """
    _check_count("num_examples", num_examples)
    _check_count("batch_size", batch_size)
    _check_count("epochs", epochs)
    if steps is None:
        return epochs * math.ceil(num_examples / batch_size)
    _check_count("steps", steps)
    return steps


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise KerasdistError(
            f"Received `{name}={value!r}`. Expected a whole number of at least 1. Correct it."
        )
