"""What `devices=` means: the names of devices, and logical CPUs."""

from __future__ import annotations

import numbers
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import tensorflow as tf

from kerasdist.devices import gpus, private_tensorflow, visible_gpus
from kerasdist.devices.gpu_shares import names_cpus
from kerasdist.errors import KerasdistError, closest

# What a caller may pass as `devices=`: "auto" or None, a count, a name, or indices and names.
Devices: TypeAlias = str | int | Sequence[int | str] | None


@dataclass(frozen=True)
class Device:
    """One device as `list_devices` shows it."""

    name: str
    kind: str
    description: str
    memory_bytes: int | None
    used_by_auto: bool


def list_devices() -> list[Device]:
    """Lists the devices of this machine, and which of them `devices="auto"` uses.

    Returns:
        One `Device` per device, GPUs first.

    Example:
        >>> import kerasdist
        >>> kerasdist.list_devices()[-1].kind
        'CPU'
    """
    tf.config.list_logical_devices()  # Starts TensorFlow, which may ignore a GPU only then.
    auto = resolve_names("auto")
    devices = []
    for kind in ("GPU", "CPU"):
        physical = tf.config.list_physical_devices(kind)
        names = _names(kind)
        indices = [int(name.split(":")[1]) for name in names]
        # All logical CPUs share the memory of the machine.
        memory = (
            gpus.visible_memory()
            if kind == "GPU" and names
            else [_memory()] * (1 + max(indices, default=0))
        )
        for index, name in zip(indices, names, strict=True):
            # TensorFlow numbers logical devices in the order of the physical ones.
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


def logical_cpus(num_devices: int) -> None:
    """Splits the CPU into `num_devices` logical devices, to try several replicas without GPUs.

    TensorFlow fixes the number when it starts, and creating a Keras optimizer starts it. So call
    this right after the import. `KERASDIST_LOGICAL_CPUS=n` in the environment does the same.

    Args:
        num_devices: The number of logical CPUs.

    Raises:
        KerasdistError: If TensorFlow has already started with fewer logical CPUs.

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
        present = len(private_tensorflow.own_devices("CPU"))
        if present >= num_devices:
            return
        raise KerasdistError(
            f"Cannot make {num_devices} logical CPUs after TensorFlow started with {present}. "
            "TensorFlow fixes the number when it starts, and creating a Keras optimizer starts "
            f"it. Call `kerasdist.logical_cpus({num_devices})` right after the import (or set "
            f"KERASDIST_LOGICAL_CPUS={num_devices}), and restart this process."
        ) from None


def logical_cpus_if_more(num_devices: int) -> None:
    """Makes `num_devices` logical CPUs unless there are as many already."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if num_devices > (len(configured) if configured else 1):
        logical_cpus(num_devices)


def logical_cpus_for(devices: Devices) -> None:
    """Makes the logical CPUs that `devices` needs, without starting TensorFlow."""
    text = str(devices).strip()
    count = int(text.removeprefix("cpu:")) if re.fullmatch(r"(cpu:)?[1-9]\d*", text) else 1
    if text.startswith("cpu:") or not _has_gpu():
        logical_cpus_if_more(count)


def logical_cpus_from_environment() -> None:
    """Applies KERASDIST_LOGICAL_CPUS. Runs when this module is imported."""
    value = os.environ.get("KERASDIST_LOGICAL_CPUS")
    if value is None:
        return
    if not value.isdigit():
        raise KerasdistError(
            f"Received KERASDIST_LOGICAL_CPUS={value!r}. Expected a whole number of at least 1. "
            "Set for example KERASDIST_LOGICAL_CPUS=4, or unset it."
        )
    logical_cpus(int(value))


def resolve_names(devices: Devices, soft: bool = False) -> tuple[str, ...]:
    """Returns the device names that `devices` stands for, for example `("GPU:0", "GPU:1")`.

    Args:
        devices: The argument `devices` of `fit`.
        soft: Replace a missing device with the nearest one instead of raising an error.
    """
    if _is_number(devices):
        return _by_count(int(devices), soft)
    if devices is None or devices == "auto":
        return tuple(_names("GPU")) if _has_gpu() else ("CPU:0",)
    if isinstance(devices, str):
        return _by_text(devices, soft)
    if isinstance(devices, Sequence) and devices:
        return _by_items(devices, soft)
    raise KerasdistError(f"Received `devices={devices!r}`. {_expected()} Pass one of these.")


def kind_of(devices: Devices) -> str:
    """The kind of devices that `devices` stands for: "GPU" or "CPU"."""
    return "GPU" if _has_gpu() and not names_cpus(devices) else "CPU"


def expected_gpus(devices: Devices, soft: bool = False) -> list[int]:
    """Numbers of the GPUs that `devices` stands for, without an error if it is wrong.

    Then it returns all GPUs: the error comes from `resolve_names`.
    """
    try:
        names: Sequence[str] = resolve_names(devices, soft)
    except KerasdistError:
        names = _names("GPU")
    return [int(name.split(":")[1]) for name in names if name.startswith("GPU")]


