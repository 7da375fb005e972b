"""`Sequences`: examples in memory of different lengths, padded batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.data.batches import Batch, Spec, as_arrays, spec_of
from kerasdist.data.forms.arrays import ArrayStream
from kerasdist.errors import KerasdistError


class Sequences:
    """Examples in memory of different lengths. Each batch is padded with zeros to its longest.

    While training, a batch holds examples of similar length, which saves padding: the order is
    shuffled as for other data, then sorted by length within every `group` batches, then the
    batches are shuffled. It depends on (seed, epoch) alone.

    Args:
        fields: The examples of each field, by its name: an array with one row per example, or for
            a sequence a list of arrays that differ in their first dimension.
        length: The name of the field that is added: the length of each example.
        group: How many batches are sorted together; 1 means no grouping by length.

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
        if not isinstance(fields, Mapping):
            raise KerasdistError(
                f"Received `fields` of type {type(fields).__name__}. Expected a dict. Give each "
                'field a name: `{"frames": [...], "label": [...]}`.'
            )
        if not fields:
            raise KerasdistError(
                "Received `fields={}`. Expected at least one sequence. Pass for example "
                '`{"frames": [...], "label": [...]}`.'
            )
        if length in fields:
            raise KerasdistError(
                f"Received a field with the name {length!r}, but kerasdist adds a field of this "
                "name with the length of each example. Expected another name. Rename your field, "
                "or pass another name as `length`."
            )
        if isinstance(group, bool) or not isinstance(group, int) or group < 1:
            raise KerasdistError(
                f"Received `group={group!r}`. Expected a whole number of at least 1. Pass for "
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
                "least one sequence. If all examples have the same length, pass the arrays "
                "without `Sequences`."
            )
        counts = {name: len(value) for name, value in {**self.sequences, **self.others}.items()}
        if len(set(counts.values())) > 1 or not all(counts.values()):
            raise KerasdistError(
                f"Received fields with different numbers of examples, or with none: {counts}. "
                "Expected one entry per example in each field, and at least one. Check the code "
                "that reads them."
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
                    f"{len(arrays[i])} of {other!r}. Expected the same number of both. Check the "
                    "code that reads it."
                )
        if not lengths.all():
            raise KerasdistError(
                f"Received example {int(lengths.argmin())} of length 0. Expected at least one "
                "step. Remove the example."
            )
        return lengths

    def __len__(self) -> int:
        return len(self.lengths)


def _is_sequences(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(np.ndim(item) for item in value)


def _as_sequences(name: str, values: Sequence[Any]) -> list[np.ndarray]:
    arrays = [np.asarray(array) for array in values]
    kinds = {(array.dtype, array.shape[1:]) for array in arrays}
    if len(kinds) > 1 or arrays[0].dtype.kind not in "biuf":
        shown = " and ".join(sorted(f"{dtype} (length, *{shape})" for dtype, shape in kinds))
        raise KerasdistError(
            f"Received {name!r} with arrays of {shown}. Expected numbers of one type, and shapes "
            "that differ in the first dimension only. Convert the arrays."
        )
    return arrays


def group_by_length(order: np.ndarray, lengths: np.ndarray, size: int, group: int) -> np.ndarray:
    """Sorts an order by length within every `group` batches of `size` examples.

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
    def element_spec(self) -> Spec:
        data = self._data
        specs = spec_of(data.others) if data.others else {}
        for name, arrays in data.sequences.items():
            shape = (None, None, *arrays[0].shape[1:])
            specs[name] = tf.TensorSpec(shape, tf.as_dtype(arrays[0].dtype))
        return {**specs, data.length: tf.TensorSpec((None,), tf.int32)}

    def rows(self, epoch: int, start: int) -> None:
        return None

    def _as_tensors(self) -> Batch:
        data = self._data
        splits = np.concatenate([[0], np.cumsum(data.lengths)])
        ragged = {
            name: tf.RaggedTensor.from_row_splits(np.concatenate(arrays), splits)
            for name, arrays in data.sequences.items()
        }
        others = tf.nest.map_structure(tf.convert_to_tensor, data.others)
        return {**others, **ragged, data.length: tf.constant(data.lengths, tf.int32)}

    def _order(self, epoch: int) -> np.ndarray:
        data, size = self._data, self.batch_size
        rows = group_by_length(super()._order(epoch), data.lengths, size, data.group)
        # Short examples must not all come first: shuffle the full batches.
        end = len(rows) // size * size
        batches = rows[:end].reshape(-1, size)
        moved = np.random.default_rng([self._seed, epoch, 1]).permutation(batches)
        return np.concatenate([moved.ravel(), rows[end:]])

    def _slice(
        self, first: tf.Tensor, end: tf.Tensor, own_first: tf.Tensor, own_end: tf.Tensor
    ) -> Batch:
        return self._take(tf.range(own_first, own_end), tf.range(first, end))

    def _take(self, rows: tf.Tensor, all_rows: tf.Tensor) -> Batch:
        taken = {name: tf.gather(t, rows) for name, t in self._tensors.items()}
        # Pad to the longest example of the whole batch, which another worker may have.
        longest = tf.reduce_max(tf.gather(self._tensors[self._data.length], all_rows))
        return taken | {name: _padded(taken[name], longest) for name in self._data.sequences}


def _padded(rows: tf.RaggedTensor, length: tf.Tensor) -> tf.Tensor:
    shape = rows.flat_values.shape[1:]
    filled = rows.to_tensor(shape=[-1, tf.cast(length, tf.int64), *shape])
    return tf.ensure_shape(filled, (None, None, *shape))
