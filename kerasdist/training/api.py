"""`fit`: checks, the run, and the loop around the compiled step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kerasdist import __version__
from kerasdist.data.feed import Feed, element_spec, first_batch, preparation, translate
from kerasdist.data.streams import open_stream
from kerasdist.devices.placement import place
from kerasdist.engine import sums
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.errors import KerasdistError
from kerasdist.model_files.loading import fresh_seed, made
from kerasdist.model_files.weights import load_into
from kerasdist.models import pure, refusals
from kerasdist.models.contract import ensure_compiled
from kerasdist.models.precision import check_policy, check_precision
from kerasdist.models.verdicts import state_rules
from kerasdist.reports import live as reports
from kerasdist.runs import architecture, identity, provenance
from kerasdist.runs.checkpoints.recovery import (
    Recovery,
    SaveEvery,
    choose_seed,
    choose_shards,
    of_chief,
)
from kerasdist.runs.folder import RESULT, RunFolder
from kerasdist.runs.lock import RunLock
from kerasdist.training import arguments, checked_data
from kerasdist.training.callbacks import Hooks
from kerasdist.training.loop import Loop
from kerasdist.training.plan import Plan
from kerasdist.training.progress import announcements
from kerasdist.training.progress.placement_log import PlacementLog
from kerasdist.training.progress.profile import Profile
from kerasdist.training.progress.reporter import Reporter, mode_of
from kerasdist.training.progress.tensorboard import FOLDER as SUMMARIES
from kerasdist.training.progress.tensorboard import Summaries
from kerasdist.training.validation import test


def fit(
    model: keras.Model | Callable[[], keras.Model],
    data: Any,
    *,
    validation_data: Any = None,
    validation_steps: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    devices: Any = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    jit: bool | str = False,
    precision: str | None = None,
    clip_norm: float | None = None,
    ema: float | None = None,
    class_weight: dict[int, float] | None = None,
    augment: Callable | None = None,
    shuffle: bool | int = True,
    seed: int | None = None,
    run_dir: Any = None,
    resume: bool = True,
    init_from: Any = None,
    save_every: Any = None,
    keep: int = 2,
    monitor: str | None = None,
    on_nan: str = "stop",
    allow_nan: bool = False,
    log_every: int | None = None,
    summary_every: int | None = None,
    profile: Any = False,
    log_placement: bool = False,
    callbacks: Any = None,
    progress: Any = "auto",
) -> keras.callbacks.History:
    """Trains a Keras model on one device or several, with the maths of one.

    Args:
        model: A compiled `keras.Model`, a `kerasdist.Model`, or a function that returns one. It may
            be built anywhere; it holds the trained weights afterwards.
        data: Arrays `(x, y[, sample_weight])` or a dict of them, a `tf.data.Dataset`, a
            random-access source, a `keras.utils.PyDataset`, a provider with `get_batch_data()`, or
            a generator function. See docs/data.md.
        validation_data: Data of any of these forms, evaluated after each epoch.
        validation_steps: How many batches of it; all by default.
        epochs: How many epochs to train.
        steps: How many steps to train instead, over as many epochs as that takes.
        steps_per_epoch: How many steps make an epoch; one pass over the data by default. The next
            epoch goes on in the same pass; where a pass ends, the epoch ends.
        batch_size: The examples of one step over all devices, for data that is not in batches.
        devices: "auto" (every GPU, else the CPU), a number, indices, names, "cpu" or "cpu:4".
        shards: Into how many equal parts a batch is cut: a multiple of the devices. More parts than
            devices accumulate gradients and save memory.
        deterministic: Whether the same `shards` give the same bits on any number of devices.
        jit: Whether XLA compiles the forward pass and the gradient (True or "on"). Measure it: on
            CPUs it makes some models quicker and others slower.
        precision: "mixed_bfloat16", "mixed_float16" or another Keras dtype policy, for a `model`
            that is a function.
        clip_norm: The largest global norm of the gradients, taken over the whole batch.
        ema: The decay of an average of the weights, used for validation; the model keeps its own
            weights, and `history.ema_weights` has the average.
        class_weight: The weight of each class in the loss.
        augment: `augment(batch, seed)` changes a batch, with TensorFlow's stateless functions.
        shuffle: Whether examples are shuffled, of a `PyDataset` its batches. For a dataset of
            examples it may be the buffer's size.
        seed: Decides the order of the data, dropout and augmentation, and the first weights of a
            `model` that is a function. By default it is drawn from Python's `random`, which
            `keras.utils.set_random_seed` seeds; a run keeps the one it was begun with.
        run_dir: A folder for configuration, checkpoints, metrics and the trained model. If it holds
            this run already, the run goes on from its newest checkpoint.
        resume: Whether a run that is there is continued; otherwise it is an error.
        init_from: A run's folder, a `.keras` or a `.weights.h5` file: weights to start from.
        save_every: Steps, seconds ("30s") or "epoch" between two checkpoints; 1,000 steps.
        keep: How many checkpoints are kept, at least 2.
        monitor: The logged value that decides about `best.keras`; by default the validation loss.
        on_nan: "stop": a NaN or infinity stops the training before it reaches the weights. "skip":
            the step is left out on all devices, at most 10 in a row.
        allow_nan: Whether NaN and infinity in the data are let through, for a model or a loss that
            masks them. Steps are still checked.
        log_every: Steps between two log lines; by default a line each epoch.
        summary_every: Steps between two summaries for TensorBoard, in `run_dir/tensorboard`; none
            by default. See docs/summaries.md.
        profile: Whether a few steps are traced for TensorBoard, in `run_dir/tensorboard` or in a
            folder that is given here, and where their time goes is said; `history.profile` has it
            too. See docs/profiling.md.
        log_placement: Whether it is said which operations run on which device, and all of them are
            listed in `run_dir/placement.txt`.
        callbacks: A Keras callback, or a list of them.
        progress: "auto" is a live display on a terminal and in a notebook, and lines elsewhere;
            "lines" forces these, "json" prints one JSON object a line, False is silent.

    Returns:
        Keras's `History`.

    Raises:
        KerasdistError: For anything the caller can fix.
        DivergedError: If a step was not finite; the weights are those of the step before.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.linspace(0, 1, 64)[:, None]
        >>> history = kerasdist.fit(model, (x, 2 * x), batch_size=16, epochs=2, progress=False)
        >>> sorted(history.history)
        ['loss']
    """
    arguments.check_counts(
        epochs=epochs,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        validation_steps=validation_steps,
        log_every=log_every,
        summary_every=summary_every,
    )
    epochs = arguments.capped_epochs(epochs)
    steps_per_epoch = arguments.capped_steps("steps_per_epoch", steps_per_epoch)
    if validation_data is not None:
        validation_steps = arguments.capped_steps("validation_steps", validation_steps)
    arguments.check_choices(clip_norm=clip_norm, ema=ema, on_nan=on_nan, seed=seed)
    arguments.check_class_weight(class_weight)
    callbacks = arguments.as_callbacks(callbacks)
    is_compiled = arguments.is_on("jit", jit)
    check_policy(precision)
    every = SaveEvery.parse(save_every)
    arguments.check_folder(run_dir, summary_every=summary_every, profile=profile is True or None)
    refusals.refuse_scope()
    placement = place(devices)
    arguments.check_backup(
        callbacks, run_dir=run_dir, steps=steps, ema=ema, workers=placement.workers
    )
    reporter = progress if isinstance(progress, Reporter) else Reporter(mode_of(progress))
    if not placement.is_chief:
        reporter = Reporter("silent")

    with contextlib.ExitStack() as stack:
        stack.enter_context(placement.together())
        earlier = run_dir if resume else None
        num_shards = choose_shards(shards, placement, deterministic, earlier)
        fresh = fresh_seed(model) if seed is None else 0
        seed = choose_seed(seed, fresh, placement, earlier)
        model = made(model, precision, seed)
        ensure_compiled(model)
        refusals.refuse_unsupported(model)
        refusals.refuse_bypassed(model, "fit")
        check_precision(model, precision)
        stream = open_stream(data, batch_size=batch_size, shuffle=shuffle, seed=seed)
        stack.callback(stream.close)
        arguments.check_stream(stream, num_shards, epochs, steps, steps_per_epoch, deterministic)
        refusals.refuse_stateful(model, num_shards)
        findings = checked_data.inspect(
            model, stream, "data", augment, allow_nan=allow_nan, class_weight=class_weight
        )
        refusals.warn_if_frozen(model)
        refusals.refuse_random(model, findings.random_operations if deterministic else ())
        rules = state_rules(
            model, lambda: first_batch(stream, augment), findings, num_shards, training=True
        )
        feed = Feed(
            stream,
            prepare=preparation(
                model,
                stream,
                labels=findings.labels,
                name="data",
                augment=augment,
                seed=seed,
                share=placement.share(num_shards),
                needs_whole=findings.gather_metrics,
                allow_nan=allow_nan,
            ),
            takes_rows=not placement.is_gpu,
        )
        stack.callback(feed.close)
        validation, of_validation, test_rules = None, findings, {}
        if validation_data is not None:
            refusals.refuse_bypassed(model, "evaluate")
            name, size = "validation_data", stream.batch_size
            validation, of_validation, test_rules = checked_data.feed_to_test(
                stack,
                model,
                validation_data,
                name,
                placement,
                num_shards,
                default_batch_size=size,
                allow_nan=allow_nan,
            )
            if validation_steps is None:
                arguments.check_ends(validation.stream, name, "validation_steps")
                arguments.check_readable(validation.stream, name, epochs)
        if init_from is not None and placement.is_chief:  # The others get its weights.
            reporter.say(load_into(model, init_from, strict=False).summary())
        # Of several workers, only the chief has a folder.
        folder = run_dir if placement.is_chief else None
        if folder is not None and not isinstance(folder, RunFolder):
            config = {"kerasdist": __version__, "batch_size": batch_size, "seed": seed}
            folder = RunFolder(folder, config, resume=resume)
        recovery = saved = None
        if folder is not None:
            stack.enter_context(RunLock(folder.path))
            folder.describe(
                # Without augmentation where possible: so the model is fed when it is used.
                architecture.describe(
                    model,
                    element_spec(stream, augment)
                    if validation is None
                    else validation.stream.element_spec,
                ),
                provenance.describe(placement.titles),
            )
            settings_kept = {
                "batch_size": stream.batch_size,
                "seed": seed,
                "shards": num_shards,
                "deterministic": deterministic,
                "clip_norm": clip_norm,
                "ema": ema,
                "steps_per_epoch": steps_per_epoch,
                "shuffle": shuffle,
                **({"jit": True} if is_compiled else {}),
            }
            recovery = Recovery(
                folder.path,
                every=every,
                keep=keep,
                identity={**identity.of_model(model), **identity.of_data(stream), **settings_kept},
                warn=reporter.warn,
            )
            stack.callback(recovery.close)
            saved = recovery.load()
        if run_dir is not None:
            saved = of_chief(saved, placement)
        settings = Settings(
            shards=num_shards,
            seed=seed,
            deterministic=deterministic,
            clip_norm=clip_norm,
            ema=ema,
            class_weight=class_weight,
            gather_metrics=findings.gather_metrics,
            num_denominators=findings.num_denominators,
            num_test_denominators=of_validation.num_denominators,
            times_input=run_dir is not None,
            jit=is_compiled,
            # A callback that looks at every step would have them taken apart as often.
            joins=not any(pure.wants_batches(c, "train") for c in callbacks),
            state_rules=rules,
            test_state_rules=test_rules,
        )
        placed = stack.enter_context(contextlib.closing(PlacementLog())) if log_placement else None
        stack.enter_context(sums.fixed_graphs(deterministic, placement.is_gpu))
        engine = Engine(model, placement, settings)
        plan = Plan(epochs, steps, steps_per_epoch, stream.num_batches, keras.config.max_epochs())
        hooks = Hooks(engine, callbacks, epochs=epochs, steps=plan.epoch_steps, verbose=0)
        run = folder.path if folder is not None else None
        summaries = Summaries(run, summary_every if placement.is_chief else None, reporter.warn)
        stack.callback(summaries.close)
        live = None if run is None else reports.Live(run)
        traced = Profile(_profile_folder(profile if placement.is_chief else None, run), reporter)

        def on_epoch() -> None:
            if placed is not None:
                placed.tell(reporter.say, run)
            if live is not None:
                live.write()

        loop = Loop(
            engine,
            feed,
            plan,
            hooks,
            reporter,
            folder,
            log_every,
            summaries,
            recovery,
            on_nan,
            monitor,
            saved,
            on_epoch=on_epoch,
            profile=traced,
            can_stop=run_dir is not None,
        )
        if folder is not None:
            lines = announcements.beginning(
                folder.path,
                model=model,
                devices=placement.titles,
                stream=stream,
                validation=None if validation is None else validation.stream,
                source=None if folder.dataset == "caller" else folder.dataset,
            )
            reporter.say("\n".join(lines))

        note = refusals.batch_norm_note(model, stream.batch_size, num_shards)
        if note is not None:
            reporter.say(note)

        def validate() -> dict[str, Any]:
            show = reporter.validation if reporter.has_display else None
            return test(engine, validation, validation_steps, hooks, use_ema=bool(ema), show=show)

        try:
            loop.train(validate)
        except tf.errors.OpError as error:
            raise _during_run(translate(error) or error) from None
        except KerasdistError as error:
            raise _during_run(error) from error.__cause__
        finally:
            engine.state.write_back()
            if folder is not None and loop.epoch:  # A page of an epoch says that it is running.
                reports.write(folder.path, status="unfinished")
        history = hooks.history
        history.ema_weights = engine.ema_weights() if ema else None
        history.profile = traced.split
        if folder is not None:
            folder.finish(model, loop.result(placement), history.ema_weights)
            reports.write(folder.path, status="finished")
            if not isinstance(progress, Reporter):  # The command line has more to say.
                result = json.loads((folder.path / RESULT).read_text())
                lines = announcements.ending(folder.path, result, monitor=monitor)
                reporter.say("\n".join(lines))
        placement.wait()
    return history


def _profile_folder(profile: Any, run: Path | None) -> Path | None:
    if isinstance(profile, bool) or profile is None:
        return run / SUMMARIES if profile and run is not None else None
    return Path(profile).expanduser()


def _during_run(error: Exception) -> Exception:
    """Marks an error as one of a run that had begun, for the exit code."""
    error.during_run = True  # type: ignore[attr-defined]
    return error
