"""The learning rate range test: a short training whose learning rate grows with every step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras

from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled_loop import NOT_FINITE
from kerasdist.errors import KerasdistError, first_line
from kerasdist.finders import rate_page
from kerasdist.finders.steps import Steps, steps_of
from kerasdist.finders.suggestion import Divergence, smooth, suggest
from kerasdist.models import pure
from kerasdist.phases.phase import phase
from kerasdist.runs.atomic import write_text
from kerasdist.training.epochs import not_finite
from kerasdist.training.options import PathLike, TrainingOptions

LOWEST, HIGHEST, NUM_STEPS = 1e-7, 10.0, 100
# With fewer steps there is no curve.
FEWEST_STEPS = 10

# Is told after each step: the number of steps so far, the learning rate and the loss.
Show = Callable[[int, float, float], None]


@dataclass(frozen=True)
class LearningRates:
    """What a learning rate range test found.

    Attributes:
        rates: The learning rate of each step, ascending.
        losses: The loss of each step, before its update.
        suggestion: The learning rate to train with; None if no rate made the loss fall.
        reason: Why this one.
        ended: Why the test ended.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float | None
    reason: str
    ended: str

    @property
    def smoothed(self) -> tuple[float, ...]:
        """The losses without their noise."""
        return tuple(smooth(self.losses).tolist())

    def save(self, path: PathLike, *, title: str = "", command: str | None = None) -> Path:
        """Writes the plot as a single self-contained HTML file, and returns its path.

        Args:
            path: The file.
            title: What was trained.
            command: What to do with the suggestion.
        """
        target = Path(path).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, rate_page.render(self, title=title, command=command))
        return target


@dataclass(frozen=True)
class RateTest:
    """From which to which learning rate, and in how many steps."""

    lowest: float = LOWEST
    highest: float = HIGHEST
    steps: int = NUM_STEPS

    @classmethod
    def checked(cls, lowest: float, highest: float, steps: int) -> RateTest:
        are_numbers = all(
            isinstance(value, (int, float)) and not isinstance(value, bool)
            for value in (lowest, highest)
        )
        if not are_numbers or not 0 < lowest < highest < math.inf:
            raise KerasdistError(
                f"Received `lowest={lowest!r}` and `highest={highest!r}`. Expected two learning "
                "rates above 0, the lower one first. For example, use `lowest=1e-7, highest=10`."
            )
        is_whole = isinstance(steps, int) and not isinstance(steps, bool)
        if not is_whole or steps < FEWEST_STEPS:
            raise KerasdistError(
                f"Received `steps={steps!r}`. Expected a whole number of at least {FEWEST_STEPS}: "
                "each step tries one learning rate. Use for example `steps=100`."
            )
        return cls(float(lowest), float(highest), steps)


@keras.saving.register_keras_serializable("kerasdist")
class Rising(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that grows by the same factor in every step."""

    def __init__(self, lowest: float, highest: float, steps: int):
        super().__init__()
        self.lowest, self.highest, self.steps = lowest, highest, steps

    def __call__(self, step: Any) -> Any:
        part = keras.ops.cast(step, "float32") / (self.steps - 1)
        span = math.log(self.highest / self.lowest)
        return self.lowest * keras.ops.exp(part * span)

    def get_config(self) -> dict[str, Any]:
        return {"lowest": self.lowest, "highest": self.highest, "steps": self.steps}


def range_test(
    options: TrainingOptions,
    placement: Placement,
    test: RateTest,
    show: Show | None = None,
) -> LearningRates:
    """Trains with a growing learning rate until it is too high, and keeps nothing."""
    is_own = pure.is_model(options.source.model)
    with steps_of(options, placement, partial(_rise, test=test, is_own=is_own)) as steps:
        rates, losses, ended = _run(steps, test, show)
    if len(losses) < FEWEST_STEPS:
        raise KerasdistError(
            f"The range test had only {len(losses)} steps: {ended}. Expected at least "
            f"{FEWEST_STEPS}. Start it at a lower rate, or give it more data."
        )
    suggestion, reason = suggest(rates, losses)
    return LearningRates(tuple(rates), tuple(losses), suggestion, reason, ended)


def _run(steps: Steps, test: RateTest, show: Show | None) -> tuple[list[float], list[float], str]:
    rates: list[float] = []
    losses: list[float] = []
    divergence, left_out = Divergence(), 0
    while len(losses) < test.steps:
        steps.leave_out_short_batch()  # The loss of a few examples says little.
        with contextlib.nullcontext() if rates or left_out else phase("compiling the first step"):
            outcome = steps.run(1)
        if outcome.status == NOT_FINITE:
            left_out += 1
            is_loss_scale = steps.has_loss_scale and left_out <= not_finite.MOST_LEFT_OUT
            if is_loss_scale and math.isfinite(outcome.loss):
                steps.skip()  # Only the scale was too large: it is halved.
                continue
            return rates, losses, _ended("the loss was not finite", rates)
        if not outcome.num_steps:
            return rates, losses, "the data ended, and it can be read only once"
        left_out = 0
        rates.append(outcome.learning_rate)
        losses.append(outcome.loss)
        if show is not None:
            show(len(losses), outcome.learning_rate, outcome.loss)
        if divergence.is_reached(outcome.loss):
            return rates, losses, _ended("the loss grew too much", rates)
    return rates, losses, f"the highest rate, {test.highest:g}, was reached"


def _ended(what: str, rates: Sequence[float]) -> str:
    return f"{what} at a rate of {rates[-1]:.2g}" if rates else f"{what} in the first step"


def _rise(model: keras.Model, *, test: RateTest, is_own: bool) -> None:
    """Lets the model's learning rate grow. The optimizer of the caller's own model stays as is."""
    found = pure.optimizers_of(model)
    if len(found) != 1 or getattr(model, "optimizer", None) is None:
        raise KerasdistError(
            f"Received a model with {len(found)} optimizers. Expected one, given to "
            "`model.compile`: a range test changes one learning rate. Choose the rates of this "
            "model by hand."
        )
    optimizer = model.optimizer
    if is_own:
        optimizer = _copied(optimizer)
        model.optimizer = optimizer
    optimizer.learning_rate = Rising(test.lowest, test.highest, test.steps)
    if is_own:
        optimizer.build(model.trainable_variables)


def _copied(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except Exception as error:
        raise KerasdistError(
            f"The optimizer cannot be copied: {type(error).__name__}: {first_line(error)}. "
            "Expected one with `get_config`, because the range test must not change yours. Pass a "
            "function that builds and compiles the model."
        ) from error
