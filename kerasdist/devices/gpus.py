"""The memory of GPUs, how much of it TensorFlow takes, and GPUs that TensorFlow cannot use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from kerasdist.devices import private_tensorflow
from kerasdist.errors import KerasdistError

_UNITS = {"kb": 2**10, "mb": 2**20, "gb": 2**30}


def limit_bytes(text: str, total: int | None) -> int:
    """A `--memory-limit` in bytes.

    Args:
        text: A size such as "4GB", or a fraction of the GPU's memory such as "0.4".
        total: The memory of the GPU in bytes; None if it is not known.

    Example:
        >>> limit_bytes("2KB", None), limit_bytes("0.5", total=1000)
        (2048, 500)
    """
    found = re.fullmatch(r"(\d*\.?\d+)\s*([a-z]*)", text.strip().lower())
    number, unit = (float(found[1]), found[2]) if found is not None else (0.0, "")
    if unit in _UNITS and number > 0:
        return int(number * _UNITS[unit])
    if unit or not 0 < number < 1:
        raise KerasdistError(
            f"Received `--memory-limit {text}`. Expected a size such as 4GB, or a fraction of a "
            "GPU between 0 and 1, such as 0.4. Correct it."
        )
    if total is None:
        raise KerasdistError(
            f"Received the fraction `--memory-limit {text}`, but nvidia-smi does not tell how much "
            "memory the GPU has. Expected a size. Use for example `--memory-limit 4GB`."
        )
    return int(number * total)


def set_memory(
    growth: bool,
    limit: str | None,
    totals: Callable[[], list[int]] | None = None,
    chosen: Collection[int] | None = None,
) -> bool:
    """Sets how much memory TensorFlow takes on a GPU. Call it before TensorFlow starts.

    Args:
        growth: Take memory only when it is needed.
        limit: The most memory to take per GPU, in the form of `--memory-limit`; None for all.
        totals: Returns the memory of each GPU. The default asks nvidia-smi.
        chosen: The numbers of the GPUs; None for all.

    Returns:
        Whether this machine has a GPU.
    """
    if growth and limit is not None:
        raise KerasdistError(
            "Received `--memory-growth` and `--memory-limit`. Expected one of them: TensorFlow "
            "cannot do both. Remove one."
        )
    if limit is not None:
        limit_bytes(limit, 1)  # A wrong limit is an error even without a GPU.
    gpus = tf.config.list_physical_devices("GPU")
    if not growth and limit is None:
        return bool(gpus)
    sizes = (totals or visible_memory)() if limit is not None else []
    try:
        for i, gpu in enumerate(gpus):
            if chosen is not None and i not in chosen:
                continue
            if growth:
                tf.config.experimental.set_memory_growth(gpu, True)
                continue
            most = limit_bytes(str(limit), sizes[i] if i < len(sizes) else None)
            configuration = tf.config.LogicalDeviceConfiguration(memory_limit=most // 2**20)
            tf.config.set_logical_device_configuration(gpu, [configuration])
    except RuntimeError as error:
        raise KerasdistError(
            f"GPU memory can only be set before TensorFlow starts: {error}. Restart the process."
        ) from error
    return bool(gpus)


def spare_others(chosen: Collection[int]) -> None:
    """Takes memory only as it is needed if `chosen` are not all GPUs.

    TensorFlow would reserve almost all memory of the other GPUs, too. They stay visible, because a
    later training in this process may use them. TensorFlow has one setting for all GPUs that it
    sees ("Memory growth cannot differ between GPU devices", TF 2.21), so it is set for the chosen
    ones as well. Has no effect once TensorFlow has started, or if logical GPUs are configured.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if private_tensorflow.has_started() or len(chosen) >= len(gpus):
        return
    if any(tf.config.get_logical_device_configuration(gpu) for gpu in gpus):
        return
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def visible_memory(
    environ: Mapping[str, str] = os.environ, totals: Callable[[], list[int]] | None = None
) -> list[int]:
    """Memory in bytes of the GPUs that CUDA_VISIBLE_DEVICES shows; empty if it is not known.

    Example:
        >>> visible_memory({"CUDA_VISIBLE_DEVICES": "2,0"}, lambda: [10, 20, 30])
        [30, 10]
    """
    sizes = (totals or total_memory)()
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return sizes
    places = [part.strip() for part in chosen.split(",")]
    if not all(place.isdigit() and int(place) < len(sizes) for place in places):
        return []
    return [sizes[int(place)] for place in places]


def total_memory(run: Callable[..., Any] = subprocess.run) -> list[int]:
    """Memory of each GPU in bytes, in the order of nvidia-smi; empty if nvidia-smi fails."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        printed = run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return [int(line) * 2**20 for line in printed.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def has_accelerator() -> bool:
    """Whether this machine has a device that is not a CPU. Keras's `compile` asks the same."""
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())


def has_xla(
    visible: Sequence[Any] | None = None, details: Callable[[Any], Mapping[str, Any]] | None = None
) -> bool:
    """Whether XLA can compile for the GPUs: for NVIDIA's and AMD's, not for plug-in devices.

    Args:
        visible: The GPUs that TensorFlow uses. The default asks TensorFlow.
        details: Tells what is known about a GPU. TensorFlow knows the compute capability of
            NVIDIA's GPUs only.
    """
    visible = tf.config.get_visible_devices("GPU") if visible is None else visible
    details = tf.config.experimental.get_device_details if details is None else details
    if not visible:
        return False
    return tf.test.is_built_with_rocm() or all("compute_capability" in details(v) for v in visible)


def unusable_gpus(
    visible: Sequence[Any] | None = None, has_driver: Callable[[], bool] | None = None
) -> str | None:
    """Says how to fix a GPU that TensorFlow cannot use; None if nothing is wrong.

    Args:
        visible: The GPUs that TensorFlow sees. The default asks TensorFlow.
        has_driver: Tells whether the machine has an NVIDIA GPU. The default looks for its driver.
    """
    visible = tf.config.list_physical_devices("GPU") if visible is None else visible
    if visible or not (has_driver or _has_driver)():
        return None
    if not tf.test.is_built_with_cuda():
        return (
            "This machine has an NVIDIA GPU, but the installed TensorFlow is built without CUDA: "
            "install it with `pip install 'tensorflow[and-cuda]'`."
        )
    return (
        "This machine has an NVIDIA GPU that TensorFlow cannot use. Usually the CUDA libraries are "
        "missing or the driver is too old: run `pip install 'tensorflow[and-cuda]'`, update the "
        "driver, and check `nvidia-smi`. CUDA_VISIBLE_DEVICES can hide it, too."
    )


def _has_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
