"""`fit`, `evaluate` and `predict`: they check their arguments and hand them on as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from kerasdist.devices.placement import place
from kerasdist.models import refusals
from kerasdist.training import arguments, inference
from kerasdist.training.epochs.plan import Plan
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
from kerasdist.training.progress.reporter import Reporter, mode_of
from kerasdist.training.session import train


def fit(
    model: ModelLike,
    data: DataLike,
    *,
    validation_data: DataLike | None = None,
    validation_steps: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    devices: DeviceLike = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    jit: bool | str = "auto",
    precision: str | None = None,
    clip_norm: float | None = None,
    ema: float | None = None,
    class_weight: dict[int, float] | None = None,
    augment: Callable[..., Any] | None = None,
    shuffle: bool | int = True,
    seed: int | None = None,
    run_dir: PathLike | None = None,
    resume: bool = True,
    init_from: PathLike | None = None,
    save_every: int | str | None = None,
    keep: int = 2,
    monitor: str | None = None,
    on_nan: str = "stop",
    allow_nan: bool | str = False,
    log_every: int | None = None,
    summary_every: int | None = None,
    profile: bool | PathLike = False,
    log_placement: bool = False,
    callbacks: CallbackLike | None = None,
    progress: bool | str = "auto",
) -> keras.callbacks.History:
    """Trains a Keras model on one or more devices, with the same maths on any number of them.

    Args:
        model: A compiled `keras.Model`, a `kerasdist.Model`, or a function that returns one. It can
            be built anywhere. Afterwards it holds the trained weights.
        data: Arrays `(x, y[, sample_weight])` or a dict of arrays, a `tf.data.Dataset`, a
            random-access source, a `keras.utils.PyDataset`, a provider with `get_batch_data()`, or
            a generator function. See docs/data.md.
        validation_data: Data in any of these forms, evaluated after each epoch.
        validation_steps: How many batches of it to evaluate. Default: all.
        epochs: How many epochs to train.
        steps: How many steps to train instead, over as many epochs as that takes.
        steps_per_epoch: How many steps make an epoch. Default: one pass over the data. The next
            epoch continues in the same pass. An epoch also ends where a pass ends.
        batch_size: Examples per step, over all devices, for data that is not batched yet.
        devices: "auto" (every GPU, otherwise the CPU), a number, indices, names, "cpu" or "cpu:4".
        shards: The number of equal parts into which a batch is cut: a multiple of the number of
            devices. More shards than devices accumulate gradients and save memory.
        deterministic: With the same `shards`, get the same bits on any number of devices.
        jit: Compile the forward and backward pass with XLA: True, False or "auto". "auto" does what
            `compile(jit_compile=...)` says, or else what Keras's `fit` would do: on GPUs it
            compiles, on CPUs not. See docs/inside-one-step.md.
        precision: "mixed_bfloat16", "mixed_float16" or another Keras dtype policy, if `model` is a
            function.
        clip_norm: The largest global norm of the gradients, computed over the whole batch.
        ema: The decay of a moving average of the weights, which validation uses. The model keeps
            its raw weights; the average is in `history.ema_weights`.
        class_weight: The weight of each class in the loss.
        augment: `augment(batch, seed)` changes a batch, with TensorFlow's stateless functions.
        shuffle: Shuffle the examples (of a `PyDataset`: the batches). For a dataset of examples,
            this can be the size of the shuffle buffer.
        seed: Decides the order of the data, dropout, augmentation, and the initial weights if
            `model` is a function. By default it comes from Python's `random`, which
            `keras.utils.set_random_seed` seeds. A resumed run keeps the seed it started with.
        run_dir: A folder for configuration, checkpoints, metrics and the trained model. If it
            already holds this run, the run resumes from its newest checkpoint.
        resume: Resume a run found in `run_dir`. If False, finding one is an error.
        init_from: A run's folder, a `.keras` file or a `.weights.h5` file to read weights from.
        save_every: Save a checkpoint every so many steps, every so many seconds ("30s") or every
            "epoch". Default: 1,000 steps.
        keep: How many checkpoints to keep, at least 2.
        monitor: The logged value that decides which model is the best one, `best.keras`. Default:
            the validation loss.
        on_nan: "stop" stops at a NaN or infinity before it reaches the weights. "skip" leaves the
            step out on all devices, at most 10 steps in a row.
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
        callbacks: A Keras callback, or a list of them.
        progress: "auto" shows a live display in a terminal or notebook and prints lines elsewhere.
            "lines" always prints lines, "json" prints one JSON object per line, False is silent.

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
        >>> history = kerasdist.fit(model, (x, 2 * x), batch_size=16, epochs=2, progress=False)
        >>> sorted(history.history)
        ['loss']
    """
    options = TrainingOptions(
        plan=Plan.checked(epochs=epochs, steps=steps, steps_per_epoch=steps_per_epoch),
        source=ModelSource.checked(model, precision, init_from),
        data=DataSource.checked(
            data,
            batch_size=batch_size,
            shuffle=shuffle,
            augment=augment,
            class_weight=class_weight,
            allow_nan=allow_nan,
            validation_data=validation_data,
            validation_steps=validation_steps,
        ),
        step=StepOptions.checked(
            shards=shards,
            deterministic=deterministic,
            jit=jit,
            clip_norm=clip_norm,
            ema=ema,
            seed=seed,
            on_nan=on_nan,
        ),
        keeping=RunOptions.checked(
            run_dir, resume=resume, save_every=save_every, keep=keep, monitor=monitor
        ),
        watching=WatchOptions.checked(
            Reporter(mode_of(progress)),
            run_dir=run_dir,
            log_every=log_every,
            summary_every=summary_every,
            profile=profile,
            log_placement=log_placement,
        ),
        callbacks=arguments.as_callbacks(callbacks),
    )
    refusals.refuse_scope()
    return train(options, place(devices))


def evaluate(
    model_or_run: keras.Model | PathLike,
    data: DataLike,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    devices: DeviceLike = "auto",
    allow_nan: bool | str = False,
    callbacks: CallbackLike | None = None,
) -> dict[str, Any]:
    """Computes the exact loss and metrics over all of `data`, on any number of devices.

    Args:
        model_or_run: A compiled `keras.Model`, a `kerasdist.Model`, or the folder of a finished
            run (for its other models see `kerasdist.load`).
        data: Data in any form that `fit` takes.
        batch_size: Examples per batch, over all devices, for data that is not batched yet.
        steps: How many batches. Default: all.
        devices: As in `fit`.
        allow_nan: As in `fit`.
        callbacks: A Keras callback, or a list of them. Their `on_test_*` hooks are called.

    Returns:
        A dict of floats by name.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(loss="mse", optimizer="sgd")
        >>> kerasdist.evaluate(model, (np.ones((3, 2)), np.ones((3, 1))))
        {'loss': 1.0}
    """
    options = inference.TestOptions.checked(
        batch_size=batch_size, steps=steps, allow_nan=allow_nan, callbacks=callbacks
    )
    refusals.refuse_scope()
    return inference.evaluate_model(model_or_run, data, options, place(devices))


def predict(
    model_or_run: keras.Model | PathLike,
    data: DataLike,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    devices: DeviceLike = "auto",
    callbacks: CallbackLike | None = None,
) -> Any:
    """Computes the model's outputs for all of `data`, in the same order.

    Args:
        model_or_run: A `keras.Model`, compiled or not, or the folder of a finished run.
        data: Data in any form that `fit` takes, with or without targets.
        batch_size: Examples per batch, over all devices, for data that is not batched yet.
        steps: How many batches. Default: all.
        devices: As in `fit`.
        callbacks: A Keras callback, or a list of them. Their `on_predict_*` hooks are called.

    Returns:
        Arrays in the structure of the model's outputs.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Rescaling(2.0)])
        >>> kerasdist.predict(model, np.array([[1.0], [3.0]])).tolist()
        [[2.0], [6.0]]
    """
    options = inference.TestOptions.checked(batch_size=batch_size, steps=steps, callbacks=callbacks)
    refusals.refuse_scope()
    return inference.predict_with(model_or_run, data, options, place(devices))
