"""Where a run computes: its devices and workers, and which shards of a batch each worker gets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from kerasdist.devices import failures, gpus, visible_gpus, worker
from kerasdist.devices.gpu_failures import out_of_memory, stall
from kerasdist.devices.names import (
    Devices,
    expected_gpus,
    kind_of,
    logical_cpus_for,
    resolve_names,
)
from kerasdist.devices.worker import Workers
from kerasdist.errors import KerasdistError, RunFailedError

# The device of this process that reads data and decides. It is next to each of its GPUs.
HOST = "CPU:0"

# Row and shard numbers are Python's, or tensors inside compiled functions.
WholeNumber: TypeAlias = int | tf.Tensor


def on_host(number: int) -> tf.Tensor:
    """A whole number in the memory of the host."""
    with tf.device(HOST):
        return tf.constant(number, tf.int64)


def fetched(value: Any) -> Any:
    """The tensors of a structure in the memory of the host.

    `numpy()` of a tensor on a GPU that has stopped would also stop all other threads of Python,
    which then could not tell (TF 2.21).
    """
    if not any(isinstance(t, tf.Tensor) and "GPU" in t.device for t in tf.nest.flatten(value)):
        return value
    with tf.device(HOST):
        return tf.nest.map_structure(lambda t: tf.raw_ops.Identity(input=t), value)


def first_row(shard: WholeNumber, num_examples: WholeNumber, num_shards: int) -> WholeNumber:
    """The first row of a shard: shard i of a batch has the rows from `first_row(i)` to
    `first_row(i + 1)`, without the last.

    Only the batch size and the number of shards decide about it, not the devices.

    Example:
        >>> [first_row(i, num_examples=10, num_shards=4) for i in range(5)]
        [0, 2, 5, 7, 10]
    """
    return shard * num_examples // num_shards


@dataclass(frozen=True)
class Share:
    """The shards that one worker runs: `first` to `end`, without `end`, of `shards` per batch."""

    first: int
    end: int
    shards: int

    def rows(
        self,
        num_examples: WholeNumber,
        minimum: Callable[..., Any] = min,
        maximum: Callable[..., Any] = max,
    ) -> tuple[WholeNumber, WholeNumber]:
        """The rows of a batch that the worker needs, as `(begin, end)`.

        An empty shard borrows one row, which is included.

        Args:
            num_examples: The batch size, as a number or as a tensor.
            minimum: `tf.minimum` for tensors.
            maximum: `tf.maximum` for tensors.

        Example:
            >>> Share(0, 2, 4).rows(10), Share(2, 4, 4).rows(10), Share(0, 2, 4).rows(1)
            ((0, 5), (5, 10), (0, 1))
        """
        n = num_examples
        begin = minimum(first_row(self.first, n, self.shards), n - 1)
        borrowed = minimum(first_row(self.end - 1, n, self.shards), n - 1) + 1
        return begin, maximum(first_row(self.end, n, self.shards), borrowed)


@dataclass(frozen=True)
class Placement:
    """The devices of a run.

    `names` are the devices of this process, as TensorFlow numbers them. `strategy` is None on one
    device, which needs no tf.distribute. `workers` is None unless other processes run the same
    training.
    """

    names: tuple[str, ...]
    strategy: tf.distribute.Strategy | None
    workers: Workers | None = None
    calls: stall.Calls = field(default_factory=stall.Calls, compare=False, repr=False)

    @property
    def num_replicas(self) -> int:
        return len(self.names) * (self.workers.num_workers if self.workers is not None else 1)

    @property
    def replicas(self) -> range:
        """The numbers of the replicas of this process."""
        first = 0 if self.workers is None else self.workers.cluster.index * len(self.names)
        return range(first, first + len(self.names))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of this process as `tf.device` takes them, also in a cluster of workers."""
        return self.names if self.workers is None else self.workers.devices

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the devices of all workers, for the user."""
        if self.workers is not None:
            return self.workers.titles
        return tuple(visible_gpus.shown(name) for name in self.names)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes, prints and decides. Exactly one worker does."""
        return self.workers is None or self.workers.cluster.is_chief

    def alone(self) -> Placement:
        """The first device only, for work that cannot be divided. Not for several workers."""
        return replace(self, names=self.names[:1], strategy=None)

    def share(self, shards: int) -> Share | None:
        """The shards of every batch that this worker runs; None if there is only one process."""
        if self.workers is None:
            return None
        count = shards // self.workers.num_workers
        first = self.workers.cluster.index * count
        return Share(first, first + count, shards)

    def of_chief(self, *values: int) -> tuple[int, ...]:
        """The chief's numbers. Workers use them where their clocks or files could differ."""
        return values if self.workers is None else tuple(self.of_all(*values)[0].tolist())

    def of_all(self, *values: int) -> np.ndarray:
        """The numbers of every worker, with the shape `[workers, values]`."""
        own = np.array(values, np.int64)
        return own[np.newaxis] if self.workers is None else self.workers.gather(own)

    def wait(self) -> None:
        """Waits until all workers are here."""
        if self.workers is not None:
            self.workers.wait()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """An error inside this block ends all workers."""
        with contextlib.nullcontext() if self.workers is None else self.workers.together():
            yield

    @contextlib.contextmanager
    def guarded(self) -> Iterator[list[stall.Tell]]:
        """In this block, errors name a GPU that is out of memory or has stopped.

        A stopped GPU ends the process. What is appended to the list is told of it before.
        """
        if not self.is_gpu:
            with self._naming():
                yield []
            return
        titles = dict(zip(self.devices, self._own_titles, strict=True))
        with self._naming(), stall.watching(self.calls, titles, [self._tell]) as tell:
            yield tell

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = self.out_of_memory(error)
            if told is None or isinstance(error, RunFailedError):
                raise
            raise told from None

    def out_of_memory(self, error: Exception) -> RunFailedError | None:
        """What to tell about an error if a device of this process was out of memory, else None."""
        is_op = isinstance(error, tf.errors.OpError)
        if self.workers is not None and is_op and not failures.is_own(self.workers.cluster, error):
            return None
        return out_of_memory.found(error, dict(zip(self.names, self._own_titles, strict=True)))

    @property
    def _own_titles(self) -> tuple[str, ...]:
        return tuple(self.titles[i] for i in self.replicas)

    def _tell(self, message: str) -> None:
        """Tells the user and the other workers that a device has stopped."""
        if self.workers is None:
            stall.print_message(message)
            return
        cluster = self.workers.cluster
        if not worker.report(by=cluster.index, message=message):
            stall.print_message(message)
        failures.tell_others(cluster, RunFailedError(message))

    @property
    def is_gpu(self) -> bool:
        return self.names[0].startswith("GPU")

    @property
    def shares_memory(self) -> bool:
        """Whether there are several devices with the same memory: one copy of the state is enough.

        True for the logical CPUs of one process.
        """
        return self.strategy is not None and self.workers is None and not self.is_gpu

    @property
    def has_copies(self) -> bool:
        """Whether each device has a copy of the state."""
        return self.strategy is not None and not self.shares_memory

    def host(self) -> contextlib.AbstractContextManager[Any]:
        """Where numbers are computed that decide what GPUs do. CPUs compute them themselves."""
        return tf.device(HOST) if self.is_gpu else contextlib.nullcontext()

    def to_host(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor of a GPU in the memory of the host, which then has to ask for it only once."""
        if not self.is_gpu:
            return tensor
        with self.host():
            return tf.identity(tensor)

    @property
    def has_parts(self) -> bool:
        """Whether a replica gets a part of each batch, with its place in the whole batch."""
        return self.workers is not None or self.is_gpu


def place(devices: Devices = "auto", *, soft: bool = False) -> Placement:
    """Resolves `devices` and chooses how gradients are summed across them.

    In a worker of a cluster, `devices` are the devices of each worker.
    """

    def choose() -> tuple[str, ...]:
        return visible_gpus.in_tensorflow(resolve_names(devices, soft))

    def before_start() -> None:
        logical_cpus_for(devices)
        gpus.spare_others(expected_gpus(devices, soft))

    joined = worker.join(kind_of(devices), choose, before_start)
    if joined is None:
        gpus.spare_others(expected_gpus(devices, soft))
    names = choose()
    if joined is not None:
        if names != joined.names:
            raise KerasdistError(
                f"Received `devices={devices!r}` in a worker that joined the others with "
                f"{', '.join(joined.names)}. Expected the same devices: a worker cannot change "
                "them. Pass the same `devices` in every call, or start a new process."
            )
        return Placement(names, joined.strategy, joined)
    if len(names) == 1:
        return Placement(names, None)
    # For what the engine does not add up itself (`engine/transfer/exchange.py`). The default would
    # be collectives, which abort the process if strategies with different numbers of devices follow
    # each other (TF 2.21).
    reduction = tf.distribute.ReductionToOneDevice()
    # Adding the same filter again has no effect.
    logging.getLogger("tensorflow").addFilter(_is_worth_showing)
    return Placement(names, tf.distribute.MirroredStrategy(list(names), reduction))


def _is_worth_showing(record: logging.LogRecord) -> bool:
    """False for TensorFlow's notes about strategies: they would disturb the progress display."""
    return not record.getMessage().startswith(
        ("Using MirroredStrategy", "Reduce to ", "Gather to ", "batch_all_reduce: ")
    )
