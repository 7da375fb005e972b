"""What layers of older versions of Keras do differently. Each difference has a test.

`kerasdist.versions` says which versions kerasdist works with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.models.pure.replacements import Replace, Replacements
from kerasdist.versions import number

# A stateful layer of Keras 3.13 needs to know the size of the batch.
NEEDS_KNOWN_BATCHES = number(keras.__version__) < (3, 14)


def _with_known_batch(keras_call: Callable[..., Any]) -> Callable[..., Any]:
    """`RNN.call`, which compares the batch's size with that of a stateful layer's state.

    Before 3.14 it compares tensors if the graph does not know the size, as in a graph for batches
    of several sizes, and that fails. So the graph is told the size. It is checked in every step.
    """

    def call(self: keras.layers.RNN, sequences: Any, *args: Any, **kwargs: Any) -> Any:
        size = self._expected_batch_size
        if self.stateful and isinstance(size, int) and tf.is_tensor(sequences):
            sequences = tf.ensure_shape(sequences, [size, *sequences.shape[1:]])
        return keras_call(self, sequences, *args, **kwargs)

    return call


def apply(replace: Replace) -> None:
    """Replaces what needs it while a model is built, or a step is traced."""
    if NEEDS_KNOWN_BATCHES:
        replace(keras.layers.RNN, "call", _with_known_batch(keras.layers.RNN.call))


_REPLACED = Replacements(apply)


def patched() -> contextlib.AbstractContextManager[None]:
    """Inside, layers of older versions work as those of newer ones."""
    return _REPLACED.active()
