"""One worker of a cluster: joins the others, exchanges small things with them, and tells failures.

TensorFlow's runtime does all of the talking: its servers, its collectives, and the heartbeats of
its coordination service, by which a dead, stopped or unreachable worker is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# No public names for these (TF 2.21): heartbeats of a chosen length, and errors for all workers.
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from kerasdist.devices import cluster as clusters
from kerasdist.devices import loopback, watchdog
from kerasdist.devices.cluster import Cluster
from kerasdist.errors import DivergedError, KerasdistError

# Elements of one collective: more is sent in pieces, so that memory does not double.
_PIECE = 1 << 24
_MARK = "kerasdist-worker"
# So long a worker that noticed a failure stays, so that the others can see that it is not lost.
_GRACE_SECONDS = 3.0


class WorkerLostError(KerasdistError):
    """Another worker failed, or cannot be reached any more."""

    def __init__(self, message: str, workers: Sequence[int]):
        super().__init__(message)
        self.workers = tuple(workers)
        self.during_run = True
        # By the launcher: it need not be printed once more.
        self.is_told = False


class Workers:
    """This process among its workers. There is one in a process, and it stays until the end."""

    def __init__(self, cluster: Cluster, choose_devices: Callable[[], tuple[str, ...]]):
        self.cluster = cluster
        self._is_told = False
        self._watchdog = _start_watchdog(cluster)
        self.names: tuple[str, ...] = ()

        def local_devices(_self: Any, _resolver: Any, worker: str) -> tuple[tuple[str, ...], str]:
            # Called when TensorFlow has started, which only now knows its devices.
            self.names = choose_devices()
            kind = self.names[0].split(":")[0]
            return tuple(f"{worker}/device:{name}" for name in self.names), kind

        with self.together():
            self.strategy = _strategy(cluster, local_devices)
            self._gather = tf.function(self._all_gather, input_signature=[_VECTOR])
            self._add = tf.function(self._all_reduce, input_signature=[_VECTOR])
            self._check_names()
        if threading.current_thread() is threading.main_thread():
            # TensorFlow's own handler takes SIGTERM and does nothing with it (2.21).
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.write(watchdog.JOINED)
            self._watchdog.stdin.flush()

    @property
    def num_workers(self) -> int:
        return self.cluster.num_workers

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of all devices of the run."""
        return tuple(f"worker {i} {name}" for i in range(self.num_workers) for name in self.names)

    def _check_names(self) -> None:
        counts = self.gather(np.array([len(self.names)]))[:, 0].tolist()
        if len(set(counts)) > 1:
            listed = ", ".join(f"worker {i} has {count}" for i, count in enumerate(counts))
            raise KerasdistError(
                f"Received workers with different numbers of devices: {listed}. Expected the same "
                "on each. Choose them with `--devices`."
            )

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all workers, of one shape and type, with the worker in front."""
        array = np.ascontiguousarray(array)
        rows = self._gather(tf.constant(_as_words(array.tobytes()))).numpy()
        # Each replica of a worker has sent the same.
        rows = rows.reshape(self.num_workers, len(self.names), -1)[:, 0]
        size = array.nbytes
        return np.stack(
            [np.frombuffer(r.tobytes()[:size], array.dtype).reshape(array.shape) for r in rows]
        )

    def join_rows(self, array: np.ndarray) -> np.ndarray:
        """The rows of all workers, which may have different numbers of them."""
        counts = self.gather(np.array([len(array)]))[:, 0]
        filled = np.zeros((counts.max(), *array.shape[1:]), array.dtype)
        filled[: len(array)] = array
        parts = self.gather(filled)
        return np.concatenate([part[:n] for part, n in zip(parts, counts, strict=True)])

    def of_chief(self, content: bytes) -> bytes:
        """The chief's bytes, on every worker."""
        size = int(self.gather(np.array([len(content)]))[0, 0])
        words = _as_words(content if self.cluster.is_chief else bytes(size))
        # A sum with zeros is a broadcast, which has no public name.
        pieces = [
            self._add(tf.constant(words[i : i + _PIECE])).numpy()
            for i in range(0, len(words), _PIECE)
        ]
        return np.concatenate(pieces).tobytes()[:size]

    def arrays_of_chief(
        self, about: Any, arrays: dict[str, np.ndarray]
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """`(about, arrays)` of the chief; `about` is anything that JSON has words for."""
        kinds = [(name, a.dtype.str, a.shape) for name, a in arrays.items()]
        about, kinds = json.loads(self.of_chief(json.dumps([about, kinds]).encode()))
        received = {}
        for name, dtype, shape in kinds:
            content = arrays[name].tobytes() if self.cluster.is_chief else b""
            array = np.frombuffer(self.of_chief(content), np.dtype(dtype)).reshape(shape)
            received[name] = array.copy()
        return about, received

    def wait(self) -> None:
        """Until every worker is here."""
        self.gather(np.zeros(1, np.int32))

    def _on_replicas(self, function: Callable, vector: tf.Tensor) -> tf.Tensor:
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
        """What fails here fails on all workers, and each says which worker it was."""
        try:
            yield
        except (WorkerLostError, DivergedError, KeyboardInterrupt, SystemExit):
            raise  # Known to all.
        except tf.errors.OpError as error:
            lost = self._explain(error)
            if lost is None:
                self._tell(error)
                raise
            time.sleep(min(_GRACE_SECONDS, self.cluster.timeout / 10))
            raise lost from None
        except Exception as error:
            self._tell(error)
            raise

    def _tell(self, error: Exception) -> None:
        """Ends what the other workers are waiting for, with this worker's error."""
        if self._is_told:
            return
        self._is_told = True
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"{_MARK} {self.cluster.index}: {reason}"
        with contextlib.suppress(Exception):
            context.context().report_error_to_cluster(tf.errors.ABORTED, message)
            # They may learn it by the loss of this process before they read it.
            time.sleep(0.5)

    def _explain(self, error: tf.errors.OpError) -> WorkerLostError | None:
        """Who failed, if it was another worker."""
        self._is_told = True
        text = str(error)
        own = self.cluster.index
        told = re.search(rf"{_MARK} (\d+): (.*)", text)
        if told is not None and int(told[1]) != own:
            name = self.cluster.name(int(told[1]))
            return self._report(WorkerLostError(f"{name} failed: {told[2]}", [int(told[1])]))
        is_chiefs = "CoordinationService" in text and own != 0
        named = sorted({int(n) for n in re.findall(r"/job:worker/(?:replica:0/)?task:(\d+)", text)})
        named = [i for i in named if i != own]
        if not named and not is_chiefs and not _is_loss(error):
            return None
        hosts = list(self.cluster.hosts)
        # Whoever still listens has only seen the same as this one, but for one that is stopped.
        missing = [i for i in watchdog.absent(hosts, own) if i != own] or named
        if not missing and is_chiefs:
            missing = [0]
        if not missing:
            return None  # Collectives fail for other reasons, too.
        names = ", ".join(self.cluster.name(i) for i in missing)
        return self._report(
            WorkerLostError(
                f"Received no answer from {names}. Expected all {len(hosts)} workers to go on. The "
                "run goes on from its last checkpoint when they are started again.",
                missing,
            )
        )

    def _report(self, lost: WorkerLostError) -> WorkerLostError:
        lost.is_told = report(by=self.cluster.index, lost=lost.workers, message=str(lost))
        return lost


_VECTOR = tf.TensorSpec([None], tf.int32)
_joined: Workers | None = None


def join(
    choose_devices: Callable[[], tuple[str, ...]], before_start: Callable[[], None]
) -> Workers | None:
    """Joins the cluster that this process was started for; None if it is alone."""
    global _joined
    cluster = clusters.current()
    if cluster is None or _is_alone:
        return None
    if _joined is None:
        if context.context()._context_handle is not None:
            raise KerasdistError(
                f"Received a TF_CONFIG of {cluster.num_workers} workers after TensorFlow had "
                "started. Expected to join them first. Pass `model` as a function that builds it, "
                "and call kerasdist before anything else that uses TensorFlow."
            )
        before_start()
        _joined = Workers(cluster, choose_devices)
    return _joined


_is_alone = False


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """What is placed here is placed on this process alone."""
    global _is_alone
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


def report(**fields: Any) -> bool:
    """Tells the launcher of this worker, if there is one."""
    descriptor = os.environ.get(clusters.REPORT)
    return watchdog.report(int(descriptor) if descriptor else None, **fields)


def _is_loss(error: tf.errors.OpError) -> bool:
    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, kinds) or "Collective ops is aborted" in str(error)