def _by_count(count: int, soft: bool) -> tuple[str, ...]:
    if count < 1:
        raise KerasdistError(f"Received `devices={count!r}`. {_expected()} Ask for 1 or more.")
    if _has_gpu():
        return _present("GPU", range(count), count, soft)
    if not soft:
        logical_cpus_if_more(count)
    return _present("CPU", range(count), count, soft)


def _by_text(devices: str, soft: bool) -> tuple[str, ...]:
    text = devices.lower().strip().removeprefix("/").removeprefix("device:")
    if text == "cpu":
        return ("CPU:0",)
    if text == "gpu":
        return _present("GPU", range(len(_names("GPU")) or 1), devices, soft)
    # In lower case, "cpu:4" asks for four logical CPUs. "CPU:1" is the device with that name, as
    # `kerasdist devices` lists it, and so is "cpu:0".
    if re.fullmatch(r"cpu:0*[1-9]\d*", devices):
        count = int(text.split(":")[1])
        if not soft:
            logical_cpus_if_more(count)
        return _present("CPU", range(count), devices, soft)
    match = re.fullmatch(r"(cpu|gpu):(\d+)", text)
    if match:
        return _present(match[1].upper(), [int(match[2])], devices, soft)
    if "," in devices:
        return _by_items([part.strip() for part in devices.split(",")], soft)
    known = ["auto", "cpu", "gpu", *_names("GPU"), *_names("CPU")]
    raise KerasdistError(
        f"Received `devices={devices!r}`.{closest(devices, known)} {_expected()} "
        "`kerasdist devices` lists the devices."
    )


def _by_items(devices: Sequence[int | str], soft: bool) -> tuple[str, ...]:
    names: list[str] = []
    for item in devices:
        named = re.fullmatch(r"/?(?:device:)?(cpu|gpu):(\d+)", str(item).strip().lower())
        if _is_number(item):
            kind = "GPU" if _has_gpu() else "CPU"
            names += _present(kind, [int(item)], devices, soft)
        elif isinstance(item, str) and named:
            names += _present(named[1].upper(), [int(named[2])], devices, soft)
        else:
            raise KerasdistError(
                f"Received `devices={devices!r}` with the item {item!r}. {_expected()} Use "
                "indices, or names like 'GPU:0'."
            )
    if len(set(names)) != len(names) and not soft:
        raise KerasdistError(
            f"Received `devices={devices!r}`, which names a device twice. Expected each device "
            "once. Remove the repetition."
        )
    names = list(dict.fromkeys(names))
    if len({name.split(":")[0] for name in names}) > 1:
        raise KerasdistError(
            f"Received `devices={devices!r}`. Expected only GPUs or only CPUs: the GPUs would wait "
            "for the CPUs in every step. Remove the devices of one kind."
        )
    return tuple(names)


def _present(
    kind: str, indices: Iterable[int], received: int | str | Sequence[int | str], soft: bool
) -> tuple[str, ...]:
    """Names of one kind. A missing device is an error; if `soft`, the nearest one replaces it."""
    present = _names(kind)
    chosen = []
    for index in indices:
        name = f"{kind}:{index}"
        if name not in present and soft:
            pool = present or _names("CPU")
            name = pool[min(index, len(pool) - 1)]
        elif name not in present:
            fix = (
                'Choose among those, or use what there is with `devices="auto"` (on the command '
                "line, `--soft-placement` uses the nearest device)."
            )
            if kind == "CPU":
                # Of all that were asked for: `3,4` needs five.
                count = 1 + max(index, *map(int, re.findall(r"\d+", str(received))), 0)
                fix += (
                    f" More logical CPUs: `--devices cpu:{count}` on the command line, or "
                    f"`kerasdist.logical_cpus({count})` right after the import."
                )
            raise KerasdistError(
                f"Received `devices={received!r}`, but there is no device {name!r}. {_expected()} "
                f"{fix}"
            )
        chosen.append(name)
    return tuple(dict.fromkeys(chosen))


def _is_number(value: Any) -> TypeGuard[int | str]:
    """Whether it is a whole number, also of NumPy, or digits from the command line."""
    if isinstance(value, str):
        return value.strip().isdigit()
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _has_gpu() -> bool:
    return bool(tf.config.get_visible_devices("GPU"))


def _names(kind: str) -> list[str]:
    """The devices of this process. Does not start TensorFlow, so that GPUs can still be hidden."""
    if private_tensorflow.has_started():
        count = len(private_tensorflow.own_devices(kind))
    else:
        visible = tf.config.get_visible_devices(kind)
        count = sum(len(tf.config.get_logical_device_configuration(d) or [d]) for d in visible)
    return [visible_gpus.shown(f"{kind}:{i}") for i in range(count)]


def _memory() -> int | None:
    """Memory of the machine in bytes; None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _expected() -> str:
    present = ", ".join(_names("GPU") + _names("CPU"))
    return (
        'Expected "auto", "gpu", "cpu", "cpu:4" (four logical CPUs), a number of devices, or a '
        f"list of names or indices; this machine has {present}."
    )


logical_cpus_from_environment()
