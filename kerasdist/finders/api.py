"""`find_learning_rate` and `find_batch_size`, which try out a training and keep nothing of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from kerasdist.devices.placement import Placement, place
from kerasdist.errors import KerasdistError
from kerasdist.finders import batch_trial, host_memory
from kerasdist.finders.batch_search import BatchSizes, Limits, Search
from kerasdist.finders.rate_test import (
    HIGHEST,
    LOWEST,
    NUM_STEPS,
    LearningRates,
    RateTest,
    range_test,
)
from kerasdist.models import refusals
from kerasdist.training import arguments
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.keras_arguments import packing
from kerasdist.training.keras_arguments.hints import check_model, with_hints
from kerasdist.training.options import (
    DataLike,
    DataSource,
    DeviceLike,
    ModelLike,
    ModelSource,
    RunOptions,
    StepOptions,
    TrainingOptions,
    WatchOptions,
)
from kerasdist.training.progress.reporter import Reporter

# A part of the free memory stays free: other programs run, too.
MEMORY_PART = 0.8
# How long a search for batch sizes may take, and the timed steps of one size.
SEARCH_SECONDS, TRIAL_SECONDS = 300.0, 1.0


@with_hints
def find_learning_rate(
    model: ModelLike,
    x: DataLike | None = None,
    y: Any = None,
    batch_size: int | None = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    *,
    data: DataLike | None = None,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    steps: int = NUM_STEPS,
    devices: DeviceLike = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    precision: str | None = None,
    clip_norm: float | None = None,
    augment: Callable[..., Any] | None = None,
    seed: int | None = None,
) -> LearningRates:
    """Finds a learning rate by a range test: a short training whose rate grows with every step.

    The test ends when the loss grows too much or is not finite. It uses a copy of the model's
    optimizer, without its schedule, and keeps nothing: a model that you pass has its weights and
    its optimizer again afterwards. See docs/finders.md.

    Args:
        model: A compiled `keras.Model`, a `kerasdist.Model`, or a function that returns one.
        x: Data in any form that `fit` takes.
        y: The targets, if `x` is arrays.
        batch_size: As in `fit`. Use the one to train with: the result depends on it.
        sample_weight: The weight of each example in the loss, if `x` is arrays.
        class_weight: The weight of each class in the loss.
        data: The same as `x`.
        lowest: The learning rate of the first step.
        highest: The learning rate of the last step.
        steps: How many steps. More steps give a smoother curve.
        devices: As in `fit`.
        shards: As in `fit`.
        deterministic: As in `fit`.
        precision: As in `fit`.
        clip_norm: As in `fit`.
        augment: As in `fit`.
        seed: As in `fit`.

    Returns:
        The rates and losses, `suggestion` and its `reason`. `save("rates.html")` writes the plot.

    Raises:
        KerasdistError: For anything the caller can fix.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> x = np.random.default_rng(0).normal(size=(256, 4))
        >>> found = kerasdist.find_learning_rate(model, x, x.sum(axis=1), seed=0)
        >>> 0.01 < found.suggestion < 1
        True
    """
    check_model(model, "find_learning_rate")
    test = RateTest.checked(lowest, highest, steps)
    arguments.check_weights(class_weight, sample_weight)
    options = _options(
        model,
        packing.packed(x, y, sample_weight, data=data),
        precision=precision,
        read={"batch_size": batch_size, "augment": augment, "class_weight": class_weight},
        step={
            "shards": shards,
            "deterministic": deterministic,
            "clip_norm": clip_norm,
            "seed": seed,
        },
    )
    refusals.refuse_scope()
    return range_test(options, place(devices), test)


@with_hints
def find_batch_size(
    model: ModelLike,
    x: DataLike | None = None,
    y: Any = None,
    batch_size: int = 32,
    sample_weight: Any = None,
    *,
    data: DataLike | None = None,
    seconds: float = SEARCH_SECONDS,
    devices: DeviceLike = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    precision: str | None = None,
    augment: Callable[..., Any] | None = None,
    seed: int | None = None,
) -> BatchSizes:
    """Finds the largest batch size that fits on the devices, and the fastest one.

    Doubles the batch size until it does not fit, then looks between the last two sizes. The trials
    run in this process, which holds the memory of its GPUs. On CPUs, the memory of the next trial
    is predicted from the last two, and a batch that would need more than 80% of the free memory is
    not tried. (`kerasdist fit RECIPE --find-batch-size` gives each trial its own process.) A model
    that you pass has its weights and its optimizer again afterwards. See docs/finders.md.

    Args:
        model: A compiled `keras.Model`, a `kerasdist.Model`, or a function that returns one.
        x: Data that is not batched yet, in any form that `fit` takes.
        y: The targets, if `x` is arrays.
        batch_size: The first size to try.
        sample_weight: The weight of each example in the loss, if `x` is arrays.
        data: The same as `x`.
        seconds: About how long to search. Larger batches that would take longer are not tried.
        devices: As in `fit`.
        shards: As in `fit`.
        deterministic: As in `fit`.
        precision: As in `fit`.
        augment: As in `fit`.
        seed: As in `fit`.

    Returns:
        `largest` and `fastest`, and the `trials` with speed and memory.

    Raises:
        KerasdistError: For anything the caller can fix, or if not even a small batch fits.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((64, 4))
        >>> found = kerasdist.find_batch_size(model, x, x[:, :1], batch_size=32)
        >>> found.largest
        64
    """
    check_model(model, "find_batch_size")
    arguments.check_counts(batch_size=batch_size)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
        raise KerasdistError(
            f"Received `seconds={seconds!r}`. Expected a number above 0: about how long the search "
            "may take. Use for example `seconds=60`."
        )
    options = _options(
        model,
        packing.packed(x, y, sample_weight, data=data),
        precision=precision,
        read={"augment": augment},
        step={"shards": shards, "deterministic": deterministic, "seed": seed},
    )
    refusals.refuse_scope()
    placement = place(devices)
    most = batch_trial.num_examples(options, batch_size)
    limits = Limits(
        start=min(batch_size, most),
        least=min(shards or placement.num_replicas, most),
        most=most,
        seconds=seconds,
        memory=partial(_memory, placement),
    )
    return Search(limits, partial(_attempt, options, placement)).run()


def _options(
    model: ModelLike,
    data: Any,
    *,
    precision: str | None,
    read: dict[str, Any],
    step: dict[str, Any],
) -> TrainingOptions:
    """The options of a training that keeps and shows nothing."""
    return TrainingOptions(
        source=ModelSource.checked(model, precision, None),
        data=DataSource.checked(data, **read),
        plan=Plan.checked(epochs=1, steps=None, steps_per_epoch=None),
        step=StepOptions.checked(**step),
        keeping=RunOptions.checked(),
        watching=WatchOptions.checked(Reporter("silent"), run_dir=None),
    )


def _attempt(options: TrainingOptions, placement: Placement, batch_size: int) -> Any:
    gc.collect()  # The memory of the last trial is free again.
    return batch_trial.attempt(options, placement, batch_size, TRIAL_SECONDS)


def _memory(placement: Placement) -> int | None:
    """What this process may use, of the machine's memory. GPUs say themselves what is too much."""
    if placement.is_gpu:
        return None
    free = host_memory.free()
    return None if free is None else host_memory.resident() + int(MEMORY_PART * free)
