"""Summaries for TensorBoard: event files that hold each step once, even after kills.

kerasdist writes the records itself instead of using `tf.summary`, whose writer hides errors in a
background thread and whose histograms need thirty times the memory of a variable.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.engine.observations import Observation
from kerasdist.runs.intervals import Every
from kerasdist.training.progress.meter import Meter

FOLDER = "tensorboard"
NUM_BUCKETS = 30
# TensorBoard finds files by "tfevents" and reads them in the order of their names.
_NAME = "events.out.tfevents.{:010d}.kerasdist"
_EPOCH = "epoch/"
# Values per chunk of a histogram, so that its memory does not grow with the variable.
_CHUNK = 1 << 20
# Odd factors give 256 classes 256 different colours, with black for class 0.
_COLOURS = np.array([97, 179, 53])

_Event, _Summary = tf.compat.v1.Event, tf.compat.v1.Summary


class Summaries:
    """Writes a summary of some steps and of every epoch to a run's folder, or nothing at all.

    If writing fails, it warns once and the training continues.
    """

    def __init__(self, run: Path | None, every: Every, warn: Callable[[str], None]):
        self._every, self._warn = every, warn
        self._files = EventFiles((run or Path()) / FOLDER)
        self._has_graph = False
        self._told = False
        self._read = (0, 0.0)

    def is_due(self, step: int) -> bool:
        """Whether this step gets a summary."""
        return self._every.is_due(step)

    def steps_before_due(self, step: int) -> int | None:
        """How many steps after `step` can run in one call. A step with a summary runs alone."""
        left = self._every.steps_left(step)
        return None if left is None else max(1, left - 1)

    def rewind(self, step: int, *, epoch_ended: bool) -> None:
        """Removes what a run that resumes after `step` will write again."""

        def is_kept(event: Any) -> bool:
            is_epoch = any(value.tag.startswith(_EPOCH) for value in event.summary.value)
            kept = step > 0 and event.step <= step
            # A checkpoint of an epoch's last step can be older than the epoch's end.
            kept = kept and not (is_epoch and event.step == step and not epoch_ended)
            self._has_graph |= kept and bool(event.graph_def)
            return kept

        if self._every.steps is not None:
            with self._telling():
                self._files.keep(is_kept)

    def step(self, step: int, seen: Observation, meter: Meter) -> None:
        """Writes the summary of one step. The first one also writes the graph."""
        with self._telling():
            events = []
            if not self._has_graph:
                graph = seen.graph().SerializeToString()
                events.append(_Event(wall_time=time.time(), step=0, graph_def=graph))
            values = [*_scalars(seen), *_histograms(seen), *_images(seen)]
            examples, seconds = meter.total_examples, meter.total_seconds
            if seconds > self._read[1]:
                rate = (examples - self._read[0]) / (seconds - self._read[1])
                values.append(scalar("examples_per_second", rate))
            self._read = (examples, seconds)
            events.append(_event(step, values))
            self._files.append(events)
            self._has_graph = True

    def epoch(self, step: int, logs: Mapping[str, Any]) -> None:
        """Writes the metrics of an epoch that ended with `step`."""
        if self._every.steps is None:
            return
        values = []
        for name, value in logs.items():
            numbers = np.asarray(value)
            if numbers.dtype.kind not in "bif":
                continue
            for index, number in np.ndenumerate(numbers):
                place = "".join(f"/{i}" for i in index)
                values.append(scalar(f"{_EPOCH}{name}{place}", number))
        with self._telling():
            self._files.append([_event(step, values)])

    def close(self) -> None:
        with self._telling():
            self._files.close()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the training continues whatever happens
            self._files.abandon()
            if not self._told:
                self._told = True
                self._warn(
                    f"could not write summaries to {self._files.folder}: {error}. The training "
                    "continues and will try to write again."
                )


class EventFiles:
    """The event files in one folder: one for each start of the run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._path: Path | None = None
        self._writer: Any = None

    def paths(self) -> list[Path]:
        """The files that kerasdist wrote, in order. Other files are left alone."""
        return sorted(self.folder.glob("events.out.tfevents.*.kerasdist"))

    def append(self, events: list[Any]) -> None:
        """Writes events and flushes them, so that they survive a kill."""
        if self._path is None or not self._path.exists():
            self._open()
        for event in events:
            self._writer.write(event.SerializeToString())
        self._writer.flush()

    def _open(self) -> None:
        self.abandon()
        self.folder.mkdir(exist_ok=True)
        numbers = [int(path.name.split(".")[3]) for path in self.paths()]
        # Larger than all others, even if the clock went backwards.
        number = max(int(time.time()), *(n + 1 for n in numbers), 0)
        self._path = self.folder / _NAME.format(number)
        self._writer = tf.io.TFRecordWriter(str(self._path))
        self._writer.write(_version().SerializeToString())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._path = self._writer = None

    def abandon(self) -> None:
        """After an error: the next event goes to a new file. This one keeps what it has."""
        with contextlib.suppress(OSError, tf.errors.OpError):
            self.close()
        self._path = self._writer = None

    def keep(self, is_kept: Callable[[Any], bool]) -> None:
        """Removes all other events, and records that a killed process left incomplete."""
        for path in self.paths():
            # One flag per record, so that no record is held in memory.
            kept = [e is not None and (e.file_version or is_kept(e)) for e in read_events(path)]
            if sum(map(bool, kept)) <= 1:  # Only the version.
                path.unlink()
            elif not all(kept):
                # TensorBoard does not read files with this name. It is renamed when it is complete.
                draft = self.folder / ".rewriting"
                with tf.io.TFRecordWriter(str(draft)) as writer:
                    for event, keep in zip(read_events(path), kept, strict=True):
                        if keep:
                            writer.write(event.SerializeToString())
                with open(draft, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(draft, path)


def read_events(path: Path) -> Iterator[Any]:
    """The events of a file. The last one is None if it is incomplete."""
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            yield _Event.FromString(record)
    except tf.errors.DataLossError:
        yield None


def _version() -> Any:
    return _Event(wall_time=time.time(), file_version="brain.Event:2")


def _event(step: int, values: list[Any]) -> Any:
    return _Event(wall_time=time.time(), step=step, summary=_Summary(value=values))


def _value(plugin: str, tag: str, tensor: Any, dtype: Any) -> Any:
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    )
    return _Summary.Value(tag=tag, metadata=metadata, tensor=tf.make_tensor_proto(tensor, dtype))


