"""Finds losses that do not add up over the shards of a batch, and says so before training."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from kerasdist import pure
from kerasdist.models import Example, read

_ROWS = 8
_TOLERANCE = 1e-3


class InexactLossWarning(UserWarning):
    """A loss that depends on how a batch is cut."""


def warn_if_inexact(model: keras.Model, batch: Any, shards: int) -> None:
    """Compares the loss of a few examples with the weighted losses of two parts of them.

    They differ for a loss that is summed by hand, has a denominator of its own that Keras does not
    see, or compares examples of a batch with one another.
    """
    example = _rows(read(model, batch), 0, _ROWS)
    count = int(tf.shape(tf.nest.flatten(example.args)[0])[0])
    if count < 2:
        return
    middle = (count + 1) // 2
    whole, denominators = _loss(model, example, count, count, None)
    parts = [
        rows
        / count
        * _loss(model, _rows(example, start, start + rows), rows, count, denominators)[0]
        for start, rows in ((0, middle), (middle, count - middle))
    ]
    if abs(sum(parts) - whole) <= _TOLERANCE * max(abs(whole), 1e-6):
        return
    warnings.warn(
        f"The loss of {type(model).__name__!r} is not a mean over examples: it is {whole:.6g} for "
        f"{count} examples, and {sum(parts):.6g} when they are cut in two. With {shards} shards it "
        "is computed on each shard, so the result depends on their number. Use a Keras loss with "
        "`reduction='sum'` for a sum, a mean over examples in `compute_loss` and `add_loss`, or "
        "`devices=1, shards=1` for a loss that compares examples. See docs/exactness.md.",
        InexactLossWarning,
        stacklevel=3,
    )


def _rows(example: Example, start: int, end: int) -> Example:
    def cut(structure):
        return tf.nest.map_structure(
            lambda t: None if t is None else tf.convert_to_tensor(t)[start:end], structure
        )

    args = cut(example.args)
    x = args[0] if len(args) == 1 else args
    return Example(args, x, cut(example.y), cut(example.sample_weight))


def _loss(model: keras.Model, example: Example, rows: int, count: int, denominators: Any):
    roles = pure.parts(model)
    shard = pure.Shard(tf.constant(rows), tf.constant(count), denominators)
    trainable, other, seeds = (
        [tf.convert_to_tensor(v) for v in roles.natives(role)]
        for role in ("trainable", "other", "seeds")
    )
    with pure.patched():
        # Not as in training: dropout and batch statistics differ between shards by design.
        forward = pure.forward(
            model,
            roles,
            (trainable, other, seeds),
            example,
            shard=shard,
            training=False,
            with_metrics=False,
        )
    return float(forward.loss or 0.0), shard.local_denominators
