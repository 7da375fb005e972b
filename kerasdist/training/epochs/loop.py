"""The loop of a training: epochs and calls of the compiled step, in the order they happen."""

from __future__ import annotations

import time
from typing import Any

from kerasdist.data.feed import Feed
from kerasdist.engine.compiled_loop import END_OF_DATA, NOT_FINITE, Outcome
from kerasdist.engine.engine import Engine
from kerasdist.models import pure
from kerasdist.runs.checkpoints import Checkpoint
from kerasdist.runs.checkpoints.contents import Snapshot
from kerasdist.runs.intervals import at_most
from kerasdist.training.epochs import not_finite
from kerasdist.training.epochs.callbacks import Hooks
from kerasdist.training.epochs.plan import Plan, Position
from kerasdist.training.epochs.signals import Interrupts, raise_for
from kerasdist.training.epochs.validation import metric_results, reset_metrics
from kerasdist.training.progress import listener
from kerasdist.training.progress.watch import Watch
from kerasdist.training.run import Run
from kerasdist.training.stages import TakenOver


class Loop:
    """Trains epoch after epoch; between two calls it logs, saves and hears signals.

    `begin`, then `train_epoch` and `end_epoch` while there are epochs left, then `end`.
    """

    def __init__(
        self,
        engine: Engine,
        feed: Feed,
        plan: Plan,
        hooks: Hooks,
        run: Run,
        watch: Watch,
        *,
        on_nan: str = "stop",
    ):
        self._engine, self._feed, self._plan, self._hooks = engine, feed, plan, hooks
        self._run, self._watch, self._on_nan = run, watch, on_nan
        self._is_chief = engine.placement.is_chief
        self._signal: int | None = None
        self._ran_out = self._has_told_end = False
        self._last_loss: float | None = None  # Of the step that a `TerminateOnNaN` ended with.
        self.signals = Interrupts()
        watch.reporter.on_lost_reader = self.signals.lose_reader
        self.at = Position()

    @property
    def step(self) -> int:
        return self.at.step

    def begin(self, saved: Checkpoint | None, taken: TakenOver | None = None) -> None:
        """Goes to the start, to where a checkpoint was taken, or to the end of an earlier stage."""
        model = self._engine.model
        if taken is not None:
            self._take_over(taken)
        elif saved is None:
            self._feed.open(0)
            self._run.rewind(0, 0)  # A run may have been killed before its first checkpoint.
            self._watch.rewind(0, epoch_ended=False)
        else:
            self._continue_from(saved)
        model.stop_training = False
        model.history = self._hooks.history
        self._hooks.call("on_train_begin")
        if saved is None:
            restored = pure.initial_epoch(model)  # By `BackupAndRestore`.
            first = self._plan.initial_epoch if taken is None else taken.at.epoch
            self.at.epoch = restored or first
            # Where the order depends on (seed, epoch), a given first epoch has its own order. Other
            # data starts with its first pass, as in Keras.
            is_ordered = self._feed.stream.arrays is not None
            self._feed.open(self._plan.pass_of(self.at.epoch) if restored or is_ordered else 0)
        else:
            told = self._hooks.restore(saved.arrays)
            if told is not None:
                self._watch.reporter.say(told)
            self._hooks.history.history = saved.meta["history"]
            self._hooks.history.epoch = saved.meta["history_epochs"]
            if saved.meta["stopped"]:
                self._hooks.stop_again(early=saved.meta.get("stopped_early"))
        if taken is not None:
            self._hooks.history.history = taken.history
            self._hooks.history.epoch = taken.epochs

    def has_epochs_left(self) -> bool:
        is_done = self._plan.is_done(self.at.epoch, self.at.step)
        return not (is_done or self._hooks.stop or self._ran_out)

    def train_epoch(self) -> dict[str, Any]:
        """Trains one epoch, or the rest of one, and returns its metrics."""
        if self.at.in_epoch == 0:  # Otherwise the run was resumed within the epoch.
            self._hooks.call("on_epoch_begin", self.at.epoch)
            reset_metrics(self._engine)
        self._watch.reporter.begin_epoch(self.at.epoch, self.at.step, self.at.in_epoch)
        self._watch.meter.restart()
        self._train_steps()
        self._watch.profile.end_epoch()
        logs = not_finite.of_epoch(metric_results(self._engine), self.at, self._last_loss)
        self._watch.reporter.metrics(logs)
        return logs

    def end_epoch(self, logs: dict[str, Any], *, can_be_best: bool = True) -> None:
        """Keeps the best model, calls the callbacks, logs the epoch, saves."""
        at = self.at
        at.logs = logs
        # The loss of an epoch without steps is 0: it would be the best.
        if at.in_epoch and can_be_best and not_finite.has_loss(logs):
            self._run.keep_best(self._engine, logs, epoch=at.epoch + 1, step=at.step)
        epochs = None if self._plan.steps else self._plan.epochs
        try:
            at.logs = self._hooks.end_epoch(at.epoch, logs)
        finally:  # An epoch is logged also if a callback fails.
            self._watch.epoch(at.step, at.epoch, epochs, at.logs, at.learning_rate)
        at.epoch += 1
        at.in_epoch = 0
        self._watch.tell_placement()
        self._run.write_page()
        self._save_if_due(epoch_ended=True)

    def end(self) -> None:
        """Saves the end of the run, and ends the training as Keras does."""
        self._run.save_last(self._engine, self._snapshot)
        model, state = self._engine.model, self._engine.state
        state.write_back()
        # Keras: `use_ema` puts the averages into the caller's model. Checkpoints, and the hash of
        # the weights, keep the raw ones.
        self._run.note_raw_weights(model)
        if model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        state.refresh("trainable")
        self._hooks.call("on_train_end", dict(self.at.logs))

    def last_signal(self) -> int:
        """A signal that no step followed, to any worker; 0 if there was none."""
        return int(self._engine.placement.of_all(self.signals.received or 0).max())

    def result(self) -> dict[str, Any]:
        """The content of result.json, but for the weights."""
        rate, _ = self._watch.meter.rates()
        return {
            "status": "finished",
            "steps": self.at.step,
            "epochs": self.at.epoch,
            "examples_seen": self.at.examples,
            **self.at.logs,
            "examples_per_second": round(rate, 3),
            "devices": list(self._engine.placement.titles),
        }

    def _train_steps(self) -> None:
        while self._has_steps_left() and not self._hooks.stop:
            outcome = self._call()
            self._count(outcome)
            if outcome.status == NOT_FINITE:
                self._not_finite(outcome)
                self._feed.advance(1)
            is_over = outcome.status == END_OF_DATA and self._feed.is_over()
            if is_over and self._end_pass():
                return
            self._save_if_due()
        if self._plan.steps_per_epoch is not None and self._feed.is_at_end():
            self._feed.open(self._feed.epoch + 1)

    def _steps_left(self) -> int | None:
        return self._plan.steps_left(self.at.step, self.at.in_epoch)

    def _has_steps_left(self) -> bool:
        left = self._steps_left()
        return left is None or left > 0

    def _call(self) -> Outcome:
        """Calls the compiled loop for as many steps as fit before something else is due."""
        if not self._feed.is_at_end():
            self._hooks.batch("on_train_batch_begin", self.at.in_epoch)
        wanted, is_observed = self._agree(
            self._steps_per_call(), self._watch.is_observed(self.at.step + 1)
        )
        self._watch.begin_call(is_observed=is_observed)
        calls = self._engine.calls
        calls.begin("observed step" if is_observed else "train")
        began = time.perf_counter()
        with self._watch.compiling(is_observed=is_observed):
            if is_observed:
                outcome = self._engine.train_observed(self._feed.batches)
            else:
                outcome = self._engine.train(self._feed.batches, wanted)
        calls.end(outcome.num_steps)
        self._watch.end_call(time.perf_counter() - began, outcome, is_observed=is_observed)
        return outcome

    def _steps_per_call(self) -> int:
        if self._engine.takes_one_batch_a_call:
            return 1
        until_save = self._run.steps_until_save(self.at.step)
        if self._hooks.every_train_batch:
            together = self._hooks.until_batch_end(self.at.in_epoch)
            return at_most(together, until_save, self._steps_left())
        in_time = self._watch.steps_per_call(self.at.step)
        return at_most(in_time, until_save, self._steps_left())

    def _agree(self, wanted: int, is_observed: bool) -> tuple[int, bool]:
        """What the chief wants of the next call. A signal to any worker counts for all of them."""
        own = self.signals.received or 0
        said = self._engine.placement.of_all(wanted, is_observed, own)
        self._signal = int(said[:, 2].max()) or None
        return int(said[0, 0]), bool(said[0, 1])

    def _count(self, outcome: Outcome) -> None:
        """Counts and reports the steps of a call."""
        self.at.advance(outcome.num_steps, outcome.num_examples, outcome.learning_rate)
        self._feed.advance(outcome.num_steps)
        if outcome.num_steps:
            self._watch.step(self.at.step, self.at.in_epoch, outcome, self.at.learning_rate)
            if self._hooks.every_train_batch:
                logs = metric_results(self._engine)
                index = self._hooks.index_of_batch_end(self.at.in_epoch)
                self._hooks.batch("on_train_batch_end", index, logs)

    def _not_finite(self, outcome: Outcome) -> None:
        """Skips a step that is not finite, if that is allowed; otherwise raises."""
        self.at.left_out += 1
        if not_finite.is_loss_scale(self._engine.model, outcome, self.at.left_out):
            return
        # The metrics do not contain this step. Its loss is what the epoch's log must show.
        logs = {**metric_results(self._engine), "loss": outcome.loss}
        if self._hooks.accept_not_finite(self.at.in_epoch, logs):
            self._last_loss = outcome.loss
            return
        if not_finite.may_skip(self._on_nan, self.at.left_out):
            not_finite.tell_skipped(self._watch.reporter, self.at.step, outcome)
            return
        step = self.at.step + 1
        self._run.note_not_finite(**not_finite.note(step, outcome, self._feed))
        raise not_finite.error(step, outcome, skipped=self.at.left_out - 1)

    def _end_pass(self) -> bool:
        """Goes to the next pass over the data. True if the epoch ends here, as it does in Keras."""
        wanted, stream = self._plan.steps_per_epoch, self._feed.stream
        if not stream.is_one_shot:
            self._feed.open(self._feed.epoch + 1)
            if wanted is None:
                return True
            if self._plan.repeats or (self.at.in_epoch == 0 and not stream.has_empty_epochs):
                return False  # Or the pass ended exactly with the last epoch.
        self._ran_out = stream.is_one_shot
        is_short = wanted is not None or self._plan.steps is not None
        is_short |= self._ran_out and not self._plan.is_done(self.at.epoch + 1, self.at.step)
        if is_short and self._is_chief and not self._has_told_end:
            self._has_told_end = True  # Once: it is the same in every epoch.
            self._watch.reporter.warn(self.at.end_of_data(wanted, ran_out=self._ran_out))
        return True

    def _continue_from(self, saved: Checkpoint) -> None:
        self._engine.state.restore(saved.arrays)
        self.at = Position.of(saved)
        self._run.best_value = saved.meta["best"]
        self._feed.open(saved.meta["pass"], saved.meta["position"])
        self._hooks.rewind_logs(self.at.epoch)
        done = self._plan.told_if_done(self.at)
        self._run.rewind(self.at.step, self.at.epoch, is_done=done is not None)
        self._watch.rewind(self.at.step, epoch_ended=self.at.in_epoch == 0)
        told = done or f"continuing after step {self.at.step}"
        self._watch.reporter.say(f"{told} ({saved.path.name})")
        self._watch.reporter.event("resume", step=self.at.step)

    def taken_over(self) -> TakenOver:
        """What the next stage takes over from this one."""
        history = self._hooks.history
        return TakenOver(self.at, history.history, history.epoch, self._run.best_value)

    def _take_over(self, taken: TakenOver) -> None:
        self.at = taken.at
        self._run.best_value = taken.best
        self._feed.open(0)
        self._hooks.rewind_logs(self.at.epoch)
        self._watch.rewind(self.at.step, epoch_ended=True)

    def _snapshot(self) -> Snapshot:
        history = self._hooks.history
        meta = {
            **self.at.meta(),
            "pass": self._feed.epoch,
            "position": self._feed.position,
            "history": history.history,
            "history_epochs": history.epoch,
            "stopped": self._hooks.stop,
            "stopped_early": self._hooks.stopped_early,
            "best": self._run.best_value,
        }
        return Snapshot(
            self.at.step, lambda: self._engine.state.snapshot() | self._hooks.state(), meta
        )

    def _is_epoch_over(self) -> bool:
        """Whether the epoch is known to end here. A stream may not say so in advance."""
        if not self._has_steps_left() or self._hooks.stop:
            return True
        return self._plan.steps_per_epoch is None and self._feed.is_at_end()

    def _save_if_due(self, *, epoch_ended: bool = False) -> None:
        """Between two calls: saves if it is time, and stops here if a signal asked for it."""
        if self._engine.placement.workers is None:
            self._signal = self.signals.received
        if self._signal is not None:
            self._run.save_last(self._engine, self._snapshot)
            saved = f"saved after step {self.at.step}; the same command continues"
            listener.say(self._watch.reporter, saved)
            self._engine.placement.wait()  # The other workers leave once the chief has saved.
            raise_for(self._signal)
        # A checkpoint at an epoch's last step waits for the epoch's end: what validation and
        # callbacks do there belongs to it.
        if epoch_ended or not self._is_epoch_over():
            self._run.save_if_due(self._snapshot, epoch_ended=epoch_ended)
