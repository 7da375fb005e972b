"""The checked options of a training: what to train, on what, how, what to keep, what to show."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import keras

from kerasdist.model_files.tf_checkpoints.mapping import MapLike, read_map
from kerasdist.models import pure
from kerasdist.models.precision import check_policy
from kerasdist.models.value_checks import AllowNan
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.intervals import Every
from kerasdist.training import arguments
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.progress.reporter import Reporter

PathLike: TypeAlias = str | os.PathLike[str]
"""A path, as text or as `pathlib.Path`."""

ModelLike: TypeAlias = "keras.Model | Callable[[], keras.Model]"
"""A Keras model, or a function without arguments that returns one."""


DeviceLike: TypeAlias = str | int | Sequence[int] | Sequence[str]
"""Where to train: "auto", a number of devices, indices, names, "cpu" or "cpu:4"."""

DataLike: TypeAlias = Any
"""Arrays, a `tf.data.Dataset`, a `PyDataset`, a random-access source, a provider, or a generator
function. TensorFlow and Keras have no types, so no narrower type can be checked: docs/data.md."""

CallbackLike: TypeAlias = "keras.callbacks.Callback | Sequence[keras.callbacks.Callback]"
"""A Keras callback, or several."""


@dataclass(frozen=True)
class ModelSource:
    """The model to train, or the function that builds it, and the weights to start from.

    `load_initial` loads a recipe's own weights, when a new training starts.
    """

    model: ModelLike
    precision: str | None = None
    init_from: PathLike | None = None
    init_map: Mapping[str, str | None] | None = None
    init_averages: bool = False
    load_initial: Callable[[keras.Model], None] | None = None

    @classmethod
    def checked(
        cls,
        model: ModelLike,
        precision: str | None,
        init_from: PathLike | None,
        *,
        init_map: MapLike | None = None,
        init_averages: bool = False,
        load_initial: Callable[[keras.Model], None] | None = None,
    ) -> ModelSource:
        check_policy(precision)
        arguments.check_initial(init_from, init_map=init_map, init_averages=init_averages)
        mapping = None if init_map is None else read_map(init_map)
        return cls(model, precision, init_from, mapping, init_averages, load_initial)


@dataclass(frozen=True)
class DataSource:
    """The data to train on, the data to validate on, and how to read them."""

    data: DataLike
    batch_size: int | None = None
    shuffle: bool | int | str = True
    augment: Callable[..., Any] | None = None
    class_weight: dict[int, float] | None = None
    allow_nan: AllowNan = False
    validation_data: DataLike | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1

    @classmethod
    def checked(cls, data: DataLike, **options: Any) -> DataSource:
        source = cls(data, **options)
        arguments.check_counts(
            validation_steps=source.validation_steps,
            validation_batch_size=source.validation_batch_size,
        )
        arguments.check_class_weight(source.class_weight)
        arguments.check_frequency(source.validation_freq)
        arguments.check_allow_nan(source.allow_nan)
        if source.validation_data is None:
            return source
        steps = arguments.capped_steps("validation_steps", source.validation_steps)
        return cls(data, **{**options, "validation_steps": steps})

    def is_validated(self, epoch: int) -> bool:
        """Whether there is a validation after an epoch, counted from 0."""
        number, frequency = epoch + 1, self.validation_freq
        is_due = number % frequency == 0 if isinstance(frequency, int) else number in frequency
        return self.validation_data is not None and is_due


@dataclass(frozen=True)
class StepOptions:
    """How a step is computed, and what happens if its result is not finite.

    `jit` is None if the model and the devices decide, `whole_batch_loss` if the loss decides.
    """

    shards: int | None = None
    deterministic: bool = False
    jit: bool | None = None
    clip_norm: float | None = None
    ema: float | None = None
    seed: int | None = None
    on_nan: str = "stop"
    sync_batch_norm: bool = False
    whole_batch_loss: bool | None = None

    @classmethod
    def checked(
        cls,
        *,
        jit: bool | str = "auto",
        whole_batch_loss: bool | str | None = None,
        **options: Any,
    ) -> StepOptions:
        wished = "auto" if whole_batch_loss is None else whole_batch_loss
        step = cls(
            jit=arguments.on_or_auto("jit", jit),
            whole_batch_loss=arguments.on_or_auto("whole_batch_loss", wished),
            **options,
        )
        arguments.check_choices(
            clip_norm=step.clip_norm, ema=step.ema, on_nan=step.on_nan, seed=step.seed
        )
        return step


@dataclass(frozen=True)
class Stage:
    """A later part of a training: after some epochs, `change` changes and compiles the model."""

    after: int
    change: Callable[[keras.Model], None]


@dataclass(frozen=True)
class RunOptions:
    """Where a run is kept, and how often it is saved.

    Without a `run_dir`, nothing is kept. Only the chief of several workers reads the path. `folder`
    is the run's folder if the caller has opened it already, as the command line does. It is not
    locked again if it `is_locked`. Without `save_every`, the size of the model decides.
    """

    run_dir: Path | None = None
    resume: bool = True
    save_every: Every | None = None
    keep: int = 2
    monitor: str | None = None
    keep_best: int = 1
    folder: RunFolder | None = None
    is_locked: bool = False

    @classmethod
    def checked(
        cls,
        run_dir: PathLike | None = None,
        *,
        save_every: int | str | None = None,
        **options: Any,
    ) -> RunOptions:
        path = arguments.as_path("run_dir", run_dir)
        every = None if save_every is None else Every.parse(save_every, "save_every")
        keeping = cls(path, save_every=every, **options)
        arguments.check_counts(keep_best=keeping.keep_best)
        return keeping

    @classmethod
    def of_fit(cls, run_dir: PathLike | None, **options: Any) -> RunOptions:
        """Of a single `fit`: options that say how to keep a run need its folder."""
        keeping = cls.checked(run_dir, **options)
        wishes = {name: options[name] for name in ("save_every", "keep", "monitor", "keep_best")}
        default = cls()
        given = {name: v for name, v in wishes.items() if v != getattr(default, name)}
        arguments.check_folder(run_dir, **given)
        return keeping

    @property
    def is_kept(self) -> bool:
        return self.run_dir is not None

    @property
    def earlier(self) -> Path | None:
        """The folder that may hold an earlier part of this run."""
        return self.run_dir if self.resume else None


@dataclass(frozen=True)
class WatchOptions:
    """What is shown and written while a training runs."""

    reporter: Reporter
    log_every: int | None = None
    summary_every: int | None = None
    profile: bool | PathLike | None = False
    log_placement: bool = False
    tells_end: bool = True
    tells_epoch: bool = False

    @classmethod
    def checked(
        cls, reporter: Reporter, *, run_dir: PathLike | None, **options: Any
    ) -> WatchOptions:
        watching = cls(reporter, **options)
        arguments.check_counts(log_every=watching.log_every, summary_every=watching.summary_every)
        is_in_run = watching.profile is True or None
        arguments.check_folder(run_dir, summary_every=watching.summary_every, profile=is_in_run)
        return watching

    def for_model(self, model: keras.Model) -> WatchOptions:
        """Without summaries for a model with its own `train_step`: they show Keras's step."""
        if self.summary_every is None or not pure.overrides(model, "train_step"):
            return self
        self.reporter.say(
            f"Note: {type(model).__name__!r} overrides `train_step`, so there are no summaries for "
            "TensorBoard. `keras.callbacks.TensorBoard` writes some."
        )
        return replace(self, summary_every=None)

    def silent(self) -> WatchOptions:
        """For the workers that are not the chief: they show and write nothing."""
        return WatchOptions(Reporter("silent"))


@dataclass(frozen=True)
class TrainingOptions:
    """All options of one training. Each part was checked when it was made.

    `stage` is the number of the stage that these options are for.
    """

    source: ModelSource
    data: DataSource
    plan: Plan
    step: StepOptions
    keeping: RunOptions
    watching: WatchOptions
    callbacks: Sequence[keras.callbacks.Callback] = ()
    verbose: int | str = 0  # As callbacks see it in `params`.
    stages: Sequence[Stage] = ()
    stage: int = 0
