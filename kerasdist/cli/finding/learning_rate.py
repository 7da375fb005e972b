"""`kerasdist fit RECIPE --find-lr`: a learning rate range test of the command's training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kerasdist.cli.commands.fit import on_trial
from kerasdist.cli.finding.choice import command, with_values
from kerasdist.cli.fit_arguments import FitOptions
from kerasdist.devices.placement import place
from kerasdist.finders.rate_page import sketch
from kerasdist.finders.rate_test import LearningRates, RateTest, range_test
from kerasdist.phases import prose
from kerasdist.phases.displays import can_redraw
from kerasdist.runs.atomic import as_json

# Where the plots are.
FOLDER = Path("find-lr")
# How many lines show the progress where there is no terminal.
_LINES = 10


def find(options: FitOptions, argv: Sequence[str]) -> int:
    """Runs the test, and shows what it found."""
    training, title, names = on_trial(options)
    placement, test = place(names), RateTest()
    run = options.run
    show = _Progress(test, "json" if run["json"] else "quiet" if run["quiet"] else "")
    size = training.data.batch_size
    show.say(
        f"learning rates of {title} on {', '.join(placement.titles)}"
        f"{'' if size is None else f', batches of {size:,}'}\n"
        f"{test.steps} steps, from {test.lowest:g} to {test.highest:g}; nothing is kept"
    )
    found = range_test(training, placement, test, show.step)
    show.close()
    flag = flag_of(options)
    line = None
    if found.suggestion is not None and flag is not None:
        line = command(with_values(argv, {flag: f"{found.suggestion:g}"}))
    page = found.save(FOLDER / f"{title}.html", title=title, command=line)
    now = current(options)
    if run["json"]:
        print(as_json({**_fields(found), "current": now, "plot": str(page), "command": line}))
    else:
        _tell(found, now, page, line, show)
    return 0


def flag_of(options: FitOptions) -> str | None:
    """The option that sets the learning rate; None if the recipe has no such setting."""
    if "learning_rate" in options.settings:
        return "--learning-rate"
    return "--model.learning-rate" if "learning_rate" in options.model_arguments else None


def current(options: FitOptions) -> float | None:
    """The learning rate that the command would train with; None if no setting says."""
    value = {**options.model_arguments, **options.settings}.get("learning_rate")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _fields(found: LearningRates) -> dict[str, Any]:
    return {
        "event": "learning_rates",
        "suggestion": found.suggestion,
        "reason": found.reason,
        "ended": found.ended,
        "rates": found.rates,
        "losses": found.losses,
        "smoothed": found.smoothed,
    }


def _tell(
    found: LearningRates, now: float | None, page: Path, line: str | None, show: _Progress
) -> None:
    show.say("\n".join(["", *sketch(found), ""]))
    show.say(f"ended       after {len(found.rates)} steps: {found.ended}")
    suggestion = "none" if found.suggestion is None else f"{found.suggestion:g}"
    show.say(f"suggestion  {suggestion}\nbecause     {found.reason}")
    if now is not None:
        hint = "; the test knows only the first steps: compare both" * (found.suggestion != now)
        show.say(f"now         {now:g}{hint}")
    show.say(f"plot        {page}")
    if line is not None:
        show.say(f"train       {line}")
    elif found.suggestion is not None:
        show.say(
            "train       set this learning rate in model.py: the recipe has no setting "
            "`learning_rate`"
        )


class _Progress:
    """Says how far the test is: in one line of a terminal that changes, or in a few lines."""

    def __init__(self, test: RateTest, mode: str):
        self._test, self._mode = test, mode
        self._is_live = not mode and can_redraw(sys.stdout)

    def say(self, text: str) -> None:
        if not self._mode:
            prose.say(text)

    def step(self, number: int, rate: float, loss: float) -> None:
        text = f"step {number} of {self._test.steps}: learning rate {rate:.2g}, loss {loss:.4g}"
        if self._is_live:
            print(f"\r\x1b[K{text}", end="", flush=True)
        elif number % max(1, self._test.steps // _LINES) == 0:
            self.say(text)

    def close(self) -> None:
        if self._is_live:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