def scalar(tag: str, number: Any) -> Any:
    return _value("scalars", tag, float(number), tf.float32)


def _scalars(seen: Observation) -> Iterator[Any]:
    yield scalar("loss/total", seen.loss)
    for name in ("data_loss", "regularization", "added"):
        if getattr(seen, name) is not None:
            yield scalar(f"loss/{name.removesuffix('_loss')}", getattr(seen, name))
    for replica, loss in enumerate(seen.replica_losses):
        if not math.isnan(loss):
            yield scalar(f"loss/replica_{replica}", loss)
    yield scalar("learning_rate", seen.learning_rate)
    if seen.loss_scale is not None:
        yield scalar("loss_scale", seen.loss_scale)


def _histograms(seen: Observation) -> Iterator[Any]:
    for group, arrays in (("variables", seen.variables), ("gradients", seen.gradients)):
        for name, array in arrays.items():
            yield _value("histograms", f"{group}/{name}", buckets(array), tf.float64)


def _images(seen: Observation) -> Iterator[Any]:
    for replica, (images, targets) in enumerate(zip(seen.images, seen.targets, strict=True)):
        for group, arrays in (("images", images), ("targets", targets)):
            for name, array in arrays.items():
                if array.size:
                    pictures = as_pictures(array, is_target=group == "targets")
                    with tf.device("CPU:0"):
                        encoded = [tf.io.encode_png(picture).numpy() for picture in pictures]
                    height, width = (str(n).encode() for n in pictures.shape[1:3])
                    tag = f"{group}/{name}/replica_{replica}"
                    yield _value("images", tag, [width, height, *encoded], tf.string)


def buckets(array: np.ndarray, num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """Rows of (left edge, right edge, count) over the finite values, of equal widths.

    Example:
        >>> buckets(np.array([0.0, 1.0, 2.0]), 2).tolist()
        [[0.0, 1.0, 1.0], [1.0, 2.0, 2.0]]
    """
    ends = [(chunk.min(), chunk.max()) for chunk in _finite_chunks(array)]
    if not ends:
        return np.zeros((num_buckets, 3))
    low, high = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
    if low == high:
        half = max(0.5, 1e-6 * abs(low))
        low, high = low - half, high + half
    counts = np.zeros(num_buckets, np.int64)
    for chunk in _finite_chunks(array):
        places = ((chunk - low) / (high - low) * num_buckets).astype(np.int64)
        # The largest value belongs to the last bucket.
        counts += np.bincount(np.minimum(places, num_buckets - 1), minlength=num_buckets)
    edges = np.linspace(low, high, num_buckets + 1)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _finite_chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.ravel()
    for begin in range(0, flat.size, _CHUNK):
        chunk = flat[begin : begin + _CHUNK].astype(np.float64)
        finite = np.isfinite(chunk)
        chunk = chunk if finite.all() else chunk[finite]
        if chunk.size:
            yield chunk


def as_pictures(array: np.ndarray, *, is_target: bool = False) -> np.ndarray:
    """Images [n, h, w, channels] as bytes.

    Bytes and floats from 0 to 1 keep their scale. Other values are stretched over the range of each
    image. Integers in a single channel of a target are classes, and each class gets a colour.
    """
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    is_whole = np.issubdtype(array.dtype, np.integer)
    if is_whole and is_target and array.shape[-1] == 1:
        return (array.astype(np.int64) * _COLOURS % 256).astype(np.uint8)
    if array.dtype == np.uint8:
        return array
    wide = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = (f(wide, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    is_unit = (low >= 0) & (high <= (255 if is_whole else 1))
    low = np.where(is_unit, 0.0, low)
    high = np.where(is_unit, 255.0 if is_whole else 1.0, high)
    return np.rint((wide - low) / np.maximum(high - low, 1e-12) * 255).astype(np.uint8)
