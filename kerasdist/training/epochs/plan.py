"""How long to train, and where a training is: epochs, steps, and passes over the data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import keras

from kerasdist.runs.checkpoints import Checkpoint
from kerasdist.training import arguments


@dataclass(frozen=True)
class Plan:
    """How long to train.

    As in Keras, `epochs` is the epoch to end with, counted from 0, also after an `initial_epoch`.
    `steps`, if given, decides instead of `epochs`. `num_batches` is the length of one pass over the
    data, if it is known. With `repeats`, an epoch that has more steps than its data continues with
    the next pass. Otherwise it ends there, as in Keras.

    Example:
        >>> plan = Plan(epochs=2, steps_per_epoch=10).over(num_batches=25)
        >>> plan.epoch_steps, plan.steps_left(step=13, step_in_epoch=3)
        (10, 7)
    """

    epochs: int = 1
    steps: int | None = None
    steps_per_epoch: int | None = None
    num_batches: int | None = None
    max_epochs: int | None = None
    initial_epoch: int = 0
    repeats: bool = False

    @classmethod
    def checked(
        cls,
        *,
        epochs: int,
        steps: int | None,
        steps_per_epoch: int | None,
        initial_epoch: int = 0,
        repeats: bool = False,
    ) -> Plan:
        """Checks the numbers, and applies the limits of `keras.config`."""
        arguments.check_counts(epochs=epochs, steps=steps, steps_per_epoch=steps_per_epoch)
        arguments.check_initial_epoch(initial_epoch)
        return cls(
            arguments.capped_epochs(epochs),
            steps,
            arguments.capped_steps("steps_per_epoch", steps_per_epoch),
            max_epochs=keras.config.max_epochs(),
            initial_epoch=initial_epoch,
            repeats=repeats,
        )

    @property
    def num_passes(self) -> int:
        """How many epochs are left to train at the start."""
        return max(self.epochs - self.initial_epoch, 0)

    def over(self, num_batches: int | None) -> Plan:
        """The same plan for data with `num_batches` batches."""
        return dataclasses.replace(self, num_batches=num_batches)

    @property
    def epoch_steps(self) -> int | None:
        """Steps per epoch, if known."""
        return self.steps_per_epoch or self.num_batches

    def is_done(self, epoch: int, step: int) -> bool:
        if self.max_epochs is not None and epoch >= self.max_epochs:
            return True
        return step >= self.steps if self.steps is not None else epoch >= self.epochs

    def reaches(self, epoch: int) -> bool:
        """Whether epochs after this one may be trained. Steps may end before it."""
        ends = [self.max_epochs, None if self.steps is not None else self.epochs]
        return all(end is None or epoch < end for end in ends)

    def has_all_steps(self, step: int) -> bool:
        """Whether a number of steps was asked for, and is reached."""
        return self.steps is not None and step >= self.steps

    def told_if_done(self, at: Position) -> str | None:
        """What is said of a run that has nothing left to train; None if it continues."""
        has_steps = self.steps is not None
        asked, done = (self.steps, at.step) if has_steps else (self.epochs, at.epoch)
        if asked is None or done < asked:
            return None
        unit = "step" if has_steps else "epoch"
        trained = f"{done:,} {unit}{'' if done == 1 else 's'}"
        wish = (
            "" if done == asked else f", and {asked:,} {'was' if asked == 1 else 'were'} asked for"
        )
        return f"the run is already finished at step {at.step}: {trained}{wish}; nothing is trained"

    def pass_of(self, epoch: int) -> int:
        """The pass over the data with which a training that starts at `epoch` begins."""
        if self.steps_per_epoch is None or self.num_batches is None:
            return epoch
        epochs_per_pass = -(-self.num_batches // self.steps_per_epoch)
        return -(-epoch // epochs_per_pass)

    def steps_left(self, step: int, step_in_epoch: int) -> int | None:
        """How many steps the epoch still has; None if only the data decides."""
        of_plan = None if self.steps is None else self.steps - step
        of_epoch = None if self.steps_per_epoch is None else self.steps_per_epoch - step_in_epoch
        return min((left for left in (of_plan, of_epoch) if left is not None), default=None)


@dataclass
class Position:
    """Where a training is: its steps, its epoch, the steps in this epoch, its examples.

    `left_out` counts steps in a row that were not finite. `logs` are the metrics of the last epoch.
    """

    step: int = 0
    epoch: int = 0
    in_epoch: int = 0
    examples: int = 0
    left_out: int = 0
    learning_rate: float | None = None
    logs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, saved: Checkpoint) -> Position:
        meta = saved.meta
        return cls(
            step=saved.step,
            epoch=meta["epoch"],
            in_epoch=meta["step_in_epoch"],
            examples=meta["examples"],
            left_out=meta["left_out"],
            learning_rate=meta.get("learning_rate"),
            logs=meta["logs"],
        )

    def meta(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step_in_epoch": self.in_epoch,
            "examples": self.examples,
            "left_out": self.left_out,
            "learning_rate": self.learning_rate,
            "logs": self.logs,
        }

    def advance(self, num_steps: int, num_examples: int, learning_rate: float) -> None:
        """Counts steps that were written."""
        self.step += num_steps
        self.in_epoch += num_steps
        self.examples += num_examples
        if num_steps:
            self.left_out = 0
            # As the caller gave it: 0.001, not the 17 digits of the nearest float32.
            self.learning_rate = float(f"{learning_rate:.7g}")

    def end_of_data(self, wanted: int | None, *, ran_out: bool) -> str:
        """What is said of an epoch that ends before its `wanted` steps."""
        of = "" if wanted is None else f" of its {wanted}"
        text = f"the data ended after {self.in_epoch}{of} steps of epoch {self.epoch + 1}. "
        if ran_out:
            return text + (
                "It is a generator, which cannot be read again, so the training ends here. (Keras "
                "would continue with the generator's first two batches.) Ask for fewer steps, or "
                "pass the generator function itself."
            )
        return text + (
            "The epoch ends there and the next one starts the data again, as in Keras. Give "
            "`steps_per_epoch` that divides the number of batches, or repeat the data."
        )