def _as_words(content: bytes) -> np.ndarray:
    """Collectives have no bytes."""
    return np.frombuffer(content + bytes(-len(content) % 4), np.int32)


def _start_watchdog(cluster: Cluster) -> subprocess.Popen:
    told, line = (os.environ.get(name) for name in (clusters.REPORT, clusters.LIFELINE))
    passed = tuple(int(text) for text in (told, line) if text)
    fields = {
        "worker": os.getpid(),
        "hosts": cluster.hosts,
        "index": cluster.index,
        "timeout": cluster.timeout,
        "told": int(told) if told else None,
        "line": int(line) if line else None,
    }
    script = watchdog.__file__
    return subprocess.Popen(
        [sys.executable, "-S", "-E", script, json.dumps(fields)],
        stdin=subprocess.PIPE,
        pass_fds=passed,
    )


def _strategy(cluster: Cluster, local_devices: Callable) -> tf.distribute.Strategy:
    # Noticed after half of the time: then the others are asked, and time passes until the end.
    milliseconds = max(1, int(cluster.timeout * 500))
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=milliseconds,
        cluster_register_timeout_in_ms=int(cluster.timeout * 1000),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=cluster.num_workers)
        ],
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.hosts)}),
        task_type="worker",
        task_id=cluster.index,
        rpc_layer="grpc",
    )
    # It would take every GPU, and one CPU however many there are.
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    original = extended._initialize_local_devices
    extended._initialize_local_devices = local_devices
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    finally:
        extended._initialize_local_devices = original
    if cluster.is_on_loopback:
        loopback.keep_to_loopback(int(cluster.hosts[cluster.index].rpartition(":")[2]))
    return strategy
