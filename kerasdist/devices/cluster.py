"""Which workers a run has, and which of them this process is: hosts, TF_CONFIG or Slurm."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kerasdist.errors import KerasdistError

DEFAULT_TIMEOUT = 60.0
# Environment variables that a launcher sets for its workers, besides TF_CONFIG.
TIMEOUT, REPORT, LIFELINE = (
    f"KERASDIST_{name}" for name in ("WORKER_TIMEOUT", "REPORT", "LIFELINE")
)
_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Cluster:
    """The addresses of all workers, and the index of this one. The first worker is the chief."""

    hosts: tuple[str, ...]
    index: int
    timeout: float = DEFAULT_TIMEOUT

    @property
    def num_workers(self) -> int:
        return len(self.hosts)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def is_on_loopback(self) -> bool:
        """Whether all addresses are loopback addresses, which other machines cannot reach."""
        return all(is_loopback(host.rpartition(":")[0]) for host in self.hosts)

    def name(self, index: int) -> str:
        return f"worker {index} ({self.hosts[index]})"

    def tf_config(self) -> str:
        """The value of TF_CONFIG for this worker.

        Example:
            >>> Cluster(("a:1", "b:1"), 1).tf_config()
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
        """
        task = {"type": "worker", "index": self.index}
        return json.dumps({"cluster": {"worker": list(self.hosts)}, "task": task})


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def current(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that TF_CONFIG names; None if this process is the only worker."""
    text = environ.get("TF_CONFIG", "").strip()
    cluster = from_tf_config(text) if text else None
    if cluster is None or cluster.num_workers == 1:
        return None
    timeout = float(environ.get(TIMEOUT, DEFAULT_TIMEOUT))
    return Cluster(cluster.hosts, cluster.index, timeout)


def from_hosts(text: str, index: int | None) -> Cluster:
    """The cluster of `--hosts a:2222,b:2222 --index 1`."""
    hosts = tuple(part.strip() for part in text.split(","))
    _check_addresses(hosts, f"`--hosts {text}`", "`--hosts a:2222,b:2222`")
    if index is None:
        raise KerasdistError(
            f"Received `--hosts {text}` without `--index`. Expected the position of this machine "
            "in the list. Add for example `--index 0` here, and `--index 1` on the next machine."
        )
    if not 0 <= index < len(hosts):
        raise KerasdistError(
            f"Received `--index {index}` with {len(hosts)} hosts. Expected a number from 0 to "
            f"{len(hosts) - 1}. Pass the position of this machine in the list: the first is 0."
        )
    return Cluster(hosts, index)


def from_tf_config(text: str) -> Cluster | None:
    """The cluster in the text of TF_CONFIG; None if it names no workers."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _wrong(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise _wrong(f"is {content!r}")
    cluster = content.get("cluster")
    if not cluster:
        return None
    if not isinstance(cluster, dict):
        raise _wrong(f"has {cluster!r} as its `cluster`")
    unknown = sorted(set(cluster) - {"chief", "worker"})
    if unknown:
        raise _wrong(f"has the job {unknown[0]!r}; kerasdist knows only chief and worker")
    for job, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise _wrong(f"has {addresses!r} as `cluster/{job}`, which is not a list of addresses")
    chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
    if len(chiefs) > 1:
        raise _wrong(f"names {len(chiefs)} chiefs")
    hosts = (*chiefs, *workers)
    task = content.get("task")
    if not isinstance(task, dict) or not {"type", "index"} <= set(task):
        raise _wrong(f"has {task!r} as its `task`, without `type` and `index`")
    kind, index = task["type"], task["index"]
    if kind not in cluster:
        raise _wrong(f"has the task type {kind!r}, which its `cluster` does not name")
    index = int(index) if isinstance(index, str) and index.isdigit() else index
    if isinstance(index, bool) or not isinstance(index, int):
        raise _wrong(f"has the task index {index!r}, which is not a whole number")
    if not 0 <= index < len(cluster[kind]):
        raise _wrong(f"has the task index {index}, but {len(cluster[kind])} of type {kind!r}")
    if len(hosts) > 1:
        _check_addresses(hosts, "a TF_CONFIG", f"TF_CONFIG='{_EXAMPLE}'")
    return Cluster(hosts, index + (len(chiefs) if kind == "worker" else 0))


def _wrong(what: str) -> KerasdistError:
    return KerasdistError(
        f"Received a TF_CONFIG that {what}. Expected the cluster of workers and the task of this "
        f"process. Set for example TF_CONFIG='{_EXAMPLE}', or unset it."
    )


def _check_addresses(hosts: tuple[str, ...], received: str, example: str) -> None:
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not name or not port.isdigit() or not 0 < int(port) < 65536:
            raise KerasdistError(
                f"Received {received} with the address {host!r}. Expected a host and a port. Use "
                f"for example {example}."
            )
    if len(set(hosts)) < len(hosts):
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise KerasdistError(
            f"Received {received} with the address {twice!r} twice. Expected a different address "
            "for each worker. Use different ports for workers on one machine."
        )


def in_slurm(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `srun` started this process as one of several tasks."""
    return "SLURM_PROCID" in environ and int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def from_slurm(environ: Mapping[str, str] = os.environ) -> Cluster:
    """The cluster of all tasks of a Slurm step, as TensorFlow's resolver finds them."""
    missing = [n for n in ("SLURM_JOB_ID", "SLURM_STEP_NODELIST") if n not in environ]
    if missing:
        raise KerasdistError(
            f"Received a Slurm task without {missing[0]}. Expected the variables that srun sets. "
            "Start it with `srun kerasdist launch fit RECIPE` in a job."
        )
    # Not at the top: importing TensorFlow takes seconds.
    import tensorflow as tf

    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
    try:
        # Slurm gives each task its GPUs. Without these numbers the resolver asks nvidia-smi, and
        # then finds no tasks on machines without GPUs (TF 2.21).
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=_first_port(environ["SLURM_JOB_ID"]),
            gpus_per_node=tasks,
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        hosts = resolver.cluster_spec().as_dict()["worker"]
    except (RuntimeError, ValueError, KeyError) as error:
        raise KerasdistError(
            f"Cannot resolve the Slurm nodes {environ['SLURM_STEP_NODELIST']!r}: {error}. Expected "
            "the variables that srun sets for each task. Start it with `srun kerasdist launch fit "
            "RECIPE`."
        ) from None
    # Slurm numbers the tasks of node9 before those of node10; the resolver has node10 first.
    return Cluster(tuple(sorted(hosts, key=_by_number)), int(environ["SLURM_PROCID"]))


def _by_number(host: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", host)]


def _first_port(job: str) -> int:
    """Depends on the job: two jobs on one node need different ports."""
    number = int(re.sub(r"\D", "", job) or 0)
    return 20_000 + number * 64 % 10_000
