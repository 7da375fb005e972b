"""When something is due again: every few steps, every few seconds, or at the end of each epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kerasdist.errors import KerasdistError


@dataclass(frozen=True)
class Every:
    """How often something happens: when the first of these is due. `Every()` means never.

    The object holds no clock and no state. The caller knows the step, the seconds since the last
    time, and whether an epoch has just ended.

    Attributes:
        steps: After every so many steps, counted from the start of the run.
        seconds: When at least so many seconds have passed since the last time.
        epoch: At the end of each epoch.

    Example:
        >>> every = Every(steps=10)
        >>> [step for step in range(25) if every.is_due(step)]
        [10, 20]
        >>> every.steps_left(13)
        7
    """

    steps: int | None = None
    seconds: float | None = None
    epoch: bool = False

    @classmethod
    def parse(cls, value: int | str, option: str) -> Every:
        """Reads `500`, `"500"` (steps), `"30s"` (seconds), `"epoch"`, or several: `"500,30s"`.

        Args:
            value: What the user gave.
            option: The name of the option, for the error message.

        Example:
            >>> Every.parse("30s", "save_every").seconds
            30.0
        """
        found: dict[str, float | bool] = {}
        for text in str(value).lower().split(","):
            name, number = _read(text.strip())
            if isinstance(value, bool) or not name or name in found:
                raise KerasdistError(
                    f"Received `{option}={value!r}`. Expected a number of steps, seconds like "
                    f"'30s', or 'epoch'. For example, use `{option}='60s'`."
                )
            if number <= 0:
                raise KerasdistError(
                    f"Received `{option}={value!r}`. Expected more than 0. For example, use "
                    f"`{option}=500`."
                )
            found[name] = number
        steps, seconds = found.get("steps"), found.get("seconds")
        return cls(None if steps is None else int(steps), seconds, "epoch" in found)

    def is_due(self, step: int, *, waited: float = 0.0, epoch_ended: bool = False) -> bool:
        """Whether it is due now.

        Args:
            step: The number of steps done so far. Nothing is due by steps before the first one.
            waited: Seconds since the last time.
            epoch_ended: Whether the step was the last one of its epoch.
        """
        if self.epoch and epoch_ended:
            return True
        if self.seconds is not None and waited >= self.seconds:
            return True
        return self.steps is not None and step > 0 and step % self.steps == 0

    def steps_left(self, step: int) -> int | None:
        """How many steps may run after `step` until it is due by steps; None for never."""
        return None if self.steps is None else self.steps - step % self.steps


def _read(text: str) -> tuple[str, float]:
    """Which attribute of `Every` a text sets, and its number; no name if it sets none."""
    if text == "epoch":
        return "epoch", 1
    if not re.fullmatch(r"\d+|\d+(\.\d+)?s", text):
        return "", 0
    return "seconds" if text.endswith("s") else "steps", float(text.rstrip("s"))


def at_most(count: int, *limits: int | None) -> int:
    """The smallest of a count and its limits, where None is no limit.

    Example:
        >>> at_most(100, Every(steps=10).steps_left(13), Every().steps_left(13))
        7
    """
    return min([count, *(limit for limit in limits if limit is not None)])
