"""Data in memory as streams of batches, which TensorFlow gathers by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.data.python_sources import order
from kerasdist.data.reader import as_arrays, check_rows, spec_of
from kerasdist.data.rows import MAX_BATCH_BYTES, Rows
from kerasdist.devices.placement import Share
from kerasdist.errors import KerasdistError


class TensorStream:
    """What streams that TensorFlow reads by itself have in common."""

    arrays: Any = None
    is_endless = False
    is_one_shot = False
    has_empty_epochs = False
    is_forward_only = False
    num_threads = 1
    read_ahead = tf.data.AUTOTUNE
    last_change: tuple[str, Any] = ("", None)

    def take_share(self, share: Share) -> bool:
        return False

    def first_batch(self) -> Any:
        return next(iter(self.open(0, 0)), None)

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        raise NotImplementedError

    def rows(self, epoch: int, start: int) -> Rows | None:
        """The same batches, for the compiled loop to take by itself; None if it should not."""
        return None

    def reopen(self) -> None:
        return None

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class ArrayStream(TensorStream):
    """Rows of arrays. A batch is a range of the pass's order, so a pass begins anywhere at once."""

    def __init__(self, data: Any, batch_size: int, shuffle: bool, seed: int, name: str):
        self.arrays = as_arrays(data, f"`{name}`")
        self._plan(check_rows(self.arrays, f"`{name}`"), batch_size, shuffle, seed)

    def _plan(self, num_examples: int, batch_size: int, shuffle: bool, seed: int) -> None:
        self.num_examples = num_examples
        self.batch_size: int | None = batch_size
        self.num_batches: int | None = -(-num_examples // batch_size)
        self._shuffle, self._seed = shuffle, seed
        self._share: Share | None = None
        self._tensors: Any = None
        self._take_rows: Any = None
        self._rows: Rows | None = None
        self._epoch: int | None = None

    @property
    def element_spec(self) -> Any:
        return spec_of(self.arrays)

    def take_share(self, share: Share) -> bool:
        self._share = share
        return True

    def rows(self, epoch: int, start: int) -> Rows | None:
        size = self.batch_size or 1
        leaves = tf.nest.flatten(self.arrays)
        num_bytes = sum(a.nbytes // max(len(a), 1) for a in leaves) * size
        if self._share is not None or num_bytes > MAX_BATCH_BYTES:
            return None
        with tf.device("CPU:0"):
            position = tf.constant(start, tf.int64)
            if self._rows is None:
                arrays = tf.nest.map_structure(lambda a: tf.Variable(a, trainable=False), leaves)
                order = tf.Variable(self._order(epoch), trainable=False) if self._shuffle else None
                arrays = tf.nest.pack_sequence_as(self.arrays, arrays)
                self._rows, self._epoch = Rows(arrays, order, position, size), epoch
            elif self._epoch != epoch and self._rows.order is not None:
                self._rows.order.assign(self._order(epoch))
                self._epoch = epoch
        return self._rows._replace(position=position)

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        with tf.device("CPU:0"):
            if self._tensors is None:
                self._tensors = self._as_tensors()
                # Traced once for all passes.
                self._take_rows = tf.function(self._take, autograph=False)
            # Rows in their own order are a slice, which is cheaper.
            indices = tf.constant(self._order(epoch)) if self._shuffle else None
        n, size = self.num_examples, self.batch_size

        def batch(i):
            first, end = i * size, tf.minimum((i + 1) * size, n)
            own = (first, end) if self._share is None else own_rows(self._share, first, end)
            if indices is None:
                return self._slice(first, end, *own)
            return self._take_rows(indices[own[0] : own[1]], indices[first:end])

        batches = tf.data.Dataset.range(start, self.num_batches)
        return batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE)

    def _as_tensors(self) -> Any:
        return tf.nest.map_structure(tf.convert_to_tensor, self.arrays)

    def _order(self, epoch: int) -> np.ndarray:
        return order(self._seed, epoch, self.num_examples)

    def _slice(self, first, end, own_first, own_end) -> Any:
        return tf.nest.map_structure(lambda t: t[own_first:own_end], self._tensors)

    def _take(self, rows, all_rows) -> Any:
        return tf.nest.map_structure(lambda t: tf.gather(t, rows), self._tensors)

    def indices(self, epoch: int, number: int) -> list[int]:
        """The examples of a batch of a pass."""
        size = self.batch_size or 1
        rows = slice(number * size, (number + 1) * size)
        order = self._order(epoch) if self._shuffle else np.arange(self.num_examples)
        return order[rows].tolist()

    def close(self) -> None:
        self._tensors = self._take_rows = self._rows = None


class Sequences:
    """Examples in memory of different lengths: a batch is filled up with zeros to its longest.

    While training, examples of about the same length come into one batch: the order is drawn as
    for other data, then sorted by length within every `group` batches, and these batches are
    shuffled. It is a function of (seed, epoch) alone.

    Args:
        fields: For each field its examples: an array with a row for each, or for a sequence a list
            of arrays that differ in their first dimension.
        length: The name of the field that is added: how long each example is.
        group: How many batches are sorted together; 1 is without grouping.

    Example:
        >>> import numpy as np, kerasdist
        >>> clips = [np.ones((5, 3), "float32"), np.ones((2, 3), "float32")]
        >>> data = kerasdist.Sequences({"frames": clips, "label": np.array([0, 1])})
        >>> len(data), data.lengths.tolist()
        (2, [5, 2])
    """

    def __init__(
        self, fields: Mapping[str, Any], *, length: str = "length", group: int = 8
    ) -> None:
        if not isinstance(fields, Mapping) or not fields or length in fields:
            what = sorted(fields) if isinstance(fields, Mapping) else type(fields).__name__
            raise KerasdistError(
                f"Received `fields` of {what}. Expected a dict of fields, without {length!r}, "
                "which is added. Rename a field, or give another name as `length`."
            )
        if isinstance(group, bool) or not isinstance(group, int) or group < 1:
            raise KerasdistError(
                f"Received `group={group!r}`. Expected a whole number of at least 1. Give for "
                "example `group=8`."
            )
        self.length, self.group = length, group
        self.sequences = {
            name: _as_sequences(name, value)
            for name, value in fields.items()
            if _is_sequences(value)
        }
        others = {name: value for name, value in fields.items() if name not in self.sequences}
        self.others = as_arrays(others, "`fields`") if others else {}
        if not self.sequences:
            raise KerasdistError(
                f"Received the fields {sorted(fields)}, none of them a list of arrays. Expected at "
                "least one sequence. Pass arrays without `Sequences`."
            )
        counts = {name: len(value) for name, value in {**self.sequences, **self.others}.items()}
        if len(set(counts.values())) > 1 or not all(counts.values()):
            raise KerasdistError(
                f"Received fields of different or no lengths: {counts}. Expected an entry for each "
                "example, at least one. Check how they were read."
            )
        self.lengths = self._lengths()

    def _lengths(self) -> np.ndarray:
        (name, first), *rest = self.sequences.items()
        lengths = np.array([len(array) for array in first])
        for other, arrays in rest:
            differs = lengths != [len(array) for array in arrays]
            if differs.any():
                i = int(differs.argmax())
                raise KerasdistError(
                    f"Received example {i} with {len(first[i])} steps of {name!r} and "
                    f"{len(arrays[i])} of {other!r}. Expected the same. Check how it was read."
                )
        if not lengths.all():
            raise KerasdistError(
                f"Received example {int(lengths.argmin())} of length 0. Expected at least one "
                "step. Leave it out."
            )
        return lengths

    def __len__(self) -> int:
        return len(self.lengths)


def _is_sequences(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(np.ndim(item) for item in value)


def _as_sequences(name: str, arrays: Sequence[Any]) -> list[np.ndarray]:
    arrays = [np.asarray(array) for array in arrays]
    kinds = {(array.dtype, array.shape[1:]) for array in arrays}
    if len(kinds) > 1 or arrays[0].dtype.kind not in "biuf":
        shown = " and ".join(sorted(f"{dtype} (length, *{shape})" for dtype, shape in kinds))
        raise KerasdistError(
            f"Received {name!r} with arrays of {shown}. Expected numbers of one type, and shapes "
            "that differ in the first dimension only. Convert them."
        )
    return arrays


def group_by_length(order: np.ndarray, lengths: np.ndarray, size: int, group: int) -> np.ndarray:
    """Sorts every `group` batches of an order by length; the batches keep their places by chance.

    Example:
        >>> import numpy as np
        >>> group_by_length(np.arange(4), np.array([9, 1, 8, 2]), size=2, group=2).tolist()
        [1, 3, 2, 0]
    """
    window = size * group
    pieces = [order[i : i + window] for i in range(0, len(order), window)]
    return np.concatenate([piece[np.argsort(lengths[piece], kind="stable")] for piece in pieces])


class SequenceStream(ArrayStream):
    """Batches of `Sequences`."""

    def __init__(self, data: Sequences, batch_size: int, shuffle: bool, seed: int):
        self._data = data
        self._plan(len(data), batch_size, shuffle, seed)

    @property
    def element_spec(self) -> Any:
        data = self._data
        specs = spec_of(data.others) if data.others else {}
        for name, arrays in data.sequences.items():
            shape = (None, None, *arrays[0].shape[1:])
            specs[name] = tf.TensorSpec(shape, tf.as_dtype(arrays[0].dtype))
        return {**specs, data.length: tf.TensorSpec((None,), tf.int32)}

    def rows(self, epoch: int, start: int) -> None:
        return None

    def _as_tensors(self) -> Any:
        data = self._data
        splits = np.concatenate([[0], np.cumsum(data.lengths)])
        ragged = {
            name: tf.RaggedTensor.from_row_splits(np.concatenate(arrays), splits)
            for name, arrays in data.sequences.items()
        }
        others = tf.nest.map_structure(tf.convert_to_tensor, data.others)
        return {**others, **ragged, data.length: tf.constant(data.lengths, tf.int32)}

    def _order(self, epoch: int) -> np.ndarray:
        data, size = self._data, self.batch_size or 1
        rows = group_by_length(super()._order(epoch), data.lengths, size, data.group)
        # The short ones must not all come first: the full batches change places.
        end = len(rows) // size * size
        batches = rows[:end].reshape(-1, size)
        moved = np.random.default_rng([self._seed, epoch, 1]).permutation(batches)
        return np.concatenate([moved.ravel(), rows[end:]])

    def _slice(self, first, end, own_first, own_end) -> Any:
        return self._take(tf.range(own_first, own_end), tf.range(first, end))

    def _take(self, rows, all_rows) -> Any:
        taken = {name: tf.gather(t, rows) for name, t in self._tensors.items()}
        # As long as the batch's longest, which another worker may have.
        longest = tf.reduce_max(tf.gather(self._tensors[self._data.length], all_rows))
        return taken | {name: _filled_up(taken[name], longest) for name in self._data.sequences}


def _filled_up(rows: tf.RaggedTensor, length: tf.Tensor) -> tf.Tensor:
    shape = rows.flat_values.shape[1:]
    filled = rows.to_tensor(shape=[-1, tf.cast(length, tf.int64), *shape])
    return tf.ensure_shape(filled, (None, None, *shape))


def own_rows(share: Share, first, end) -> tuple[tf.Tensor, tf.Tensor]:
    """A worker's rows of those from `first` to `end`; as `Share.rows`, of tensors."""
    n = tf.cast(end - first, tf.int64)
    begin = tf.minimum(share.first * n // share.shards, n - 1)
    borrowed = tf.minimum((share.end - 1) * n // share.shards, n - 1) + 1
    return first + begin, first + tf.maximum(share.end * n // share.shards, borrowed)
