"""How much of the GPUs' memory TensorFlow takes, and GPUs that it cannot use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from kerasdist.errors import KerasdistError

_UNITS = {"kb": 2**10, "mb": 2**20, "gb": 2**30}


def check_limit(text: str) -> str | None:
    """What is wrong with a `--memory-limit`; None if nothing is.

    Example:
        >>> check_limit("4GB"), check_limit("0.4")
        (None, None)
        >>> check_limit("4")
        'a fraction is between 0 and 1, a size has a unit'
    """
    found = re.fullmatch(r"(\d*\.?\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or (found[2] and found[2] not in _UNITS):
        return "it is neither a size nor a fraction"
    if found[2]:
        return None if float(found[1]) > 0 else "it is nothing"
    return None if 0 < float(found[1]) < 1 else "a fraction is between 0 and 1, a size has a unit"


def limit_bytes(text: str, total: int | None) -> int:
    """A `--memory-limit` in bytes; `total` is the memory of the GPU, for a fraction of it."""
    reason = check_limit(text)
    if reason is not None:
        raise KerasdistError(
            f"Received `--memory-limit {text}`: {reason}. Expected a size such as 4GB, or a "
            "fraction of a GPU such as 0.4. Correct it."
        )
    number, unit = re.fullmatch(r"([\d.]+)\s*([a-z]*)", text.strip().lower()).groups()  # type: ignore[union-attr]
    if unit:
        return int(float(number) * _UNITS[unit])
    if total is None:
        raise KerasdistError(
            f"Received `--memory-limit {text}`, a fraction, and nvidia-smi does not tell how much "
            "memory the GPU has. Expected a size. Give for example `--memory-limit 4GB`."
        )
    return int(float(number) * total)


def set_memory(
    growth: bool, limit: str | None, totals: Callable[[], list[int]] | None = None
) -> bool:
    """Sets how much memory TensorFlow takes on every GPU; before it starts them.

    Args:
        growth: Take memory only as it is needed.
        limit: The most that is taken on each, as `--memory-limit` has it; None for all.
        totals: The memory of each GPU; what nvidia-smi says by default.

    Returns:
        Whether there is a GPU to set it for.
    """
    if growth and limit is not None:
        raise KerasdistError(
            "Received `--memory-growth` and `--memory-limit`. Expected one of them: TensorFlow "
            "cannot do both. Leave one out."
        )
    if limit is not None:
        limit_bytes(limit, 1)  # A wrong one is an error also where there is no GPU.
    gpus = tf.config.list_physical_devices("GPU")
    if not growth and limit is None:
        return bool(gpus)
    sizes = (totals or total_memory)() if limit is not None else []
    try:
        for i, gpu in enumerate(gpus):
            if growth:
                tf.config.experimental.set_memory_growth(gpu, True)
                continue
            most = limit_bytes(str(limit), sizes[i] if i < len(sizes) else None)
            configuration = tf.config.LogicalDeviceConfiguration(memory_limit=most // 2**20)
            tf.config.set_logical_device_configuration(gpu, [configuration])
    except RuntimeError as error:
        raise KerasdistError(
            f"Received a setting of the GPUs' memory after TensorFlow had started: {error}. "
            "Expected it before. Restart the process."
        ) from error
    return bool(gpus)


def visible_memory(
    environ: Mapping[str, str] = os.environ, totals: Callable[[], list[int]] | None = None
) -> list[int]:
    """Bytes of each GPU that CUDA_VISIBLE_DEVICES lets through; empty if that is not known.

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
    """Bytes of each GPU in the order of nvidia-smi; empty if it does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        printed = run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return [int(line) * 2**20 for line in printed.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def unusable_gpus(
    visible: Sequence[Any] | None = None, has_driver: Callable[[], bool] | None = None
) -> str | None:
    """One sentence and the fix if there is a GPU that TensorFlow does not use; else None.

    Args:
        visible: GPUs that TensorFlow sees; asked by default.
        has_driver: Tells whether the machine has an NVIDIA GPU; looked up by default.
    """
    visible = tf.config.list_physical_devices("GPU") if visible is None else visible
    if visible or not (has_driver or _has_driver)():
        return None
    if not tf.test.is_built_with_cuda():
        return (
            "This machine has an NVIDIA GPU, and the installed TensorFlow is built without CUDA: "
            "install it with `pip install 'tensorflow[and-cuda]'`."
        )
    return (
        "This machine has an NVIDIA GPU that TensorFlow cannot use, as a rule because the CUDA "
        "libraries are missing or the driver is too old: `pip install 'tensorflow[and-cuda]'`, "
        "update the driver, and see `nvidia-smi`; or CUDA_VISIBLE_DEVICES hides it."
    )


def _has_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
