"""One training from its options to its history: what `kerasdist.fit` and `kerasdist fit` call."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data.values import translate
from kerasdist.devices.placement import Placement
from kerasdist.engine import sums
from kerasdist.engine.engine import Engine
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError
from kerasdist.models import pure
from kerasdist.phases.phase import phase
from kerasdist.runs.catalog import read_config
from kerasdist.runs.checkpoints.inherited import of_chief
from kerasdist.runs.file_names import RESULT
from kerasdist.runs.results.data_title import data_title
from kerasdist.training import preparation
from kerasdist.training.engines import engine_for
from kerasdist.training.epochs.callbacks import Hooks
from kerasdist.training.epochs.loop import Loop
from kerasdist.training.epochs.signals import raise_for
from kerasdist.training.epochs.validation import test
from kerasdist.training.options import TrainingOptions
from kerasdist.training.preparation import Prepared
from kerasdist.training.progress import announcements, listener
from kerasdist.training.progress.watch import Watch
from kerasdist.training.run import KeptRun, Run, open_run
from kerasdist.training.stages import TakenOver, train_in_stages


def train(options: TrainingOptions, placement: Placement) -> keras.callbacks.History:
    """Trains a model on the devices of `placement`."""
    if not placement.is_chief:
        options = dataclasses.replace(options, watching=options.watching.silent())
    if options.stages:
        return train_in_stages(options, placement, _train_stage)
    history, _ = _train_stage(options, placement, None)
    return history


def _train_stage(
    options: TrainingOptions, placement: Placement, taken: TakenOver | None
) -> tuple[keras.callbacks.History, TakenOver]:
    """Trains one stage: all of a training without stages."""
    reporter = options.watching.reporter
    with (
        reporter.showing_phases(),
        placement.together(),
        placement.guarded() as tell_stopped,
        contextlib.ExitStack() as stack,
    ):
        # 1. Model and data: everything is checked before anything is compiled.
        with phase("checking the model and the data"):
            prepared = preparation.prepare(stack, options, placement)

        # 2. The run: a folder and its newest checkpoint, or nothing.
        run = open_run(stack, options, prepared)
        tell_stopped.append(run.fail)
        is_kept = options.keeping.is_kept and taken is None
        saved = of_chief(run.load(), placement) if is_kept else None

        # 3. The compiled step, and what watches it.
        watch = Watch(options.watching.for_model(prepared.model), run)
        stack.callback(watch.close)
        stack.enter_context(sums.fixed_graphs(options.step.deterministic, placement.is_gpu))
        settings = preparation.settings(options, prepared)
        is_logged = options.watching.log_placement
        engine = stack.enter_context(
            engine_for(prepared.model, prepared.placement, settings, must_be_new=is_logged)
        )
        plan = options.plan.over(prepared.data.stream.num_batches)
        hooks = Hooks(
            engine,
            options.callbacks,
            epochs=plan.epochs,
            steps=plan.epoch_steps,
            verbose=options.verbose,
            is_watched=getattr(prepared.data.stream, "looks_at_model", False),
        )
        loop = Loop(engine, prepared.data.feed, plan, hooks, run, watch, on_nan=options.step.on_nan)
        _announce(options, prepared, run)

        # 4. Epochs.
        with _guarded(engine, run, loop), _listening(loop, options), watch.training(plan, engine):
            loop.begin(saved, taken)
            while loop.has_epochs_left():
                logs = loop.train_epoch()
                if options.data.is_validated(loop.at.epoch):
                    logs |= _validate(options, prepared, engine, hooks, watch, loop.step)
                loop.end_epoch(logs, can_be_best=_can_be_best(options, logs))
            loop.end()
        is_last = options.stage == len(options.stages) or plan.has_all_steps(loop.step)
        with phase("saving the trained model") if run.path else contextlib.nullcontext():
            _finish(options, engine, run, loop, hooks, watch, is_last=is_last)
        if options.keeping.is_kept:
            raise_for(loop.last_signal(), is_after_end=True)
        return hooks.history, loop.taken_over()


def _announce(options: TrainingOptions, prepared: Prepared, run: Run) -> None:
    reporter, data = options.watching.reporter, prepared.data
    if options.stages:
        reporter.say(announcements.stage(prepared.model, options.stage, options.stages))
    if options.stage:
        return  # The rest was said before the first stage.
    if isinstance(run, KeptRun):
        lines = announcements.beginning(
            run.path,
            model=prepared.model,
            devices=prepared.placement.titles,
            stream=data.stream,
            validation=None if prepared.validation is None else prepared.validation.stream,
            source=data_title(run.dataset, read_config(run.path) or {}),
            least_width=reporter.title_width,
        )
        reporter.say("\n".join(lines))
    note = preparation.note(options, prepared)
    if note is not None:
        listener.say(reporter, note)


def _can_be_best(options: TrainingOptions, logs: dict[str, Any]) -> bool:
    """Epochs between two validations do not have the value that decides which one is best."""
    if options.data.validation_data is None or any(name.startswith("val_") for name in logs):
        return True
    return options.keeping.monitor in logs


def _validate(
    options: TrainingOptions,
    prepared: Prepared,
    engine: Engine,
    hooks: Hooks,
    watch: Watch,
    step: int,
) -> dict[str, Any]:
    """The metrics of the validation data, named as Keras names them."""
    if prepared.validation is None:
        return {}
    show = watch.reporter.validation if watch.reporter.has_display else None
    results = test(
        engine,
        prepared.validation.feed,
        options.data.validation_steps,
        hooks,
        use_ema=bool(options.step.ema),
        call=step,  # Not by the generators: a resumed run must draw the same numbers.
        show=show,
    )
    return {f"val_{name}": value for name, value in results.items()}


@contextlib.contextmanager
def _listening(loop: Loop, options: TrainingOptions) -> Iterator[None]:
    """A run that is kept is saved before SIGTERM or Ctrl-C ends it."""
    with loop.signals.watching() if options.keeping.is_kept else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _guarded(engine: Engine, run: Run, loop: Loop) -> Iterator[None]:
    """However the training ends, the caller's model has the newest values."""
    try:
        yield
    except BaseException as error:
        told = _told(error, engine.placement)
        # A device that failed may not have memory for this, either. The first error matters more.
        with contextlib.suppress(tf.errors.OpError):
            engine.state.write_back()
        run.stop(loop.step, has_page=loop.at.epoch > 0, error=told)
        if told is None:
            raise
        raise told from (error.__cause__ if isinstance(error, KerasdistError) else None)
    engine.state.write_back()
    run.stop(loop.step, has_page=loop.at.epoch > 0)


