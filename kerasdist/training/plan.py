"""How long to train: epochs, steps, and passes over the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How long to train."""

    epochs: int
    steps: int | None
    steps_per_epoch: int | None
    num_batches: int | None
    max_epochs: int | None = None

    @property
    def epoch_steps(self) -> int | None:
        return self.steps_per_epoch or self.num_batches

    def is_done(self, epoch: int, step: int) -> bool:
        if self.max_epochs is not None and epoch >= self.max_epochs:
            return True
        return step >= self.steps if self.steps is not None else epoch >= self.epochs

    def pass_of(self, epoch: int) -> int:
        """The pass over the data that a training begins with which begins at `epoch`."""
        if self.steps_per_epoch is None or self.num_batches is None:
            return epoch
        epochs_per_pass = -(-self.num_batches // self.steps_per_epoch)
        return -(-epoch // epochs_per_pass)

    def steps_left(self, step: int, step_in_epoch: int) -> int:
        left = self.steps - step if self.steps is not None else 2**40
        if self.steps_per_epoch is not None:
            left = min(left, self.steps_per_epoch - step_in_epoch)
        return left
