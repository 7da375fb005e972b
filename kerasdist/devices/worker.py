"""One worker of a cluster: it joins the other workers and exchanges small values with them.

TensorFlow's runtime does the communication: its servers, its collectives, and the heartbeats of its
coordination service, which detect a worker that is dead, stopped or out of reach.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.devices import gpu_shares, loopback, private_tensorflow, visible_gpus, watchdog
from kerasdist.devices.cluster import LIFELINE, REPORT, Cluster, current
from kerasdist.devices.failures import WorkerLostError, find_lost_worker, is_own, tell_others
from kerasdist.errors import DivergedError, KerasdistError

# Numbers per collective. More are sent in pieces, which need less memory.
_PIECE = 1 << 23
# A worker that notices a failure stays this long, so that the others see that it is not lost.
_GRACE_SECONDS = 3.0
# Not int32: "Collective all-reduce does not support datatype DT_INT32 on DEVICE_GPU" (TF 2.21).
_VECTOR = tf.TensorSpec([None], tf.int64)


class Workers:
    """This process and the other workers. A process creates it once and keeps it until it ends."""

    def __init__(self, cluster: Cluster, kind: str, choose_devices: Callable[[], tuple[str, ...]]):
        self.cluster = cluster
        self._is_told = False
        self._watchdog = _start_watchdog(cluster)
        self.names: tuple[str, ...] = ()

        def choose() -> tuple[str, ...]:
            self.names = choose_devices()
            return self.names

        with self.together():
            self.strategy = _strategy(cluster, kind, choose)
            self._gather = tf.function(self._all_gather, input_signature=[_VECTOR])
            self._add = tf.function(self._all_reduce, input_signature=[_VECTOR])
            self._check_names()
        if threading.current_thread() is threading.main_thread():
            # TensorFlow's handler catches SIGTERM and does nothing (2.21).
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.write(watchdog.JOINED)
            self._watchdog.stdin.flush()

    @property
    def num_workers(self) -> int:
        return self.cluster.num_workers

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of this worker as `tf.device` takes them."""
        task = f"/job:worker/replica:0/task:{self.cluster.index}"
        return tuple(f"{task}/device:{name}" for name in self.names)

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the devices of all workers, for the user."""
        names = [visible_gpus.shown(name) for name in self.names]
        return tuple(f"worker {i} {name}" for i in range(self.num_workers) for name in names)

    def _check_names(self) -> None:
        counts = self.gather(np.array([len(self.names)]))[:, 0].tolist()
        if len(set(counts)) > 1:
            listed = ", ".join(f"worker {i} has {count}" for i, count in enumerate(counts))
            raise KerasdistError(
                f"The workers have different numbers of devices: {listed}. Expected the same "
                "number on each. Choose them with `devices` (`--devices`)."
            )
        if self.names[0].startswith("GPU"):
            keys = gpu_shares.keys(self.cluster, visible_gpus.positions(self.names))
            gpu_shares.refuse_shared(self.cluster, self.gather(np.array(keys)).tolist())

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all workers, stacked. Shapes and types must be equal."""
        array = np.ascontiguousarray(array)
        rows = self._gather(tf.constant(_as_words(array.tobytes()))).numpy()
        # All replicas of a worker send the same values.
        rows = rows.reshape(self.num_workers, len(self.names), -1)[:, 0]
        size = array.nbytes
        return np.stack(
            [np.frombuffer(r.tobytes()[:size], array.dtype).reshape(array.shape) for r in rows]
        )

    def join_rows(self, array: np.ndarray) -> np.ndarray:
        """The rows of all workers, one after the other. Workers may have different numbers."""
        counts = self.gather(np.array([len(array)]))[:, 0]
        filled = np.zeros((counts.max(), *array.shape[1:]), array.dtype)
        filled[: len(array)] = array
        parts = self.gather(filled)
        return np.concatenate([part[:n] for part, n in zip(parts, counts, strict=True)])

    def of_chief(self, content: bytes) -> bytes:
        """The chief's bytes, on every worker."""
        size = int(self.gather(np.array([len(content)]))[0, 0])
        words = _as_words(content if self.cluster.is_chief else bytes(size))
        # A sum with zeros is a broadcast. TensorFlow has no public broadcast.
        pieces = [
            self._add(tf.constant(words[i : i + _PIECE])).numpy()
            for i in range(0, len(words), _PIECE)
        ]
        return np.concatenate(pieces).tobytes()[:size]

    def arrays_of_chief(
        self, about: Any, arrays: dict[str, np.ndarray]
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """The chief's `(about, arrays)`; `about` is anything that JSON can hold."""
        kinds = [(name, a.dtype.str, a.shape) for name, a in arrays.items()]
        about, kinds = json.loads(self.of_chief(json.dumps([about, kinds]).encode()))
        received = {}
        for name, dtype, shape in kinds:
            content = arrays[name].tobytes() if self.cluster.is_chief else b""
            array = np.frombuffer(self.of_chief(content), np.dtype(dtype)).reshape(shape)
            received[name] = array.copy()
        return about, received

    def wait(self) -> None:
        """Waits until every worker is here."""
        self.gather(np.zeros(1, np.int32))

    def _on_replicas(
        self, function: Callable[[tf.Tensor], tf.Tensor], vector: tf.Tensor
    ) -> tf.Tensor:
        results = self.strategy.run(function, args=(vector,))
        return self.strategy.experimental_local_results(results)[0]

    def _all_gather(self, vector: tf.Tensor) -> tf.Tensor:
        def gather(own: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_gather(own[tf.newaxis], axis=0)

        return self._on_replicas(gather, vector)

    def _all_reduce(self, vector: tf.Tensor) -> tf.Tensor:
        def add(own: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            own *= tf.cast(tf.equal(replica.replica_id_in_sync_group, 0), own.dtype)
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return self._on_replicas(add, vector)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """An error inside this block ends all workers, and each says which worker failed."""
        try:
            yield
        except (WorkerLostError, DivergedError, KeyboardInterrupt, SystemExit):
            raise  # All workers know of it.
        except tf.errors.OpError as error:
            # Others are not told of errors that one of them may have caused.
            is_new = is_own(self.cluster, error) and not self._is_told
            self._is_told = True
            if is_new:
                tell_others(self.cluster, error)
                raise
            lost = find_lost_worker(self.cluster, error)
            if lost is None:
                raise
            lost.is_told = report(by=self.cluster.index, lost=lost.workers, message=str(lost))
            time.sleep(min(_GRACE_SECONDS, self.cluster.timeout / 10))
            raise lost from None
        except Exception as error:
            if not self._is_told:
                self._is_told = True
                tell_others(self.cluster, error)
            raise


_joined: Workers | None = None


def join(
    kind: str, choose_devices: Callable[[], tuple[str, ...]], before_start: Callable[[], None]
) -> Workers | None:
    """Joins the cluster that TF_CONFIG names; None if this process is alone.

    Args:
        kind: The kind of devices: "GPU" or "CPU".
        choose_devices: Returns their names, once TensorFlow has started.
        before_start: Called before that.
    """
    global _joined
    cluster = current()
    if cluster is None or _is_alone:
        return None
    if _joined is None:
        if private_tensorflow.has_started():
            raise KerasdistError(
                f"TF_CONFIG names {cluster.num_workers} workers, but TensorFlow has already "
                "started in this process. The workers must connect before TensorFlow starts. Pass "
                "`model` as a function that builds it, and call kerasdist before anything else "
                "that uses TensorFlow."
            )
        if kind == "GPU" and REPORT not in os.environ:
            _take_own_gpus(cluster)  # No launcher did it.
        before_start()
        _joined = Workers(cluster, kind, choose_devices)
    return _joined


_is_alone = False


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside this block, `place` uses only the devices of this process."""
    global _is_alone
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


def _take_own_gpus(cluster: Cluster) -> None:
    """Leaves only this worker's share of the GPUs visible."""
    gpus = tf.config.list_physical_devices("GPU")
    share = gpu_shares.share_of_launched(cluster, "gpu")
    if share is None or tf.config.get_visible_devices("GPU") != gpus:  # The caller chose.
        return
    places = [gpu_shares.visible_gpus().index(name) for name in share]
    tf.config.set_visible_devices([gpus[i] for i in places if i < len(gpus)], "GPU")


def report(**fields: object) -> bool:
    """Sends `fields` to the launcher of this worker; False if there is none."""
    descriptor = os.environ.get(REPORT)
    return watchdog.report(int(descriptor) if descriptor else None, **fields)


def _as_words(content: bytes) -> np.ndarray:
    """As 64-bit numbers: collectives cannot send bytes."""
    return np.frombuffer(content + bytes(-len(content) % 8), np.int64)


def _start_watchdog(cluster: Cluster) -> subprocess.Popen[bytes]:
    reports, lifeline = (os.environ.get(name) for name in (REPORT, LIFELINE))
    passed = tuple(int(text) for text in (reports, lifeline) if text)
    fields = {
        "worker": os.getpid(),
        "hosts": cluster.hosts,
        "index": cluster.index,
        "timeout": cluster.timeout,
        "reports": int(reports) if reports else None,
        "lifeline": int(lifeline) if lifeline else None,
    }
    return subprocess.Popen(
        [sys.executable, "-S", "-E", watchdog.__file__, json.dumps(fields)],
        stdin=subprocess.PIPE,
        pass_fds=passed,
    )


def exchange_by(kind: str) -> tf.distribute.experimental.CommunicationOptions:
    """How workers exchange tensors: by NCCL between GPUs, by TensorFlow's own ring between CPUs."""
    ways = tf.distribute.experimental.CommunicationImplementation
    way = ways.NCCL if kind == "GPU" else ways.RING
    return tf.distribute.experimental.CommunicationOptions(implementation=way)


def _strategy(
    cluster: Cluster, kind: str, choose_devices: Callable[[], tuple[str, ...]]
) -> tf.distribute.Strategy:
    # Half of the timeout detects the silence. The other half is for asking who is missing.
    private_tensorflow.watch_workers(
        cluster.num_workers, heartbeat_seconds=cluster.timeout / 2, start_seconds=cluster.timeout
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.hosts)}),
        task_type="worker",
        task_id=cluster.index,
        rpc_layer="grpc",
    )
    with private_tensorflow.chosen_worker_devices(choose_devices):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver, communication_options=exchange_by(kind)
        )
    if cluster.is_on_loopback:
        loopback.keep_to_loopback(int(cluster.hosts[cluster.index].rpartition(":")[2]))
    return strategy
