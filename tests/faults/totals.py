"""What the harness counts: kills that arrived, where they fell, how the runs ended."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.faults.strikes import ANY, MOMENTS, Place, Strike, Subject

SAME, OTHER, STUCK = "undisturbed weights", "other weights", "could not go on"


@dataclass
class Outcome:
    """How a run ended that was struck."""

    place: Place
    strikes: list[Strike] = field(default_factory=list)
    misses: int = 0
    ending: str = STUCK
    num_again: int = 0
    num_twice: int = 0
    each_once: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> list[Strike]:
        return [s for s in self.strikes if s.arrived]


class Totals:
    """Counts over runs, and the failures."""

    def __init__(self, subject: Subject, number: int, seed: int, wanted: int):
        self.outcomes: list[Outcome] = []
        self._about = {
            "subject": subject.name,
            "signal": signal.Signals(number).name,
            "seed": seed,
            "runs_wanted": wanted,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
            "versions": _versions(),
        }
        self._began = time.monotonic()

    def as_dict(self) -> dict[str, Any]:
        outcomes = self.outcomes
        kills = [kill for outcome in outcomes for kill in outcome.kills]
        aimed = Counter(kill.aim.moment for kill in kills)
        fell = Counter(kill.moment for kill in kills)
        endings = Counter(outcome.ending for outcome in outcomes)
        return {
            **self._about,
            "runs": len(outcomes),
            "runs_killed": sum(bool(outcome.kills) for outcome in outcomes),
            "kills": len(kills),
            "kills_by_moment": {moment: fell[moment] for moment in MOMENTS},
            "kills_by_aim": {moment: aimed[moment] for moment in (*MOMENTS, ANY) if aimed[moment]},
            "ended_before_the_signal": sum(outcome.misses for outcome in outcomes),
            "endings": {ending: endings[ending] for ending in (SAME, OTHER, STUCK)},
            "each_example_once_an_epoch": sum(outcome.each_once for outcome in outcomes),
            "examples_twice_in_an_epoch": sum(outcome.num_twice for outcome in outcomes),
            "steps_done_again": sum(outcome.num_again for outcome in outcomes),
            "passed": sum(not outcome.problems for outcome in outcomes),
            "failures": [
                {"folder": str(outcome.place.folder), "problems": outcome.problems}
                for outcome in outcomes
                if outcome.problems
            ],
            "minutes": round((time.monotonic() - self._began) / 60, 1),
        }

    def line(self) -> str:
        totals = self.as_dict()
        return (
            f"{totals['passed']} of {totals['runs']} runs as undisturbed; {totals['kills']} kills: "
            + ", ".join(f"{count} {moment}" for moment, count in totals["kills_by_moment"].items())
        )

    def table(self) -> str:
        """Two columns, for docs/runs.md."""
        totals = self.as_dict()
        rows = [
            ("runs, each killed at least once", totals["runs_killed"]),
            ("kills that arrived", totals["kills"]),
            *((f"- {moment}", count) for moment, count in totals["kills_by_moment"].items()),
            *((f"ended with {e}" if e != STUCK else e, n) for e, n in totals["endings"].items()),
            ("each example seen exactly once an epoch", totals["each_example_once_an_epoch"]),
            ("examples seen twice in an epoch, all runs", totals["examples_twice_in_an_epoch"]),
            ("steps that were lost and done again, all runs", totals["steps_done_again"]),
            ("nothing differs from the undisturbed run", totals["passed"]),
        ]
        lines = [f"| {totals['signal']} | {totals['subject']} |", "|---|---|"]
        return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def _versions() -> dict[str, str]:
    import kerasdist

    names = ("tensorflow", "keras")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), "kerasdist": kerasdist.__version__, **found}
