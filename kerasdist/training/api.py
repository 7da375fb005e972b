"""`fit`, which checks its arguments and hands them on as options; `evaluate` and `predict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from kerasdist.devices.placement import place
from kerasdist.model_files.tf_checkpoints.mapping import MapLike
from kerasdist.models import refusals
from kerasdist.training import arguments
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.inference import evaluate, predict
from kerasdist.training.keras_arguments import packing
from kerasdist.training.keras_arguments.hints import check_model, with_hints
from kerasdist.training.keras_arguments.verbosity import mode_for
from kerasdist.training.options import (
    CallbackLike,
    DataLike,
    DataSource,
    DeviceLike,
    ModelLike,
    ModelSource,
    PathLike,
    RunOptions,
    StepOptions,
    TrainingOptions,
    WatchOptions,
)
from kerasdist.training.progress.reporter import Reporter
from kerasdist.training.session import train

__all__ = ["evaluate", "fit", "predict"]


@with_hints
def fit(
    model: ModelLike,
    x: DataLike | None = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: CallbackLike | None = None,
    validation_split: float = 0.0,
    validation_data: DataLike | None = None,
    shuffle: bool | int | str = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    data: DataLike | None = None,
    steps: int | None = None,
    devices: DeviceLike = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    jit: bool | str = "auto",
    whole_batch_loss: bool | None = None,
    precision: str | None = None,
    clip_norm: float | None = None,
    ema: float | None = None,
    augment: Callable[..., Any] | None = None,
    seed: int | None = None,
    run_dir: PathLike | None = None,
    resume: bool = True,
    init_from: PathLike | None = None,
    init_map: MapLike | None = None,
    init_averages: bool = False,
    save_every: int | str | None = None,
    keep: int = 2,
    monitor: str | None = None,
    keep_best: int = 1,
    on_nan: str = "stop",
    sync_batch_norm: bool = False,
    allow_nan: bool | str = False,
    log_every: int | None = None,
    summary_every: int | None = None,
    profile: bool | PathLike = False,
    log_placement: bool = False,
    progress: bool | str = "auto",
) -> keras.callbacks.History:
    """Trains a Keras model on one or more devices, with the same maths on any number of them.

    The arguments before `data` are those of Keras's `fit`, in its order and with its meaning. A
    second `fit` of a model continues its training, as in Keras.

    Args:
        model: A compiled `keras.Model`, a `kerasdist.Model`, or a function that returns one. It can
            be built anywhere. Afterwards it holds the trained weights.
        x: Arrays (a list is several inputs), a `tf.data.Dataset`, a random-access source, a
            `keras.utils.PyDataset`, a provider with `get_batch_data()`, or a generator function.
            Without `y`, a tuple is `(x, y[, sample_weight])`. See docs/data.md.
        y: The targets, if `x` is arrays.
        batch_size: Examples per step, over all devices, for data that is not batched yet. Default
            for arrays: 32, or with `steps_per_epoch` as many as make that many steps.
        epochs: How many epochs to train. After an `initial_epoch`: the number of the last one.
        verbose: 0 is silent. 1 and "auto" show a live display in a terminal or notebook and print
            lines elsewhere. 2 prints one line per epoch.
        callbacks: A Keras callback, or a list of them.
        validation_split: The part of the arrays to validate on: their last rows, before shuffling.
        validation_data: Data in any form, evaluated after each epoch. It wins over
            `validation_split`.
        shuffle: Shuffle the examples (of a `PyDataset`: the batches). For a dataset of examples,
            this can be the size of the shuffle buffer. "batch" shuffles arrays within each batch.
        class_weight: The weight of each class in the loss.
        sample_weight: The weight of each example in the loss, if `x` is arrays.
        initial_epoch: The epoch to start with, counted from 0.
        steps_per_epoch: How many steps make an epoch. Default: one pass over the data. The next
            epoch continues in the same pass. An epoch also ends where a pass ends.
        validation_steps: How many batches of the validation data to evaluate. Default: all.
        validation_batch_size: Default: `batch_size`.
        validation_freq: Validate after every so many epochs, or after the epochs of a list, counted
            from 1.
        data: The same as `x`.
        steps: How many steps to train instead of `epochs`, over as many epochs as that takes.
        devices: "auto" (every GPU, otherwise the CPU), a number, indices, names, "cpu" or "cpu:4".
        shards: The number of equal parts into which a batch is cut: a multiple of the number of
            devices. More shards than devices accumulate gradients and save memory.
        deterministic: With the same `shards`, get the same bits on any number of devices.
        jit: Compile the forward and backward pass with XLA: True, False or "auto". "auto" does what
            `compile(jit_compile=...)` says, or else what Keras's `fit` would do: on GPUs it
            compiles, on CPUs not. See docs/inside-one-step.md.
        whole_batch_loss: Compute the loss on the outputs for the whole batch, not on each shard.
            None does so for a loss that is not a mean over examples, such as a contrastive loss.
            False refuses such a loss. See docs/exactness.md.
        precision: "mixed_bfloat16", "mixed_float16" or another Keras dtype policy, if `model` is a
            function.
        clip_norm: The largest global norm of the gradients, computed over the whole batch.
        ema: The decay of a moving average of the weights, which validation uses. The model keeps
            its raw weights; the average is in `history.ema_weights`.
        augment: `augment(batch, seed)` changes a batch, with TensorFlow's stateless functions.
        seed: Decides the order of the data, dropout, augmentation, and the initial weights if
            `model` is a function. By default it comes from Python's `random`, which
            `keras.utils.set_random_seed` seeds. A resumed run keeps the seed it started with.
        run_dir: A folder for configuration, checkpoints, metrics and the trained model. If it
            already holds this run, the run resumes from its newest checkpoint.
        resume: Resume a run found in `run_dir`. If False, finding one is an error.
        init_from: What to read weights from: a run's folder, a `.keras` or `.weights.h5` file, or
            a checkpoint of TensorFlow 1 or 2. See `kerasdist.load_weights`.
        init_map: The names in such a checkpoint of weights that are called differently.
        init_averages: Read the moving averages of such a checkpoint.
        save_every: Save a checkpoint every so many steps, every so many seconds ("30s"), every
            "epoch", or when the first of several is due ("500,30s"). Default: every 1,000 steps,
            and every 30 seconds or less often for large models.
        keep: How many checkpoints to keep, at least 2.
        monitor: The logged value that decides which model is the best one, `best.keras`. Default:
            the validation loss.
        keep_best: How many of the best models to keep. With 3, `run_dir/best` has the three best
            ones, and `kerasdist.load(run_dir, "best-2")` loads the second.
        on_nan: "stop" stops at a NaN or infinity before it reaches the weights. "skip" leaves the
            step out on all devices, at most 10 steps in a row.
        sync_batch_norm: Let every BatchNormalization take its statistics over the whole batch, as
            Keras does on one device, and not over a shard of it.
        allow_nan: Accept NaN and infinity in the data, for a model or loss that masks them. With
            "warn", the first one is a warning. Steps are still checked.
        log_every: Steps between two log lines. Default: one line per epoch.
        summary_every: Steps between two TensorBoard summaries in `run_dir/tensorboard`. Default:
            none. See docs/summaries.md.
        profile: Trace a few steps for TensorBoard, into `run_dir/tensorboard` or the folder given
            here, and print where their time goes. `history.profile` has the result. See
            docs/profiling.md.
        log_placement: Print which operations run on which device, and list all of them in
            `run_dir/placement.txt`.
        progress: Wins over `verbose`. "lines" always prints lines, "json" prints one JSON object
            per line, False is silent.

    Returns:
        Keras's `History`.

    Raises:
        KerasdistError: For anything the caller can fix.
        DivergedError: If a step is not finite. The weights are those of the previous step.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.linspace(0, 1, 64)[:, None]
        >>> history = kerasdist.fit(model, x, 2 * x, batch_size=16, epochs=2, verbose=0)
        >>> sorted(history.history)
        ['loss']
    """
    check_model(model, "fit")
    arguments.check_weights(class_weight, sample_weight)
    data = packing.packed(x, y, sample_weight, data=data)
    packing.refuse_path(validation_data, "validation_data")
    if validation_split and validation_data is None:
        data, validation_data = packing.split(data, validation_split)
    options = TrainingOptions(
        plan=Plan.checked(
            epochs=epochs,
            steps=steps,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=initial_epoch,
        ),
        source=ModelSource.checked(
            model, precision, init_from, init_map=init_map, init_averages=init_averages
        ),
        data=DataSource.checked(
            data,
            batch_size=batch_size,
            shuffle=shuffle,
            augment=augment,
            class_weight=class_weight,
            allow_nan=allow_nan,
            validation_data=validation_data,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
        ),
        step=StepOptions.checked(
            shards=shards,
            deterministic=deterministic,
            jit=jit,
            clip_norm=clip_norm,
            ema=ema,
            seed=seed,
            on_nan=on_nan,
            sync_batch_norm=sync_batch_norm,
            whole_batch_loss=whole_batch_loss,
        ),
        keeping=RunOptions.of_fit(
            run_dir,
            resume=resume,
            save_every=save_every,
            keep=keep,
            monitor=monitor,
            keep_best=keep_best,
        ),
        watching=WatchOptions.checked(
            Reporter(mode_for(verbose, progress)),
            run_dir=run_dir,
            log_every=log_every,
            summary_every=summary_every,
            profile=profile,
            log_placement=log_placement,
        ),
        callbacks=arguments.as_callbacks(callbacks),
        verbose=0 if progress is False else verbose,
    )
    refusals.refuse_scope()
    return train(options, place(devices))
