"""Finds a classifier's best and worst validation examples, for the report of its run."""

from __future__ import annotations

import base64
import contextlib
import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.feed import Feed
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import KERAS_BATCH_SIZE, open_stream
from kerasdist.devices.placement import place
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.evaluation.classes import Classes, classes_of_run, likeliest
from kerasdist.models.fields import fields_read, targets_read
from kerasdist.phases.phase import phase
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe
from kerasdist.reports import pictures
from kerasdist.training.epochs.validation import read_batches

# The report cannot draw a matrix of more classes.
MOST_CLASSES = 100
# A run waits at most this long at its end. Then the examples so far are used.
MOST_SECONDS = 10.0
NUM_EXAMPLES = 8
_CHANNELS = (1, 3, 4)
# Frames with fewer numbers are not worth a picture.
_FEWEST_BANDS = 8


@dataclass(frozen=True)
class Seen:
    """An example, the model's answer, and a function that draws the example."""

    loss: float
    position: int
    label: str
    answer: str
    probability: float | None
    label_probability: float | None
    picture: Callable[[], bytes | None]

    def fields(self) -> dict[str, Any]:
        picture = self.picture()
        shown = {name: value for name, value in vars(self).items() if name != "picture"}
        return {**shown, "png": None if picture is None else base64.b64encode(picture).decode()}


class _Highest:
    """Collects the examples with the highest keys. Of equal keys, the earlier example wins."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, dict[str, Any]]] = []

    def offer(self, key: float, seen: Seen) -> None:
        order = (key, -seen.position)  # Positions differ, so the dicts are never compared.
        is_full = len(self._heap) == NUM_EXAMPLES
        if is_full and order < self._heap[0][:2]:
            return
        # Drawn now, because a picture takes less memory than its batch.
        item = (*order, seen.fields())
        if is_full:
            heapq.heapreplace(self._heap, item)
        else:
            heapq.heappush(self._heap, item)

    def fields(self) -> list[dict[str, Any]]:
        return [fields for *_, fields in sorted(self._heap, key=lambda i: i[:2], reverse=True)]


def evaluate(
    model: keras.Model,
    data: Any,
    recipe: Recipe | None,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any] | None:
    """Finds the confusion matrix, and the examples with the highest and the lowest loss.

    Here, the loss of an example is the negative logarithm of its label's probability, whichever
    loss the model was trained with.

    Args:
        model: A trained model.
        data: Validation data.
        recipe: The recipe, which may name the classes.
        device: The device to compute on.
        clock: Returns seconds; tests replace it.

    Returns:
        The content of evaluation.json; None if the model is not a classifier, or has more than
        `MOST_CLASSES` classes.
    """
    deadline = clock() + MOST_SECONDS
    with contextlib.ExitStack() as stack:
        stream = open_stream(data, default_batch_size=KERAS_BATCH_SIZE, shuffle=False)
        stack.callback(stream.close)
        if stream.is_one_shot or stream.is_endless:
            return None
        names = extras.class_names(recipe)
        classes, _ = classes_of_run(model, stream.element_spec, names)
        if classes is None or len(classes.names) > MOST_CLASSES:
            return None
        feed = Feed(stream, prepare=preparation(model, stream, labels=(), name="data"))
        stack.callback(feed.close)
        feed.open(0)
        engine = Engine(model, place([device]), Settings(shards=1))
        matrix = np.zeros((len(classes.names),) * 2, np.int64)
        worst, best = _Highest(), _Highest()
        position, is_whole = 0, False
        looking = stack.enter_context(
            phase("looking at the examples", stream.num_batches, unit="batch")
        )
        batches = read_batches(feed)
        while clock() < deadline:
            batch = next(batches, None)
            if batch is None:
                is_whole = True
                break
            labels = classes.labels(targets_read(model, batch))
            if labels is None:
                return None
            outputs = np.asarray(keras.tree.flatten(engine.predict(batch))[0])
            fields = dict(fields_read(model, batch))
            for label, answer, seen in _look(classes, labels.numpy(), outputs, fields, position):
                matrix[label, answer] += 1
                worst.offer(seen.loss, seen)
                best.offer(-seen.loss, seen)
            position += len(labels)
            looking.advance()
    if not matrix.any():
        return None
    return {
        "examples": int(matrix.sum()),
        "is_whole": is_whole,
        "classes": list(classes.names),
        "confusion": matrix.tolist(),
        "worst": worst.fields(),
        "best": best.fields(),
    }


def _look(
    classes: Classes,
    labels: np.ndarray,
    outputs: np.ndarray,
    fields: dict[str, tf.Tensor],
    position: int,
) -> Iterator[tuple[int, int, Seen]]:
    """`(label, answer, example)` of a batch, without the labels that the loss ignores.

    Args:
        classes: The classes of the model.
        labels: The class number of each example.
        outputs: The model's outputs.
        fields: The batch by field, to draw examples.
        position: The position of the batch's first example in the data.
    """
    scores = classes.scores(outputs)
    for i, (label, (guess,)) in enumerate(zip(labels, likeliest(classes, outputs, 1), strict=True)):
        if not 0 <= label < len(classes.names):
            continue
        share = float(scores[i, label])
        # Scores that are not probabilities are ordered by their distance to the highest score.
        loss = -math.log(max(share, 1e-30)) if guess.is_probability else guess.score - share
        seen = Seen(
            loss=loss,
            position=position + i,
            label=classes.names[label],
            answer=guess.name,
            probability=guess.score if guess.is_probability else None,
            label_probability=share if guess.is_probability else None,
            picture=partial(_picture, fields, i),
        )
        yield int(label), guess.index, seen


def _picture(fields: dict[str, tf.Tensor], i: int) -> bytes | None:
    """Draws the first field of an example that can be drawn."""
    for tensor in fields.values():
        shape = tensor.shape
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
            continue
        if shape.rank == 4 and shape[3] in _CHANNELS:
            return pictures.of_image(tensor[i].numpy())
        if shape.rank == 3 and shape[1] == shape[2] and "length" not in fields:
            return pictures.of_image(tensor[i].numpy())
        if shape.rank == 3 and shape[2] >= _FEWEST_BANDS:
            return pictures.of_frames(tensor[i, : _length(fields, i, shape[1])].numpy())
    return None


def _length(fields: dict[str, tf.Tensor], i: int, longest: int) -> int:
    """The number of frames of an example without padding, if a field "length" says it."""
    length = fields.get("length")
    if length is None or length.shape.rank != 1 or not length.dtype.is_integer:
        return longest
    return max(1, min(longest, int(length[i])))