def _told(error: BaseException, placement: Placement) -> KerasdistError | None:
    """What the user is told instead of `error`; None if it stays as it is."""
    if isinstance(error, tf.errors.OpError):
        told = translate(error) or placement.out_of_memory(error)
        return None if told is None else _failed(told)
    return _failed(error) if isinstance(error, KerasdistError) else None


def _failed(error: KerasdistError) -> KerasdistError:
    """The error of a run that had started. The command line's exit code depends on that."""
    if isinstance(error, (DivergedError, RunFailedError)):
        return error
    return RunFailedError(str(error))


def _finish(
    options: TrainingOptions,
    engine: Engine,
    run: Run,
    loop: Loop,
    hooks: Hooks,
    watch: Watch,
    *,
    is_last: bool,
) -> None:
    history = hooks.history
    if not is_last:
        engine.placement.wait()
        return
    history.ema_weights = engine.ema_weights() if options.step.ema else None
    history.profile = watch.profile.split
    run.finish(engine.model, {**loop.result(), **hooks.why_stopped()}, history.ema_weights)
    if isinstance(run, KeptRun) and options.watching.tells_end:
        result = json.loads((run.path / RESULT).read_text())
        lines = announcements.ending(
            run.path,
            result,
            monitor=options.keeping.monitor,
            width=watch.reporter.width,
            restored=hooks.restored_epoch(),
            can_evaluate=any(pure.overrides(engine.model, m) for m in ("call", "test_step")),
        )
        watch.reporter.say("\n".join(lines))
    engine.placement.wait()
