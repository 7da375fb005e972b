"""Settings of an optimizer and its schedule, for any recipe, checked without TensorFlow."""

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
# Schedules with an end: the end of the training, unless `decay_steps` is given.
ENDING = ("poly", "cosine", "onecycle")


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of an optimizer, its schedule and its weight decay, for a recipe's `Config`.

    If a `Config` inherits from this class, `kerasdist fit` has these settings as options, and
    `kerasdist.optimizer` takes the `Config`. A setting with a new default keeps its help text.

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

    optimizer: OptimizerName = _setting(  # noqa: RUF009 - returns a `field`
        "adam",
        "sgd, momentum (SGD with momentum), adam, adamw, rmsprop, lion, muon or kernel_muon (Muon "
        "for convolutions)",
    )
    learning_rate: float = _setting(0.001, "largest learning rate; the schedule lowers it")
    schedule: ScheduleName = _setting(  # noqa: RUF009 - returns a `field`
        "constant", "learning rate schedule: constant, exponential, poly, cosine or onecycle"
    )
    warmup_steps: int = _setting(
        0, "steps in which the learning rate rises first; for onecycle, replaces peak-at"
    )
    decay_steps: int | None = _setting(
        None,
        "exponential: steps per decay by decay-rate; poly, cosine and onecycle: the step at which "
        "they end (default: the end of the training)",
    )
    decay_rate: float = _setting(0.1, "exponential: factor per decay")
    staircase: bool = _setting(False, "exponential: decay in jumps, once per decay-steps")
    power: float = _setting(0.9, "poly: the exponent of (1 - step / total steps)")
    peak_at: float = _setting(0.25, "onecycle: fraction of the steps before the peak")
    start_factor: float | None = _setting(
        None,
        "where a warm-up starts, as a fraction of the learning rate (default: one even step above "
        "0)",
    )
    end_factor: float = _setting(
        0.0, "where poly, cosine and onecycle end, as a fraction of the learning rate"
    )
    momentum: float | None = _setting(
        None, "for momentum (default 0.9), rmsprop (0), muon (0.95) and kernel_muon (0.7)"
    )
    nesterov: bool = _setting(True, "Nesterov momentum, for the optimizers momentum and muon")
    weight_decay: float | None = _setting(
        None,
        "fraction of a weight that each step subtracts, times the learning rate (default: 0.004 "
        "for adamw and muon, else none)",
    )
    weight_decay_on: str = _setting(
        "kernels", "weights that decay: kernels, all, or a regular expression for paths"
    )

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # `dataclass` runs after this. It would drop the help text of a setting with a new default.
        for inherited in dataclasses.fields(cls):
            value = cls.__dict__.get(inherited.name, inherited)
            if not isinstance(value, dataclasses.Field):
                setattr(cls, inherited.name, field(default=value, metadata=inherited.metadata))

    def __post_init__(self) -> None:
        """Checks the settings. A subclass that overrides this must call `super()` first."""
        self.check_optimizer()

    def check_optimizer(self, total_steps: int | None = None) -> None:
        """Refuses unknown names and numbers out of range.

        Args:
            total_steps: Number of steps of the whole training, if known. Then a warm-up that is
                too long is refused, too.

        Raises:
            KerasdistError: The message names the setting and what is expected.
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
                f"Received `weight_decay_on={self.weight_decay_on!r}`, which is not a regular "
                f"expression: {error}. Expected 'kernels', 'all', or an expression that matches "
                "paths of weights. Correct it, for example 'dense.*/kernel'."
            ) from error

    def _check_steps(self, total_steps: int | None) -> None:
        if total_steps is not None:
            _check_count("total_steps", total_steps)
        if self.schedule == "exponential" and self.decay_steps is None:
            raise KerasdistError(
                "Received `schedule='exponential'` without `decay_steps`. Expected the number of "
                f"steps in which the learning rate is multiplied by "
                f"`decay_rate={self.decay_rate!r}` once. Add it."
            )
        ends = {"total_steps": total_steps}
        if self.schedule in ENDING:
            ends["decay_steps"] = self.decay_steps
        for name, end in ends.items():
            if end is not None and self.warmup_steps >= end:
                raise KerasdistError(
                    f"Received `warmup_steps={self.warmup_steps}` and `{name}={end}`. Expected "
                    "fewer warm-up steps: the schedule would end before the warm-up does. Use a "
                    "shorter warm-up, or train longer."
                )


_NAMES = {"optimizer": get_args(OptimizerName), "schedule": get_args(ScheduleName)}


def _is_finite_from_0(value: Any) -> bool:
    return 0 <= value < math.inf


# For each number: its type, whether it may be None, what is expected, and a test for that.
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


def config_of(
    settings: str | OptimizerConfig, name: str, changes: Mapping[str, Any]
) -> OptimizerConfig:
    """Returns `settings` with `changes`. A text becomes the setting `name` of the defaults."""
    known = [each.name for each in dataclasses.fields(OptimizerConfig)]
    for change in changes:
        if change not in known:
            raise KerasdistError(
                f"Received the argument {change!r}. Expected one of {', '.join(known)}."
                f"{closest(change, known)} Correct the name."
            )
    if isinstance(settings, OptimizerConfig):
        return dataclasses.replace(settings, **changes) if changes else settings
    given: dict[str, Any] = {name: settings, **changes}
    return OptimizerConfig(**given)


def count_steps(
    num_examples: int, batch_size: int, epochs: int = 1, steps: int | None = None
) -> int:
    """Returns the number of optimizer steps of a training. Schedules with an end need it.

    Args:
        num_examples: Number of examples per epoch.
        batch_size: Global batch size. A smaller last batch of an epoch counts as a step, too.
        epochs: Number of passes over the examples.
        steps: Number of steps instead of epochs, as in `kerasdist.fit`.

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
            f"Received `{name}={value!r}`. Expected a whole number of at least 1. Check where "
            f"the value of `{name}` comes from."
        )
