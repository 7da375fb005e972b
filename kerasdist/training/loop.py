"""Epochs and steps around the engine: training, validation, callbacks and logs."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.data.feed import Feed
from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled_loop import END_OF_DATA, NOT_FINITE, SECONDS_PER_CALL, Outcome
from kerasdist.engine.engine import Engine
from kerasdist.errors import DivergedError, KerasdistError
from kerasdist.models import pure
from kerasdist.runs import ownership
from kerasdist.runs.checkpoints import Checkpoint
from kerasdist.runs.checkpoints.recovery import Recovery
from kerasdist.runs.file_names import METRICS, NAN_NOTE
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.intervals import at_most
from kerasdist.runs.trained_model import weights_sha256
from kerasdist.training.best_model import BestModel
from kerasdist.training.callbacks import Hooks
from kerasdist.training.plan import Plan
from kerasdist.training.progress.bar import Reading
from kerasdist.training.progress.profile import Profile
from kerasdist.training.progress.reporter import Meter, Reporter
from kerasdist.training.progress.tensorboard import Summaries
from kerasdist.training.signals import Interrupts, raise_for
from kerasdist.training.validation import metric_results, reset_metrics

# Steps in a row that a float16 loss scale may skip: it is halved each time, from 2**15 to nothing.
MOST_LEFT_OUT = 50
# Steps in a row that `on_nan="skip"` leaves out.
MOST_SKIPPED = 10


class Loop:
    """Epochs and steps around the engine, and what is told about them."""

    def __init__(
        self,
        engine: Engine,
        feed: Feed,
        plan: Plan,
        hooks: Hooks,
        reporter: Reporter,
        folder: RunFolder | None,
        log_every: int | None,
        summaries: Summaries,
        recovery: Recovery | None = None,
        on_nan: str = "stop",
        monitor: str | None = None,
        saved: Checkpoint | None = None,
        on_epoch: Callable[[], None] | None = None,
        profile: Profile | None = None,
        can_stop: bool = False,
    ):
        self._engine, self._feed, self._plan, self._hooks = engine, feed, plan, hooks
        self._reporter, self._folder, self._log_every = reporter, folder, log_every
        self._recovery, self._on_nan = recovery, on_nan
        self._saved, self._summaries, self._on_epoch = saved, summaries, on_epoch
        self._profile = profile or Profile(None, reporter)
        self._best = BestModel(engine, folder, monitor, self._attempt)
        self._unwritten_log: deque[dict[str, Any]] = deque()
        self._interrupts, self._can_stop = Interrupts(), can_stop
        self._signal: int | None = None
        self._meter = Meter()
        self._logged_step = self._logged_epoch = self._meter.reading()
        self._learning_rate: float | None = None
        self._seconds_per_step: float | None = None
        self._compiled: set[bool] = set()
        self._left_out = 0
        self._ran_out = self._has_told_end = False
        self._raw_digest: str | None = None
        self._in_epoch = 0
        self.step = 0
        self.epoch = 0
        self.examples = 0
        self.logs: dict[str, Any] = {}

    def train(self, validate: Callable[[], dict[str, Any]]) -> None:
        with contextlib.ExitStack() as stack:
            if self._can_stop:
                stack.enter_context(self._interrupts.watching())
            stack.enter_context(
                self._reporter.training(
                    epochs=self._plan.epochs,
                    steps=self._plan.steps,
                    epoch_steps=self._plan.epoch_steps,
                    read_metrics=lambda: metric_results(self._engine),
                )
            )
            stack.callback(self._profile.close)
            self._train(validate)

    def _train(self, validate: Callable[[], dict[str, Any]]) -> None:
        saved = self._saved
        self._go_to_start(saved)
        self._engine.model.stop_training = False
        self._engine.model.history = self._hooks.history
        self._hooks.call("on_train_begin")
        if saved is None:
            self.epoch = pure.initial_epoch(self._engine.model)
            self._feed.open(self._plan.pass_of(self.epoch))
        else:
            self._hooks.restore(saved.arrays)
            self._hooks.history.history = saved.meta["history"]
            self._hooks.history.epoch = saved.meta["history_epochs"]
            self._engine.model.stop_training = saved.meta["stopped"]
        while not self._is_done():
            if self._in_epoch == 0:  # Else the run was resumed within the epoch.
                self._hooks.call("on_epoch_begin", self.epoch)
                reset_metrics(self._engine)
            self._reporter.begin_epoch(self.epoch, self.step, self._in_epoch)
            self._train_epoch()
            self.logs = metric_results(self._engine)
            self._reporter.metrics(self.logs)
            self.logs |= {f"val_{name}": value for name, value in validate().items()}
            self._reporter.epoch(
                self.epoch, None if self._plan.steps else self._plan.epochs, self.logs
            )
            rates, self._logged_epoch = self._rates(self._logged_epoch), self._meter.reading()
            names = {"step": self.step, "epoch": self.epoch + 1}
            self._write_log(kind="epoch", **names, **{**rates, **self.logs})
            if self._has_own_folder():
                self._summaries.epoch(self.step, self.logs)
            if self._in_epoch:  # Else the loss of no steps, which is 0, would be the best.
                self._best.keep(self.logs)
            self._hooks.call("on_epoch_end", self.epoch, dict(self.logs))
            self.epoch += 1
            self._in_epoch = 0
            if self._on_epoch is not None:
                self._on_epoch()
            self._save_if_due(epoch_ended=True)
        self._finish_saving()
        self._finalize()
        self._hooks.call("on_train_end", dict(self.logs))

    def _finalize(self) -> None:
        """An optimizer with `use_ema` puts its averages into the weights, as at the end of Keras's
        `fit`: into the caller's model. Checkpoints have the weights themselves to continue from."""
        model, state = self._engine.model, self._engine.state
        state.write_back()
        if self._folder is not None and pure.loss_scale(model.optimizer)[0].use_ema:
            self._raw_digest = weights_sha256(model)
        model.optimizer.finalize_variable_values(model.trainable_variables)
        state.refresh("trainable")

    def _is_done(self) -> bool:
        return self._plan.is_done(self.epoch, self.step) or self._hooks.stop or self._ran_out

    def _train_epoch(self) -> None:
        self._meter.restart()
        while self._plan.steps_left(self.step, self._in_epoch) > 0 and not self._hooks.stop:
            wanted = min(self._plan.steps_left(self.step, self._in_epoch), self._steps_per_call())
            if not self._feed.is_at_end():
                self._hooks.batch("on_train_batch_begin", self._in_epoch)
            wanted, is_observed = self._agree(wanted, self._summaries.is_due(self.step + 1))
            is_steady = self._seconds_per_step is not None and not is_observed
            self._profile.begin_call(is_steady=is_steady)
            began = time.perf_counter()
            if is_observed:
                outcome = self._engine.train_observed(self._feed.batches)
            else:
                outcome = self._engine.train(self._feed.batches, wanted)
            self._took(time.perf_counter() - began, outcome, is_observed)
            self._profile.end_call(outcome.num_steps)
            self.step += outcome.num_steps
            self._in_epoch += outcome.num_steps
            self.examples += outcome.num_examples
            self._feed.advance(outcome.num_steps)
            if outcome.num_steps:
                self._left_out = 0
                # As it was given: 0.001, and not the nearest float32's 17 digits.
                self._learning_rate = float(f"{outcome.learning_rate:.7g}")
                self._log(outcome.loss)
                self._reporter.advance(self.step, self._in_epoch, self._meter)
                if outcome.seen is not None and self._is_chief and self._has_own_folder():
                    self._summaries.step(self.step, outcome.seen, self._meter)
                if self._hooks.every_train_batch:
                    logs = metric_results(self._engine)
                    self._hooks.batch("on_train_batch_end", self._in_epoch - 1, logs)
            if outcome.status == NOT_FINITE:
                self._not_finite(outcome)
                self._feed.advance(1)
            is_over = outcome.status == END_OF_DATA and self._feed.is_over()
            if is_over and self._end_pass():
                return
            self._save_if_due()
        if self._plan.steps_per_epoch is not None and self._feed.is_at_end():
            self._feed.open(self._feed.epoch + 1)

    def _end_pass(self) -> bool:
        """Goes to the next pass. Whether the epoch is over: as in Keras, also before its steps."""
        wanted, stream = self._plan.steps_per_epoch, self._feed.stream
        if not stream.is_one_shot:
            self._feed.open(self._feed.epoch + 1)
            if wanted is None:
                return True
            if self._in_epoch == 0 and not stream.has_empty_epochs:
                return False  # The pass had ended with the last epoch, and nobody had noticed.
        self._ran_out = stream.is_one_shot
        if wanted is not None or self._plan.steps is not None:  # Else all was as expected.
            self._tell_end(wanted)
        return True

    def _tell_end(self, wanted: int | None) -> None:
        """Warns that there were fewer batches than steps: once, as a rule it is so every time."""
        if self._has_told_end or not self._is_chief:
            return
        self._has_told_end = True
        of = "" if wanted is None else f" of its {wanted}"
        text = f"the data ended after {self._in_epoch}{of} steps of epoch {self.epoch + 1}. "
        if self._ran_out:
            text += (
                "It is a generator, which cannot be read again, so the training ends here. (Keras "
                "would continue with the generator's first two batches.) Ask for fewer steps, or "
                "pass the generator function itself."
            )
        else:
            text += (
                "The epoch ends there and the next one starts the data again, as in Keras. Give "
                "`steps_per_epoch` that divides the number of batches, or repeat the data."
            )
        self._reporter.warn(text)

    @property
    def _is_chief(self) -> bool:
        return self._engine.placement.is_chief

    def _agree(self, wanted: int, is_observed: bool) -> tuple[int, bool]:
        """What the chief wants of the next call. A signal to any worker counts for all of them."""
        own = self._interrupts.received or 0
        said = self._engine.placement.of_all(wanted, is_observed, own)
        self._signal = int(said[:, 2].max()) or None
        return int(said[0, 0]), bool(said[0, 1])

    def _is_epoch_over(self) -> bool:
        """Whether the epoch is known to end here; a stream may not say so before."""
        if self._plan.steps_left(self.step, self._in_epoch) == 0 or self._hooks.stop:
            return True
        return self._plan.steps_per_epoch is None and self._feed.is_at_end()

    def _go_to_start(self, saved: Checkpoint | None) -> None:
        """Goes to where a checkpoint was taken, or to the beginning."""
        if saved is None:
            self._feed.open(0)
            if self._folder is not None:
                self._folder.rewind(0, 0)  # of a run that was killed before its first checkpoint
            self._summaries.rewind(0, epoch_ended=False)
            return
        meta = saved.meta
        self._engine.state.restore(saved.arrays)
        self.step, self.epoch, self._in_epoch = saved.step, meta["epoch"], meta["step_in_epoch"]
        self.examples, self.logs = meta["examples"], meta["logs"]
        self._left_out = meta["left_out"]
        self._learning_rate = meta.get("learning_rate")
        self._best.value = self._best.written = meta["best"]
        self._feed.open(meta["pass"], meta["position"])
        self._hooks.rewind_logs(self.epoch)
        if self._folder is not None:
            self._folder.rewind(self.step, self.epoch)
        self._summaries.rewind(self.step, epoch_ended=self._in_epoch == 0)
        self._reporter.say(f"continuing after step {self.step} ({saved.path.name})")
        self._reporter.event("resume", step=self.step)

    def _save_if_due(self, *, epoch_ended: bool = False) -> None:
        """Between two calls: saves where it is time, and ends here if a signal asked for it."""
        if self._engine.placement.workers is None:
            self._signal = self._interrupts.received
        if self._signal is not None:
            self._finish_saving()
            self._reporter.say(f"saved after step {self.step}; the same command continues")
            self._engine.placement.wait()  # The others leave when the chief has saved.
            raise_for(self._signal)
        if self._recovery is None:
            return
        # At the epoch's last step it waits for the epoch's end: what validation and callbacks do
        # there belongs to it.
        if not epoch_ended and self._is_epoch_over():
            return
        if self._recovery.is_due(self.step, epoch_ended=epoch_ended):
            self._recovery.save(self.step, self._arrays, self._meta())

    def _write_log(self, **fields: Any) -> Exception | None:
        """Appends to metrics.jsonl, after what could not be written before."""
        folder = self._folder
        if folder is None:
            return None
        if fields:
            self._unwritten_log.append(fields)

        def write() -> None:
            while self._unwritten_log:
                folder.log(**self._unwritten_log[0])
                self._unwritten_log.popleft()

        return self._attempt(METRICS, write)

    def _attempt(self, what: str, write: Callable[[], Any]) -> Exception | None:
        if self._recovery is not None:
            return self._recovery.attempt(what, write)
        write()
        return None

    def _has_own_folder(self) -> bool:
        """Summaries are written by path, like all the rest: into no folder of somebody else's."""
        folder = self._folder
        if folder is None:
            return True
        return self._attempt("summaries", lambda: ownership.ensure(folder.path)) is None

    def _arrays(self) -> dict[str, Any]:
        return self._engine.state.snapshot() | self._hooks.state()

    def _meta(self) -> dict[str, Any]:
        history = self._hooks.history
        return {
            "epoch": self.epoch,
            "step_in_epoch": self._in_epoch,
            "examples": self.examples,
            "pass": self._feed.epoch,
            "position": self._feed.position,
            "left_out": self._left_out,
            "learning_rate": self._learning_rate,
            "logs": self.logs,
            "history": history.history,
            "history_epochs": history.epoch,
            "stopped": self._hooks.stop,
            "best": self._best.written,
        }

    def _finish_saving(self) -> None:
        if self._recovery is None:
            return
        best_error, log_error = self._best.write_missing(), self._write_log()
        error = self._recovery.save_last(self.step, self._arrays, self._meta())
        error = error or best_error or log_error
        if error is not None:
            raise KerasdistError(
                f"Received an error while saving the end of the run: {error}. Expected a folder "
                "one can write to. Make room and start the same command again; the checkpoints "
                "before are as they were."
            ) from error

    def _steps_per_call(self) -> int:
        if self._hooks.every_train_batch or self._engine.takes_one_batch_a_call:
            return 1
        if self._seconds_per_step is None:
            return 1
        wanted = max(1, int(SECONDS_PER_CALL / max(self._seconds_per_step, 1e-6)))
        wanted = min(wanted, self._profile.most_steps_per_call)
        if self._log_every:
            wanted = min(wanted, self._log_every - self.step % self._log_every)
        if self._recovery is not None:
            wanted = at_most(wanted, self._recovery.steps_left(self.step))
        return min(wanted, self._summaries.steps_before_due(self.step))

    def _took(self, seconds: float, outcome: Outcome, is_observed: bool) -> None:
        if is_observed not in self._compiled:  # Tracing and compiling are in it.
            self._compiled.add(is_observed)
            self._meter.restart()
        elif outcome.num_steps:
            self._meter.add(outcome.num_steps, outcome.num_examples, outcome.waited)
            if not is_observed:
                self._seconds_per_step = seconds / outcome.num_steps

    def _log(self, loss: float) -> None:
        if not self._log_every or self.step % self._log_every:
            return
        rate, seconds = self._meter.rates()
        self._reporter.step(self.step, loss, rate, seconds)
        rates, self._logged_step = self._rates(self._logged_step), self._meter.reading()
        rates["examples_per_second"] = round(rate, 3)
        self._write_log(kind="step", step=self.step, loss=loss, **rates)

    def _rates(self, since: Reading) -> dict[str, Any]:
        """The learning rate, and the share of time that steps waited for batches, if measured."""
        waited = self._meter.reading().since(since).share_waited
        known = {} if math.isnan(waited) else {"input_wait": round(waited, 4)}
        return {"learning_rate": self._learning_rate, **known}

    def _not_finite(self, outcome) -> None:
        scaled = isinstance(self._engine.model.optimizer, keras.optimizers.LossScaleOptimizer)
        self._left_out += 1
        if scaled and math.isfinite(outcome.loss) and self._left_out <= MOST_LEFT_OUT:
            return  # The loss scale was too large for float16: it was halved, the step left out.
        if self._hooks.accept_not_finite(self._in_epoch, outcome.loss):
            return
        step = self.step + 1
        if self._on_nan == "skip" and self._left_out <= MOST_SKIPPED:
            self._reporter.say(f"left out a step that is not finite, after step {self.step}")
            self._reporter.event("skipped", after_step=self.step, names=outcome.not_finite)
            return
        where = f" on replica {outcome.replica}" if outcome.replica is not None else ""
        if self._folder is not None:
            note = {
                "step": step,
                "replica": outcome.replica,
                "names": outcome.not_finite,
                "data_pass": self._feed.epoch,
                "batch": self._feed.position,
                "examples": self._feed.examples_of_batch(),
            }
            folder = self._folder
            self._attempt(NAN_NOTE, lambda: folder.note_not_finite(**note))
        raise DivergedError(
            f"Received a step that is not finite: step {step}, loss {outcome.loss:g}, first in the "
            f"{outcome.not_finite[0]}{where}. Expected finite numbers; nothing of this step was "
            "written. Lower the learning rate, set `clip_norm`, or look at the batch.",
            step=step,
            names=outcome.not_finite,
        )

    def result(self, placement: Placement) -> dict[str, Any]:
        """The content of result.json; the weights' hash where it is not that of the model."""
        rate, _ = self._meter.rates()
        return {
            "status": "finished",
            "steps": self.step,
            "epochs": self.epoch,
            "examples_seen": self.examples,
            **self.logs,
            "examples_per_second": round(rate, 3),
            "devices": list(placement.titles),
            **({"weights_sha256": self._raw_digest} if self._raw_digest else {}),
        }
