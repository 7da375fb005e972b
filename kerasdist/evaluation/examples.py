"""Looks at a model's answers on the validation data, for the report of its run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasdist.data.feed import Feed
from kerasdist.data.forms.sequences import Sequences
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import KERAS_BATCH_SIZE, is_arrays, open_stream
from kerasdist.devices.placement import place
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.evaluation import example_values, sounds
from kerasdist.evaluation.answers import ClassAnswers, ValueAnswers
from kerasdist.evaluation.classes import classes_of_run
from kerasdist.evaluation.regression import num_targets
from kerasdist.models.fields import fields_read, targets_read
from kerasdist.phases.phase import phase
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe
from kerasdist.training.epochs.validation import read_batches

# The report cannot draw a matrix of more classes.
MOST_CLASSES = 100
# A run waits at most this long at its end. Then the examples so far are used.
MOST_SECONDS = 10.0


def evaluate(
    model: keras.Model,
    data: Any,
    recipe: Recipe | None,
    device: str,
    *,
    batch_size: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any] | None:
    """Finds what a report shows of a classifier's or a regression's answers.

    Here, the loss of an example is the negative logarithm of its label's probability, or its
    absolute error, whichever loss the model was trained with. Data in memory is read in random
    order: if the time is not enough for all of it, the part that was read stands for the rest,
    also if the data is sorted by class.

    Args:
        model: A trained model.
        data: Validation data.
        recipe: The recipe, which may name the classes.
        device: The device to compute on.
        batch_size: The examples per batch, if the data has no batches yet.
        clock: Returns seconds; tests replace it.

    Returns:
        The content of evaluation.json; None if the model is neither a classifier of at most
        `MOST_CLASSES` classes nor a regression of a few numbers.
    """
    deadline = clock() + MOST_SECONDS
    with contextlib.ExitStack() as stack:
        is_random = is_arrays(data) or isinstance(data, Sequences)
        stream = open_stream(
            data, default_batch_size=batch_size or KERAS_BATCH_SIZE, shuffle=is_random
        )
        stack.callback(stream.close)
        if stream.is_one_shot or stream.is_endless:
            return None
        answers = _answers(model, stream.element_spec, recipe)
        if answers is None:
            return None
        feed = Feed(stream, prepare=preparation(model, stream, labels=(), name="data"))
        stack.callback(feed.close)
        feed.open(0)
        engine = Engine(model, place([device]), Settings(shards=1))
        is_whole = False
        looking = stack.enter_context(
            phase("looking at the examples", stream.num_batches, unit="batch")
        )
        batches = read_batches(feed)
        while clock() < deadline:
            numbers = feed.examples_of_batch()
            batch = next(batches, None)
            if batch is None:
                is_whole = True
                break
            outputs = np.asarray(keras.tree.flatten(engine.predict(batch))[0])
            targets, fields = targets_read(model, batch), dict(fields_read(model, batch))
            if not answers.add(targets, outputs, fields, numbers):
                return None
            looking.advance()
    if not answers.num_examples:
        return None
    found = {
        "examples": answers.num_examples,
        "is_whole": is_whole,
        "is_random": is_random,
        **answers.content(),
    }
    sounds.add_to(found, recipe)
    example_values.add_to(found, recipe, data)
    return found


def _answers(
    model: keras.Model, spec: Any, recipe: Recipe | None
) -> ClassAnswers | ValueAnswers | None:
    """What collects the answers of this kind of model; None for others."""
    classes, outputs = classes_of_run(model, spec, extras.class_names(recipe))
    if classes is not None:
        return ClassAnswers(classes) if len(classes.names) <= MOST_CLASSES else None
    targets = targets_read(model, spec)
    width = num_targets(model, outputs, targets)
    return ValueAnswers(target_names(model, width, recipe)) if width else None


def target_names(model: keras.Model, count: int, recipe: Recipe | None) -> tuple[str, ...]:
    """The names of a regression's targets: what the recipe says, a model's field, or numbers."""
    said = extras.target_names(recipe)
    if len(said) == count:
        return said
    field = getattr(model, "targets", None)
    name = field if isinstance(field, str) else "target"
    return (name,) if count == 1 else tuple(f"{name} {i + 1}" for i in range(count))
