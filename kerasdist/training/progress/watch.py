"""What a training shows and measures between two calls of the compiled loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kerasdist.engine.compiled_loop import SECONDS_PER_CALL, Outcome
from kerasdist.engine.engine import Engine
from kerasdist.phases.text import duration
from kerasdist.runs.intervals import Every, at_most
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.epochs.validation import metric_results
from kerasdist.training.options import WatchOptions
from kerasdist.training.progress.meter import Meter, Reading
from kerasdist.training.progress.placement_log import PlacementLog
from kerasdist.training.progress.profile import Profile
from kerasdist.training.progress.tensorboard import FOLDER, Summaries
from kerasdist.training.run import Run

# An epoch that is longer than both together is told from a part of it: the steps of so many
# seconds, after those of so many.
_SECONDS_LEFT_OUT, _SECONDS_MEASURED = 1.0, 2.0
# A log in which nobody asked for lines of steps has one after so many seconds without any line.
_SECONDS_OF_SILENCE = 30.0
# Data that has not ended after so many seconds of training may never end.
_SECONDS_WITHOUT_END = 60.0


class Watch:
    """Display or lines, rates, TensorBoard summaries, a profile, and the placement of operations.

    It also decides how many steps one call takes: signals, logs and callbacks wait for its end.
    """

    def __init__(self, options: WatchOptions, run: Run):
        self.reporter = options.reporter
        self.meter = Meter()
        self.profile = Profile(_profile_folder(options, run.path), options.reporter)
        self._run = run
        self._logging = Every(steps=options.log_every)
        self._summaries = Summaries(
            run.path, Every(steps=options.summary_every), options.reporter.warn
        )
        self._placement = PlacementLog() if options.log_placement else None
        self._at_step = self._at_epoch = self.meter.reading()
        self._seconds_per_step: float | None = None
        self._compiled: set[bool] = set()
        self._tells_epoch = options.tells_epoch
        self._late: Reading | None = None
        self._epoch_steps: int | None = None
        self._may_be_endless = False
        self._says_steps = options.log_every is None and options.reporter.mode == "lines"
        self._said_at = time.monotonic()

    def close(self) -> None:
        self._summaries.close()
        if self._placement is not None:
            self._placement.close()

    @contextlib.contextmanager
    def training(self, plan: Plan, engine: Engine) -> Iterator[None]:
        """Has a display, where there is one, until the training ends."""
        self._epoch_steps = plan.epoch_steps
        self._may_be_endless = plan.epoch_steps is None and plan.steps is None
        with self.reporter.training(
            epochs=plan.epochs,
            steps=plan.steps,
            epoch_steps=plan.epoch_steps,
            read_metrics=lambda: metric_results(engine),
        ):
            try:
                yield
            finally:
                self.profile.close()

    def rewind(self, step: int, *, epoch_ended: bool) -> None:
        """Removes the summaries of steps that will be trained again."""
        self._summaries.rewind(step, epoch_ended=epoch_ended)

    def is_observed(self, step: int) -> bool:
        """Whether a step is to be observed for a summary."""
        return self._summaries.is_due(step)

    def steps_per_call(self, step: int) -> int:
        """How many steps may follow `step` in one call."""
        if self._seconds_per_step is None:
            return 1
        in_time = max(1, int(SECONDS_PER_CALL / max(self._seconds_per_step, 1e-6)))
        return at_most(
            in_time,
            self.profile.most_steps_per_call,
            self._logging.steps_left(step),
            self._summaries.steps_before_due(step),
        )

    def compiling(self, *, is_observed: bool) -> contextlib.AbstractContextManager[None]:
        """Says that a call of the compiled loop compiles, if it is the first of its kind."""
        if is_observed in self._compiled:
            return contextlib.nullcontext()
        what = "compiling the first step"
        if self._compiled:
            what = "compiling a step with a summary" if is_observed else "compiling the steps"
        return self.reporter.waiting(what)

    def begin_call(self, *, is_observed: bool) -> None:
        """Just before a call of the compiled loop."""
        is_steady = self._seconds_per_step is not None and not is_observed
        self.profile.begin_call(is_steady=is_steady)

    def end_call(self, seconds: float, outcome: Outcome, *, is_observed: bool) -> None:
        """Just after it."""
        if is_observed not in self._compiled:  # This call traced and compiled.
            self._compiled.add(is_observed)
            self.meter.restart()
        elif outcome.num_steps:
            self.meter.add(outcome.num_steps, outcome.num_examples, outcome.waited)
            if not is_observed:
                self._seconds_per_step = seconds / outcome.num_steps
        self.profile.end_call(outcome.num_steps)

    def step(
        self, step: int, step_in_epoch: int, outcome: Outcome, learning_rate: float | None
    ) -> None:
        """After steps: the log line if one is due, the display, the summary."""
        if self._logging.is_due(step):
            rate, seconds = self.meter.rates()
            self.reporter.step(step, outcome.loss, rate, seconds)
            rates, self._at_step = self._rates(self._at_step, learning_rate), self.meter.reading()
            rates["examples_per_second"] = round(rate, 3)
            self._run.log(kind="step", step=step, loss=outcome.loss, **rates)
        elif self._says_steps and time.monotonic() - self._said_at >= _SECONDS_OF_SILENCE:
            self._said_at = time.monotonic()
            self.reporter.step(step, outcome.loss, *self.meter.rates())
        self.reporter.advance(step, step_in_epoch, self.meter)
        self._tell_long_epoch()
        self._tell_open_epoch(step_in_epoch)
        if outcome.seen is not None and self._run.has_folder():
            self._summaries.step(step, outcome.seen, self.meter)

    def epoch(
        self,
        step: int,
        epoch: int,
        epochs: int | None,
        logs: Mapping[str, Any],
        learning_rate: float | None,
    ) -> None:
        """At the end of an epoch: the line, the log, the summary."""
        self.reporter.epoch(epoch, epochs, logs)
        self._may_be_endless, self._said_at = False, time.monotonic()
        whole = self.meter.reading().since(self._at_epoch)
        if whole.steps == self._epoch_steps:  # Not so if a step compiled.
            self._tell_epoch(whole.seconds)
        rates, self._at_epoch = self._rates(self._at_epoch, learning_rate), self.meter.reading()
        self._run.log(kind="epoch", **{"step": step, "epoch": epoch + 1, **rates, **logs})
        if self._run.has_folder():
            self._summaries.epoch(step, logs)

    def _tell_long_epoch(self) -> None:
        """Tells it from some steps of the epoch, but not from the first ones.

        Their batches were read while the first step compiled.
        """
        now = self.meter.reading()
        if not self._tells_epoch or not self._epoch_steps or now.seconds < _SECONDS_LEFT_OUT:
            return
        if self._late is None:
            self._late = now
        measured = now.since(self._late)
        if measured.seconds >= _SECONDS_MEASURED:
            self._tell_epoch(self._epoch_steps * measured.seconds / measured.steps)

    def _tell_open_epoch(self, steps: int) -> None:
        """Tells once that the data has not ended, if nothing says when it will."""
        if self._may_be_endless and self.meter.reading().seconds >= _SECONDS_WITHOUT_END:
            self._may_be_endless = False
            self.reporter.say(
                f"the first epoch has {steps:,} steps so far, and nothing says when the data ends; "
                "if it never ends, pass `steps_per_epoch`"
            )

    def _tell_epoch(self, seconds: float) -> None:
        """Tells once how long an epoch takes."""
        if self._tells_epoch:
            self._tells_epoch = False
            text = f"{seconds:.2g} s" if seconds < 60 else duration(seconds)
            self.reporter.say(f"an epoch takes about {text}, without validation")

    def tell_placement(self) -> None:
        """Tells once where the operations ran, if that was asked for."""
        if self._placement is not None:
            self._placement.tell(self.reporter.say, self._run.path)

    def _rates(self, since: Reading, learning_rate: float | None) -> dict[str, Any]:
        """The learning rate, and the share of time spent waiting for batches, if measured."""
        waited = self.meter.reading().since(since).share_waited
        known = {} if math.isnan(waited) else {"input_wait": round(waited, 4)}
        return {"learning_rate": learning_rate, **known}


def _profile_folder(options: WatchOptions, run: Path | None) -> Path | None:
    if isinstance(options.profile, bool) or options.profile is None:
        return run / FOLDER if options.profile and run is not None else None
    return Path(options.profile).expanduser()
