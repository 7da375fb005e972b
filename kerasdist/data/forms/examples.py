"""Single examples by index: a list of them, or `__len__` and `__getitem__` as in TFDS sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.data.batches import Batch, as_arrays, no_examples
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.data.order import shuffled_order
from kerasdist.devices.placement import Share
from kerasdist.errors import KerasdistError


class ExampleStream(PythonStream):
    """Batches of single examples, which are stacked here."""

    def __init__(self, source: Any, batch_size: int, shuffle: bool, seed: int, name: str):
        num_examples = len(source)
        if num_examples == 0:
            raise no_examples(f"`{name}`")
        self.batch_size, self.num_examples = batch_size, num_examples
        self.num_batches = -(-num_examples // batch_size)
        self._share: Share | None = None

        def make_batches(epoch: int, start: int) -> Iterator[Batch]:
            n = num_examples
            indices = shuffled_order(seed, epoch, n) if shuffle else np.arange(n)
            for first in range(start * batch_size, num_examples, batch_size):
                rows = [int(i) for i in indices[first : first + batch_size]]
                if self._share is not None:
                    rows = rows[slice(*self._share.rows(len(rows)))]
                many = getattr(source, "__getitems__", None)
                examples = many(rows) if many else [source[i] for i in rows]
                where = f"batch {first // batch_size} (from 0) of `{name}`"
                yield _stack([as_arrays(example, where) for example in examples], where)

        super().__init__(make_batches, name=name)

    def take_share(self, share: Share) -> bool:
        self._share = share
        # A batch that was read to learn its shapes has the rows of all workers: read it again.
        self._reader.close()
        return True


def _stack(examples: list[Any], where: str) -> Batch:
    try:
        return tf.nest.map_structure(lambda *values: np.stack(values), *examples)
    except (ValueError, TypeError):
        shapes = [tf.nest.map_structure(np.shape, e) for e in examples]
        other = next((s for s in shapes if s != shapes[0]), shapes[0])
        raise KerasdistError(
            f"Received {where} with examples of the shapes {shapes[0]} and {other}. Expected the "
            "same shape in all examples. Cut or pad them in `__getitem__`."
        ) from None
