"""Processes that train in turns, round by round, so other work slows all of them alike."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Contestant:
    """A process that trains, and the timings it reported."""

    name: str
    devices: int
    process: subprocess.Popen
    steps: int
    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    first_round: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.name} on {self.devices}"

    @property
    def milliseconds(self) -> float:
        return 1e3 * statistics.median(self.seconds) / self.steps

    def answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.title} ended: {self.process.wait()}")
        return json.loads(line)

    def go(self) -> dict[str, float]:
        print("go", file=self.process.stdin, flush=True)
        answer = self.answer()
        self.seconds.append(answer["seconds"])
        self.memory = int(answer["memory"])
        return answer


def launch(command: Sequence[str], name: str, devices: int, steps: int) -> Contestant:
    """Starts a contestant. It prints a line of JSON after each round (`contestants.Rounds`)."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    return Contestant(name, devices, process, steps)


def stop(contestants: Sequence[Contestant]) -> None:
    for contestant in contestants:
        contestant.process.kill()
        contestant.process.wait()


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """The median of the times of `one` ÷ those of `other`, round by round."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def of_times(one: Contestant, other: Contestant) -> float:
    """The time of `one` ÷ that of `other`."""
    return ratio(one.seconds, other.seconds)
