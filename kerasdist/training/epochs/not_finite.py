"""What happens to a step with a NaN or an infinity: it is skipped, or it stops the training."""

from __future__ import annotations

import math
from typing import Any

import keras

from kerasdist.data.feed import Feed
from kerasdist.engine.compiled_loop import Outcome
from kerasdist.errors import DivergedError
from kerasdist.models import pure
from kerasdist.training.epochs.plan import Position
from kerasdist.training.progress.reporter import Reporter

# Steps in a row that a float16 loss scale may skip: it is halved each time, from 2**15 to nothing.
MOST_LEFT_OUT = 50
# Steps in a row that `on_nan="skip"` leaves out.
MOST_SKIPPED = 10


def is_loss_scale(model: keras.Model, outcome: Outcome, left_out: int) -> bool:
    """Whether only the float16 loss scale was too large: it is halved and the step is left out."""
    kind = keras.optimizers.LossScaleOptimizer
    is_scaled = any(isinstance(optimizer, kind) for optimizer in pure.optimizers_of(model))
    return is_scaled and math.isfinite(outcome.loss) and left_out <= MOST_LEFT_OUT


def may_skip(on_nan: str, left_out: int) -> bool:
    return on_nan == "skip" and left_out <= MOST_SKIPPED


def tell_skipped(reporter: Reporter, step: int, outcome: Outcome) -> None:
    reporter.say(f"left out a step that is not finite, after step {step}")
    reporter.event("skipped", after_step=step, names=outcome.not_finite)


def of_epoch(logs: dict[str, Any], at: Position, last_loss: float | None) -> dict[str, Any]:
    """The logs of an epoch: NaN if all its steps were left out, because empty metrics are 0.

    `last_loss` is that of the step with which a `TerminateOnNaN` ended the training.
    """
    if at.left_out and not at.in_epoch:
        logs = {name: value * math.nan for name, value in logs.items()}
    return logs if last_loss is None else {**logs, "loss": last_loss}


def has_loss(logs: dict[str, Any]) -> bool:
    """Whether an epoch can be the best: its loss is finite. A model's own step may return none."""
    loss = logs.get("loss", 0.0)
    return not isinstance(loss, float) or math.isfinite(loss)


def note(step: int, outcome: Outcome, feed: Feed) -> dict[str, Any]:
    """The content of nan.json: the step, the replica, and the batch to look at."""
    return {
        "step": step,
        "replica": outcome.replica,
        "names": outcome.not_finite,
        "data_pass": feed.epoch,
        "batch": feed.position,
        "examples": feed.examples_of_batch(),
    }


def error(step: int, outcome: Outcome, *, skipped: int = 0) -> DivergedError:
    before = f"{skipped} steps in a row were left out. " if skipped else ""
    where = f" on replica {outcome.replica}" if outcome.replica is not None else ""
    return DivergedError(
        f"{before}Step {step} is not finite: its loss is {outcome.loss:g}, and the first bad value "
        f"is in the {outcome.not_finite[0]}{where}. The weights are as they were before this step. "
        "Lower the learning rate, set `clip_norm`, or check the batch.",
        step=step,
        names=outcome.not_finite,
    )
