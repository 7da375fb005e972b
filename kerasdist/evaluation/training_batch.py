"""Pictures of the first training batch, as the model sees it: after the augmentation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.feed import Feed
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import KERAS_BATCH_SIZE, open_stream
from kerasdist.evaluation.classes import classes_of
from kerasdist.evaluation.drawings import encoded, picture
from kerasdist.models.fields import fields_read, targets_read
from kerasdist.phases.text import decimal
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe

NUM_PICTURES = 32


def pictures_of(
    model: keras.Model,
    data: Any,
    recipe: Recipe | None,
    *,
    batch_size: int | None = None,
    shuffle: bool | int | str = True,
    augment: Callable[..., Any] | None = None,
    seed: int = 0,
) -> dict[str, Any] | None:
    """Draws the examples of the first batch of a training.

    Args:
        model: A built, compiled model.
        data: The data that it was trained on. It is opened again.
        recipe: The recipe, which may name the classes.
        batch_size: The batch size that the training was given.
        shuffle: How the training was shuffled.
        augment: The training's augmentation.
        seed: The training's seed.

    Returns:
        A part of evaluation.json; None if the data cannot be opened again, or cannot be drawn.
    """
    with contextlib.ExitStack() as stack:
        stream = open_stream(
            data,
            batch_size=batch_size,
            shuffle=shuffle,
            default_batch_size=KERAS_BATCH_SIZE,
            seed=seed,
        )
        stack.callback(stream.close)
        if stream.is_one_shot:
            return None
        prepare = preparation(
            model, stream, labels=(), name="data", augment=augment, seed=seed, allow_nan=True
        )
        feed = Feed(stream, prepare=prepare)
        stack.callback(feed.close)
        feed.open(0)
        batch = next(feed.iterator, None)
        if batch is None:
            return None
        fields = dict(fields_read(model, batch))
        num_examples = int(tf.nest.flatten(fields)[0].shape[0])
        labels = _labels(model, batch, recipe)
        found = [
            {"png": encoded(picture(fields, i)), "label": labels[i] if labels else None}
            for i in range(min(num_examples, NUM_PICTURES))
        ]
    found = [each for each in found if each["png"] is not None]
    if not found:
        return None
    return {"pictures": found, "examples": num_examples, "is_augmented": augment is not None}


def _labels(model: keras.Model, batch: Any, recipe: Recipe | None) -> list[str] | None:
    """What to write below each picture: the class, or the target if it is a single number."""
    targets = targets_read(model, batch)
    names = extras.class_names(recipe)
    flat = [each for each in tf.nest.flatten(targets) if each is not None]
    if len(flat) != 1:
        return None
    values = np.asarray(flat[0])
    if names is not None:
        # Two classes may have one output or two.
        is_wide = values.ndim == 2 and values.shape[1] == 2
        widths = (1, 2) if len(names) == 2 and not is_wide else (len(names),)
        spec = tf.TensorSpec.from_tensor(flat[0])
        outputs = [tf.TensorSpec((None, width), tf.float32) for width in widths]
        known = [c for each in outputs if (c := classes_of(model, each, spec, names)) is not None]
        found = known[0].labels(targets) if known else None
        if found is not None:
            return [names[i] if 0 <= i < len(names) else str(i) for i in found.numpy()]
    is_single = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    return [decimal(value) for value in values.reshape(-1)] if is_single else None
