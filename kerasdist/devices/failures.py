"""Failures of workers: each worker learns which one failed, and why."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence

import tensorflow as tf

from kerasdist.devices import private_tensorflow, watchdog
from kerasdist.devices.cluster import Cluster
from kerasdist.errors import RunFailedError, first_line, keras_reason

_MARK = "kerasdist-worker"
# What errors say that another worker can have caused.
_OF_OTHERS = re.compile(rf"Collective ops is aborted|CoordinationService|\bNCCL\b|{_MARK}")


class WorkerLostError(RunFailedError):
    """Another worker failed, or does not answer any more."""

    def __init__(self, message: str, workers: Sequence[int]):
        super().__init__(message)
        self.workers = tuple(workers)
        # Whether the launcher has printed the message already.
        self.is_told = False


def tell_others(cluster: Cluster, error: Exception) -> None:
    """Sends this worker's error to the workers that wait for it. Their calls then fail."""
    message = f"{_MARK} {cluster.index}: {reason(error)}"
    with contextlib.suppress(Exception):
        private_tensorflow.fail_other_workers(message)
        # This process must live until they have read it: a lost connection would come first.
        time.sleep(0.5)


def reason(error: Exception) -> str:
    """The line of an error that says what is wrong."""
    if not isinstance(error, tf.errors.OpError):
        return first_line(error)
    return keras_reason(error) or type(error).__name__


def is_own(cluster: Cluster, error: tf.errors.OpError) -> bool:
    """Whether an error of TensorFlow began in this worker.

    Errors also come from the collectives of other workers that failed. Only an error that does not
    look like one of them counts.
    """
    text = str(error)
    is_waiting = _is_lost_connection(error) or isinstance(error, tf.errors.DeadlineExceededError)
    return not (is_waiting or _OF_OTHERS.search(text) or _named_others(cluster, text))


def find_lost_worker(cluster: Cluster, error: tf.errors.OpError) -> WorkerLostError | None:
    """Says which other worker caused `error`; None if none of them did."""
    return _sent_by_worker(cluster, str(error)) or _without_answer(cluster, error)


def _sent_by_worker(cluster: Cluster, text: str) -> WorkerLostError | None:
    """What `tell_others` sent from another worker."""
    sent = re.search(rf"{_MARK} (\d+): (.*)", text)
    if sent is None or int(sent[1]) == cluster.index:
        return None
    index = int(sent[1])
    return WorkerLostError(f"{cluster.name(index)} failed: {sent[2]}", [index])


def _without_answer(cluster: Cluster, error: tf.errors.OpError) -> WorkerLostError | None:
    text = str(error)
    own = cluster.index
    # Worker 0 runs TensorFlow's coordination service.
    is_from_chief = "CoordinationService" in text and own != 0
    named = _named_others(cluster, text)
    if not named and not is_from_chief and not _is_lost_connection(error):
        return None
    hosts = list(cluster.hosts)
    # A worker that still listens has only noticed the same failure, unless it is stopped.
    missing = [i for i in watchdog.absent(hosts, own) if i != own] or named
    if not missing and is_from_chief:
        missing = [0]
    if not missing:
        return None  # Collectives fail for other reasons, too.
    names = ", ".join(cluster.name(i) for i in missing)
    return WorkerLostError(
        f"Received no answer from {names}. Expected all {len(hosts)} workers to continue. Start "
        "them again: the run resumes from its last checkpoint.",
        missing,
    )


def _named_others(cluster: Cluster, text: str) -> list[int]:
    """The other workers whose TensorFlow tasks a text names."""
    named = {int(n) for n in re.findall(r"/job:worker/(?:replica:0/)?task:(\d+)", text)}
    return sorted(named - {cluster.index})


def _is_lost_connection(error: tf.errors.OpError) -> bool:
    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, kinds) or "Collective ops is aborted" in str(error)
