"""Divides the GPUs of a machine among its workers, and finds GPUs that two workers use.

A worker that its launcher gave a share sees only that share, in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from kerasdist.devices.cluster import Cluster, in_slurm
from kerasdist.errors import KerasdistError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
# CUDA and Slurm write these for "no GPU".
_NONE = ("", "-1", "nodevfiles")


def names_cpus(devices: object) -> bool:
    """Whether the text or list `devices` asks for CPUs.

    Example:
        >>> names_cpus("cpu:4"), names_cpus("/device:CPU:0,CPU:1"), names_cpus("GPU:0")
        (True, True, False)
    """
    items = devices if isinstance(devices, (list, tuple)) else str(devices).split(",")
    first = str(items[0]).lower().strip() if items else ""
    return first.removeprefix("/").removeprefix("device:").startswith("cpu")


def machine_gpus(folder: Path = _DRIVER) -> list[str]:
    """The PCI addresses of the NVIDIA GPUs; empty if the driver does not list them."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def visible_gpus(
    environ: Mapping[str, str] = os.environ, machine: Sequence[str] | None = None
) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2, 0"}), visible_gpus({}, ["pci-a", "pci-b"])
        (['2', '0'], ['0', '1'])
    """
    chosen = environ.get(VISIBLE)
    if chosen is None:
        return [str(i) for i in range(len(machine_gpus() if machine is None else machine))]
    parts = [part.strip() for part in chosen.split(",")]
    return [part for part in parts if part.lower() not in _NONE]


def share_of(cluster: Cluster, gpus: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The GPUs of one worker: an equal part for each worker of its host, in the order of hosts."""
    hosts = [_host(address) for address in cluster.hosts]
    own = hosts[cluster.index]
    num_workers = hosts.count(own)
    position = hosts[: cluster.index].count(own)
    local = environ.get("SLURM_LOCALID", "")
    if in_slurm(environ) and local.isdigit() and int(local) < num_workers:
        position = int(local)
    count = len(gpus) // num_workers
    if not count:
        raise KerasdistError(
            f"Received {num_workers} workers on a machine with {len(gpus)} GPUs ({own}). Expected "
            f"at least one GPU per worker. Start at most {len(gpus)} workers there, or add "
            "`--devices cpu` (`devices='cpu'`). If each worker has its own GPU, name it in "
            f"{VISIBLE}."
        )
    return list(gpus[position * count : (position + 1) * count])


def share_of_launched(
    cluster: Cluster,
    devices: object,
    environ: Mapping[str, str] = os.environ,
    machine: Sequence[str] | None = None,
) -> list[str] | None:
    """The GPUs of a worker that is started by itself; None if it keeps what it sees.

    Other workers of its host are started elsewhere, in the same way.
    """
    machine = machine_gpus() if machine is None else machine
    num_workers = _num_workers(cluster)
    gpus = visible_gpus(environ, machine)
    if num_workers == 1 or not gpus or names_cpus(devices):
        return None
    if _are_own(gpus, num_workers, environ, machine):
        return None
    return share_of(cluster, gpus, environ)


def _num_workers(cluster: Cluster) -> int:
    """The number of workers on the host of this one."""
    hosts = [_host(address) for address in cluster.hosts]
    return hosts.count(hosts[cluster.index])


def _host(address: str) -> str:
    return address.rpartition(":")[0].lower()


def _are_own(
    gpus: Sequence[str], num_workers: int, environ: Mapping[str, str], machine: Sequence[str]
) -> bool:
    """Whether a worker sees only its own GPUs, or may do so.

    If it is not certain, the worker keeps what it sees. `keys` later finds GPUs that two workers
    use.
    """
    if in_slurm(environ):
        is_bound = _is_bound_by_slurm(gpus, environ)
        if is_bound is not None:
            return is_bound
    if VISIBLE not in environ:
        return False
    # Somebody chose them: for all workers of the machine or for this one. If these are all GPUs of
    # the machine, there would be none left for the other workers.
    return len(gpus) != len(machine) or len(gpus) < num_workers


def _is_bound_by_slurm(gpus: Sequence[str], environ: Mapping[str, str]) -> bool | None:
    """Whether Slurm gave this task GPUs of its own; None if Slurm does not tell."""
    bind = environ.get("SLURM_GPU_BIND", "").lower().split(",")
    if "none" not in bind:
        per_task = environ.get("SLURM_TRES_PER_TASK", "")
        names = ("SLURM_GPU_BIND", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU")
        if "gpu" in per_task or any(environ.get(name) for name in names):
            return True
    of_step = _numbers(environ.get("SLURM_STEP_GPUS", ""))
    of_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if of_step:
        return len(of_step) > len(gpus)
    return int(of_node) > len(gpus) if of_node.isdigit() else None


def _numbers(text: str) -> list[int]:
    """Slurm's lists of numbers, such as 0,2-4."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def keys(
    cluster: Cluster,
    indices: Sequence[int],
    environ: Mapping[str, str] = os.environ,
    machine: Sequence[str] | None = None,
) -> list[int]:
    """A number per GPU, equal for the same GPU in two workers; 0 if it is not known which it is.

    Args:
        cluster: The cluster, with the index of this worker.
        indices: The positions of the GPUs among those that this process may use.
        environ: Environment variables.
        machine: The PCI addresses of the GPUs that the driver lists, which differ in containers.
    """
    machine = machine_gpus() if machine is None else machine
    gpus = visible_gpus(environ, machine)
    # Slurm numbers the GPUs of each task from 0 if it hides the others with cgroups.
    if in_slurm(environ) and _is_bound_by_slurm(gpus, environ):
        return [0] * len(indices)
    place = (_host(cluster.hosts[cluster.index]), *machine)
    return [
        1 + zlib.crc32("\n".join((*place, gpus[i])).encode()) if i < len(gpus) else 0
        for i in indices
    ]


def refuse_shared(cluster: Cluster, keys_of_workers: Sequence[Sequence[int]]) -> None:
    """Raises an error if two workers use the same GPU.

    Args:
        cluster: The cluster.
        keys_of_workers: The `keys` of every worker.
    """
    owners: dict[int, int] = {}
    for index, own in enumerate(keys_of_workers):
        for key in own:
            other = owners.setdefault(key, index) if key else index
            if other != index:
                raise KerasdistError(
                    f"Received the same GPU in {cluster.name(other)} and {cluster.name(index)}. "
                    "Expected different GPUs. Give each worker its own ones with "
                    f"{VISIBLE}, or unset it to divide all GPUs of the machine."
                )
