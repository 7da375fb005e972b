"""What `devices=` means: names of devices, and the strategy that replicates over them."""

from __future__ import annotations

import contextlib
import logging
import numbers
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.devices import gpus
from kerasdist.devices import worker as several
from kerasdist.devices.worker import Workers
from kerasdist.errors import KerasdistError, closest


@dataclass(frozen=True)
class Share:
    """The neighbouring shards `first` to `end` of every batch's `shards`, which one worker runs."""

    first: int
    end: int
    shards: int

    def rows(self, num_examples: int) -> tuple[int, int]:
        """The rows of a batch that it needs: those that empty shards borrow are among them.

        Example:
            >>> Share(0, 2, 4).rows(10), Share(2, 4, 4).rows(10), Share(0, 2, 4).rows(1)
            ((0, 5), (5, 10), (0, 1))
        """
        n, last = num_examples, num_examples - 1
        begin = min(self.first * n // self.shards, last)
        borrowed = min((self.end - 1) * n // self.shards, last) + 1
        return begin, max(self.end * n // self.shards, borrowed)


@dataclass(frozen=True)
class Placement:
    """The devices of a run: `names` are this process's.

    `strategy` is None on one device: no distribution machinery there. `workers` is None unless
    other processes run the same.
    """

    names: tuple[str, ...]
    strategy: tf.distribute.Strategy | None
    workers: Workers | None = None

    @property
    def num_replicas(self) -> int:
        return len(self.names) * (self.workers.num_workers if self.workers is not None else 1)

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of all devices, of every worker."""
        return self.names if self.workers is None else self.workers.titles

    @property
    def is_chief(self) -> bool:
        """Whether this process writes, prints and decides: one of the workers does."""
        return self.workers is None or self.workers.cluster.is_chief

    def share(self, shards: int) -> Share | None:
        """What this worker runs of every batch; None if it is alone."""
        if self.workers is None:
            return None
        count = shards // self.workers.num_workers
        first = self.workers.cluster.index * count
        return Share(first, first + count, shards)

    def of_chief(self, *values: int) -> tuple[int, ...]:
        """The chief's numbers. What depends on the clock, or on files, must not differ."""
        return values if self.workers is None else tuple(self.of_all(*values)[0].tolist())

    def of_all(self, *values: int) -> np.ndarray:
        """The numbers of every worker, `[workers, values]`."""
        own = np.array(values, np.int64)
        return own[np.newaxis] if self.workers is None else self.workers.gather(own)

    def wait(self) -> None:
        """Until all workers are here."""
        if self.workers is not None:
            self.workers.wait()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What fails here fails on all workers."""
        with contextlib.nullcontext() if self.workers is None else self.workers.together():
            yield

    @property
    def is_gpu(self) -> bool:
        return self.names[0].startswith("GPU")

    @property
    def shares_memory(self) -> bool:
        """Whether its several devices need no copies, and one update does for all of them."""
        return self.strategy is not None and self.workers is None and not self.is_gpu

    @property
    def has_copies(self) -> bool:
        """Whether each of its devices has a copy of the state."""
        return self.strategy is not None and not self.shares_memory

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Where the engine's own variables are created."""
        if self.strategy is not None:
            with self.strategy.scope():
                yield
        else:
            with tf.device(self.names[0]):
                yield


@dataclass(frozen=True)
class Device:
    """One device as `list_devices` shows it."""

    name: str
    kind: str
    description: str
    memory_bytes: int | None
    used_by_auto: bool


def logical_cpus(num_devices: int) -> None:
    """Splits the CPU into `num_devices` devices to try several replicas on.

    TensorFlow fixes this number when it starts, and creating a Keras optimizer starts it: call
    this right after the import. `KERASDIST_LOGICAL_CPUS=n` in the environment does the same.

    Args:
        num_devices: How many CPU devices there shall be.

    Raises:
        KerasdistError: If TensorFlow has started with another number.

    Example:
        >>> import kerasdist
        >>> kerasdist.logical_cpus(6)
        >>> [d.name for d in kerasdist.list_devices() if d.kind == "CPU"][:2]
        ['CPU:0', 'CPU:1']
    """
    if not isinstance(num_devices, int) or isinstance(num_devices, bool) or num_devices < 1:
        raise KerasdistError(
            f"Received `num_devices={num_devices!r}`. Expected a whole number of at least 1. "
            "Call for example `kerasdist.logical_cpus(4)`."
        )
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is not None and len(configured) == num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )
    except RuntimeError:
        present = len(tf.config.list_logical_devices("CPU"))
        if present >= num_devices:
            return
        raise KerasdistError(
            f"Received a request for {num_devices} logical CPUs after TensorFlow started with "
            f"{present}. The number is fixed at TensorFlow's start, and creating a Keras optimizer "
            f"starts it. Call `kerasdist.logical_cpus({num_devices})` right after the import (or "
            f"set KERASDIST_LOGICAL_CPUS={num_devices}) and restart this process."
        ) from None


def logical_cpus_from_environment() -> None:
    """Applies KERASDIST_LOGICAL_CPUS. Called at the import."""
    value = os.environ.get("KERASDIST_LOGICAL_CPUS")
    if value is None:
        return
    if not value.isdigit():
        raise KerasdistError(
            f"Received KERASDIST_LOGICAL_CPUS={value!r}. Expected a whole number of at least 1. "
            "Set for example KERASDIST_LOGICAL_CPUS=4, or unset it."
        )
    logical_cpus(int(value))


def _names(kind: str) -> list[str]:
    return [f"{kind}:{i}" for i in range(len(tf.config.list_logical_devices(kind)))]


def list_devices() -> list[Device]:
    """Lists the devices that are here, and which of them `devices="auto"` would use.

    Returns:
        One `Device` for each, GPUs first.

    Example:
        >>> import kerasdist
        >>> kerasdist.list_devices()[-1].kind
        'CPU'
    """
    auto = resolve_names("auto")
    devices = []
    for kind in ("GPU", "CPU"):
        physical = tf.config.list_physical_devices(kind)
        names = _names(kind)
        # Logical CPUs share the machine's.
        memory = gpus.visible_memory() if kind == "GPU" and names else [_memory()] * len(names)
        for index, name in enumerate(names):
            # Logical devices are numbered through the physical ones in order.
            source = physical[min(index, len(physical) - 1)]
            details = tf.config.experimental.get_device_details(source) if kind == "GPU" else {}
            devices.append(
                Device(
                    name=name,
                    kind=kind,
                    description=details.get("device_name", kind),
                    memory_bytes=memory[index] if index < len(memory) else None,
                    used_by_auto=name in auto,
                )
            )
    return devices


def _memory() -> int | None:
    """Bytes of the machine, where the system says so."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _expected() -> str:
    present = ", ".join(_names("GPU") + _names("CPU"))
    return (
        'Expected "auto", a number of devices, a list of indices or names, "cpu" or "cpu:N"; '
        f"the devices here are {present}."
    )


def _of_kind(kind: str, indices: Sequence[int], received, soft: bool) -> tuple[str, ...]:
    present = _names(kind)
    chosen = []
    for index in indices:
        name = f"{kind}:{index}"
        if name not in present:
            if not soft:
                fix = "Choose among those, or take the nearest instead with `--soft-placement`."
                if kind == "CPU":
                    fix += (
                        f" `kerasdist.logical_cpus({index + 1})` right after the import adds some."
                    )
                raise KerasdistError(
                    f"Received `devices={received!r}`, but there is no device {name!r}. "
                    f"{_expected()} {fix}"
                )
            pool = present or _names("CPU")
            name = pool[min(index, len(pool) - 1)]
        if name not in chosen:
            chosen.append(name)
        elif not soft:
            raise KerasdistError(
                f"Received `devices={received!r}`, which names {name!r} twice. Expected each "
                "device once. Remove the repetition."
            )
    return tuple(chosen)


def _is_number(value) -> bool:
    """Also NumPy's whole numbers, and digits as the command line has them."""
    if isinstance(value, str):
        return value.strip().isdigit()
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def resolve_names(devices, soft: bool = False) -> tuple[str, ...]:
    """The names that `devices` stands for, for example `("GPU:0", "GPU:1")`."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if has_gpu else "CPU"
    if _is_number(devices):
        devices = int(devices)
    if devices is None or devices == "auto":
        return tuple(_names("GPU")) if has_gpu else ("CPU:0",)
    if _is_number(devices):
        if devices < 1:
            raise KerasdistError(
                f"Received `devices={devices!r}`. {_expected()} Ask for 1 or more."
            )
        if kind == "CPU" and not soft:
            logical_cpus_if_more(devices)
        return _of_kind(kind, range(devices), devices, soft)
    if isinstance(devices, str):
        text = devices.lower().strip().removeprefix("/").removeprefix("device:")
        if text == "cpu":
            return ("CPU:0",)
        if text == "gpu":
            return _of_kind("GPU", range(len(_names("GPU")) or 1), devices, soft)
        # In small letters a number of logical CPUs, as in "cpu:4"; "CPU:1" is the device of that
        # name, which is what `kerasdist devices` lists, and so is "cpu:0".
        if re.fullmatch(r"cpu:0*[1-9]\d*", devices):
            count = int(text.split(":")[1])
            if not soft:
                logical_cpus_if_more(count)
            return _of_kind("CPU", range(count), devices, soft)
        match = re.fullmatch(r"(cpu|gpu):(\d+)", text)
        if match:
            return _of_kind(match[1].upper(), [int(match[2])], devices, soft)
        if "," in devices:
            return resolve_names([part.strip() for part in devices.split(",")], soft)
        known = ["auto", "cpu", "gpu", *_names("GPU"), *_names("CPU")]
        raise KerasdistError(
            f"Received `devices={devices!r}`. {_expected()}{closest(devices, known)} "
            "`kerasdist devices` lists them."
        )
    if isinstance(devices, Sequence) and devices:
        names: list[str] = []
        for item in devices:
            if _is_number(item):
                names += _of_kind(kind, [int(item)], devices, soft)
            elif isinstance(item, str):
                single = re.fullmatch(r"/?(?:device:)?(cpu|gpu):(\d+)", item.strip().lower())
                if not single:
                    raise KerasdistError(
                        f"Received `devices={devices!r}` with the item {item!r}. {_expected()} "
                        "Name devices like 'GPU:0'."
                    )
                names += _of_kind(single[1].upper(), [int(single[2])], devices, soft)
            else:
                raise KerasdistError(
                    f"Received `devices={devices!r}` with the item {item!r}. {_expected()} "
                    "Give indices or names."
                )
        if len(set(names)) != len(names) and not soft:
            raise KerasdistError(
                f"Received `devices={devices!r}`, which names a device twice. Expected each device "
                "once. Remove the repetition."
            )
        names = list(dict.fromkeys(names))
        if len({name.split(":")[0] for name in names}) > 1:
            raise KerasdistError(
                f"Received `devices={devices!r}`. Expected devices of one kind: replicas on a GPU "
                "and a CPU would wait for each other. Name only GPUs or only CPUs."
            )
        return tuple(names)
    raise KerasdistError(f"Received `devices={devices!r}`. {_expected()} Give one of these.")


def _reserve(devices) -> None:
    """Makes the logical CPUs that `devices` needs, without starting TensorFlow."""
    text = str(devices).strip()
    count = int(text.removeprefix("cpu:")) if re.fullmatch(r"(cpu:)?[1-9]\d*", text) else 1
    if text.startswith("cpu:") or not tf.config.list_physical_devices("GPU"):
        logical_cpus_if_more(count)


def logical_cpus_if_more(num_devices: int) -> None:
    """Makes room for `num_devices` logical CPUs where TensorFlow still allows it."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if num_devices > (len(configured) if configured else 1):
        logical_cpus(num_devices)


def place(devices="auto", *, soft: bool = False) -> Placement:
    """Resolves `devices` to a placement, with the cross-device reduction that suits it.

    In a process that is a worker of a cluster, they are the devices of each worker.
    """
    joined = several.join(lambda: resolve_names(devices, soft), lambda: _reserve(devices))
    names = resolve_names(devices, soft)
    if joined is not None:
        if names != joined.names:
            raise KerasdistError(
                f"Received `devices={devices!r}` in a worker that has joined the others with "
                f"{', '.join(joined.names)}. Expected the same: a worker keeps its devices. Name "
                "these."
            )
        return Placement(names, joined.strategy, joined)
    if len(names) == 1:
        return Placement(names, None)
    if names[0].startswith("GPU"):
        # The explicit op, not the default collectives: those abort the process when strategies of
        # different sizes follow one another (TF 2.21).
        reduction: tf.distribute.CrossDeviceOps = tf.distribute.NcclAllReduce()
    else:
        # Half of the collectives' latency on CPUs. Not HierarchicalCopyAllReduce: it returned a
        # wrong sum on three devices (TF 2.21).
        reduction = tf.distribute.ReductionToOneDevice()
    logging.getLogger("tensorflow").addFilter(_is_no_announcement)  # Once, however often.
    return Placement(names, tf.distribute.MirroredStrategy(list(names), reduction))


def _is_no_announcement(record: logging.LogRecord) -> bool:
    """False for TensorFlow's notes on its strategies, which a notebook shows amid our display."""
    return not record.getMessage().startswith(
        ("Using MirroredStrategy", "Reduce to ", "Gather to ", "batch_all_reduce: ")
    )


logical_cpus_from_environment()


def resolve_shards(shards: Any, num_replicas: int, deterministic: bool) -> int:
    """The number of shards: given, or the replicas (at least 4 of them when deterministic)."""
    if shards is None:
        if not deterministic:
            return num_replicas
        shards = num_replicas
        while shards < 4:
            shards *= 2
        return shards
    if not isinstance(shards, numbers.Integral) or isinstance(shards, bool) or shards < 1:
        raise KerasdistError(
            f"Received `shards={shards!r}`. Expected a whole number of at least 1. Give a multiple "
            f"of the devices, for example `shards={num_replicas}`."
        )
    if shards % num_replicas:
        fitting = [n for n in range(1, shards + 1) if shards % n == 0]
        raise KerasdistError(
            f"Received `shards={shards}` on {num_replicas} devices. Expected a multiple of the "
            f"devices. {shards} shards run on {_listed(fitting)} devices; or take "
            f"`shards={num_replicas * -(-shards // num_replicas)}`."
        )
    per_replica = shards // num_replicas
    if deterministic and num_replicas > 1 and per_replica & (per_replica - 1):
        fitting = [
            n
            for n in range(1, shards + 1)
            if shards % n == 0 and (n == 1 or (shards // n) & (shards // n - 1) == 0)
        ]
        raise KerasdistError(
            f"Received `shards={shards}` on {num_replicas} devices with `deterministic=True`. "
            "Expected shards / devices to be a power of two, or one device: only then the order of "
            f"additions is the same. {shards} shards run on {_listed(fitting)} devices."
        )
    return shards


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(n) for n in numbers)
