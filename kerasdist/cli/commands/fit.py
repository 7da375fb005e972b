"""`kerasdist fit`: trains a recipe, or a model and a data class, in a run's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from kerasdist.cli import folder_choice, run_callbacks
from kerasdist.cli.fit_arguments import FitOptions
from kerasdist.cli.job import Job, names_of
from kerasdist.cli.options import LOG_EVERY
from kerasdist.devices import cluster, worker
from kerasdist.devices.placement import Placement, place
from kerasdist.errors import first_line
from kerasdist.evaluation import examples, training_batch
from kerasdist.recipes import extras
from kerasdist.runs import ownership
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.file_names import EVALUATION, RESULT
from kerasdist.runs.folder import RunFolder
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.epochs.run_end import report_at_the_end, result_of_a_stop
from kerasdist.training.options import (
    DataSource,
    ModelSource,
    RunOptions,
    StepOptions,
    TrainingOptions,
    WatchOptions,
)
from kerasdist.training.progress import announcements
from kerasdist.training.progress.reporter import SECONDS_BETWEEN_STEPS, Reporter, mode_of
from kerasdist.training.session import train
from kerasdist.training.stages import stages_of

_STEP = ("shards", "deterministic", "jit", "clip_norm", "ema", "seed", "sync_batch_norm")
_INITIAL = ("init_from", "init_map", "init_averages")
_KEEPING = ("resume", "save_every", "keep", "monitor", "keep_best")
_WATCHING = ("profile", "log_placement")


def fit(options: FitOptions, callbacks: Sequence[keras.callbacks.Callback] = ()) -> int:
    """`kerasdist fit`, with more callbacks than those of the recipe."""
    names = names_of(options.run)
    placement = None if cluster.current() is None else place(names)
    with contextlib.nullcontext() if placement is None else placement.together():
        return _Fit(options, names, placement, callbacks).run()


def on_trial(options: FitOptions) -> tuple[TrainingOptions, str, list[str]]:
    """For the finders: a training that keeps nothing, its title, and the names of its devices."""
    names = names_of(options.run)
    return *_Fit(options, names, None).on_trial(), names


class _Fit:
    """One `kerasdist fit` on this process, which is alone or one of several workers."""

    def __init__(
        self,
        options: FitOptions,
        names: list[str],
        placement: Placement | None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ):
        self._options = options.run
        self._names, self._placement = names, placement
        self._is_chief = placement is None or placement.is_chief
        self._titles = names if placement is None else list(placement.titles)
        self._reporter = self._make_reporter()
        self._job = job = Job(options)
        self._data = DataSource.checked(
            job.build_data("train"),
            batch_size=self._options["batch_size"],
            allow_nan=self._options["allow_nan"],
            augment=job.recipe.build_augment() if job.recipe is not None else None,
            validation_data=job.build_data("validation") if job.recipe is not None else None,
        )
        self._callbacks = run_callbacks.of_recipe(job.recipe)
        self._more_callbacks = callbacks
        self._early_stopping = run_callbacks.early_stopping(
            self._options["patience"],
            self._options["monitor"],
            has_validation=self._data.validation_data is not None,
        )

    def _make_reporter(self) -> Reporter:
        if not self._is_chief:
            return Reporter("silent")
        options = self._options
        mode = mode_of("json" if options["json"] else not options["quiet"])
        # Who chose the steps gets a line for each of them; a dry run has only two.
        is_whole = options["log_every"] is not None or options["dry_run"]
        seconds = 0.0 if is_whole else SECONDS_BETWEEN_STEPS
        return Reporter(mode, seconds_between_steps=seconds)

    def run(self) -> int:
        """Trains, and returns the exit code."""
        if self._options["dry_run"]:
            self._describe_data()
            return self._try()
        folder = folder_choice.choose(self._job, self._options) if self._is_chief else None
        if self._is_finished(folder):
            return 0
        folder_choice.tell(self._job, self._options, folder, self._reporter.warn)
        self._describe_data()
        training = self._training(folder)
        if folder is None:
            train(training, place(self._names))
            return 0
        self._start(folder)
        with result_of_a_stop(folder):
            history = train(training, place(self._names))
        self._finish(folder.path, history)
        return 0

    def _describe_data(self) -> None:
        """Says what the recipe found in its data."""
        found = extras.description(self._job.recipe)
        if found:
            width = self._reporter.title_width = max(announcements.WIDTH, *map(len, found))
            self._reporter.say("\n".join(announcements.aligned(found, width)))
            self._reporter.event("data", **found)

    def _training(self, folder: RunFolder | None) -> TrainingOptions:
        """The options of a run. A worker without the folder knows only that the chief has one."""
        path = Path() if folder is None else folder.path
        options = self._options
        keeping = self._chosen(_KEEPING)
        return TrainingOptions(
            source=self._source(),
            data=self._data,
            plan=self._plan(options["steps"]),
            step=StepOptions.checked(on_nan=options["on_nan"], **self._chosen(_STEP)),
            keeping=RunOptions.checked(path, folder=folder, **keeping),
            watching=WatchOptions.checked(
                self._reporter,
                run_dir=path,
                log_every=options["log_every"] or LOG_EVERY,
                summary_every=options["summary_every"] or None,
                tells_end=False,  # `_finish` has more to tell.
                tells_epoch=self._job.source == "files",
                **self._chosen(_WATCHING),
            ),
            stages=[] if self._job.recipe is None else stages_of(self._job.recipe),
            callbacks=[
                *self._callbacks,
                *([] if self._early_stopping is None else [self._early_stopping]),
                *self._more_callbacks,
            ],
        )

    def _source(self) -> ModelSource:
        """The model, and the weights that the command starts with."""
        recipe = self._job.recipe
        return ModelSource.checked(
            self._job.build_model,
            self._options["precision"],
            **self._chosen(_INITIAL),
            load_initial=None if recipe is None else recipe.load_initial,
        )

    def on_trial(self) -> tuple[TrainingOptions, str]:
        """A training from the weights that the command starts with, and its title."""
        return self._trial(), self._job.name

    def _trial(self) -> TrainingOptions:
        """Two steps and one batch of validation. Nothing is kept."""
        return TrainingOptions(
            source=self._source(),
            data=dataclasses.replace(self._data, validation_steps=1),
            plan=self._plan(steps=2),
            step=StepOptions.checked(**self._chosen(_STEP)),
            keeping=RunOptions.checked(),
            watching=WatchOptions.checked(self._reporter, run_dir=None, log_every=1),
        )

    def _plan(self, steps: int | None) -> Plan:
        return Plan.checked(epochs=self._options["epochs"], steps=steps, steps_per_epoch=None)

    def _chosen(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._options[name] for name in names}

    def _try(self) -> int:
        """`--dry-run`."""
        reporter = self._reporter
        where = ", ".join(self._titles)
        data = self._job.describe(self._data.data)
        reporter.say(f"dry run: {self._job.name} on {where}, {data}")
        train(self._trial(), place(self._names))
        reporter.say("dry run: two steps and one evaluation passed; nothing was kept")
        reporter.event("dry_run", status="passed")
        return 0

    def _is_finished(self, folder: RunFolder | None) -> bool:
        """Whether there is nothing left to train. The chief decides and says so."""
        is_finished = int(folder is not None and folder_choice.is_finished(self._job, folder.path))
        if self._placement is not None:
            (is_finished,) = self._placement.of_chief(is_finished)
        if is_finished and folder is not None:
            text = folder_choice.about_finished(self._job, self._options, folder.path)
            self._reporter.say(text)
            edited = {"edited": True} if folder_choice.is_edited(self._job, folder.path) else {}
            self._reporter.event("finished", run=str(folder.path), **edited)
        return bool(is_finished)

    def _start(self, folder: RunFolder) -> None:
        run, job = str(folder.path), self._job
        worker.report(run=run)
        self._reporter.event(
            "start", run=run, name=job.name, dataset=job.source, devices=self._titles
        )

    def _finish(self, path: Path, history: Any) -> None:
        """Writes the report, and says how the run ended."""
        result = json.loads((path / RESULT).read_text())
        with report_at_the_end(self._reporter, path), worker.alone():
            self._look_at_examples(path, history, result["steps"])
        self._reporter.event("end", run=str(path), **result)
        monitor, width = self._options["monitor"], self._reporter.width
        lines = announcements.ending(
            path,
            result,
            monitor=monitor,
            width=width,
            can_evaluate=self._data.validation_data is not None,
        )
        self._reporter.say("\n".join(lines))

    def _look_at_examples(self, path: Path, history: Any, steps: int) -> None:
        """Writes evaluation.json, for the same weights as final.keras."""
        if history.ema_weights is not None:
            history.model.set_weights(history.ema_weights)
        validation, device, recipe = self._data.validation_data, self._names[0], self._job.recipe
        batch = self._training_batch(history.model)
        found = None
        try:
            if validation is not None:
                found = examples.evaluate(
                    history.model, validation, recipe, device, batch_size=self._data.batch_size
                )
        finally:
            # The pictures of the batch are kept if the rest fails.
            content = {**(found or {}), **({"training_batch": batch} if batch else {})}
            if content:
                ownership.ensure(path)
                write_text(path / EVALUATION, as_json({**content, "steps": steps}))

    def _training_batch(self, model: Any) -> dict[str, Any] | None:
        """Pictures of the first batch. Only a recipe's data can be opened again for sure."""
        if self._job.recipe is None:
            return None
        data = self._data
        try:
            return training_batch.pictures_of(
                model,
                data.data,
                self._job.recipe,
                batch_size=data.batch_size,
                shuffle=data.shuffle,
                augment=data.augment,
                seed=self._options["seed"],
            )
        except Exception as error:  # noqa: BLE001 - the run itself is finished
            self._reporter.warn(f"the report has no pictures of training: {first_line(error)}")
            return None
