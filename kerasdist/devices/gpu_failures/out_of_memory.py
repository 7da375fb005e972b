"""Names the device that is out of memory, what did not fit, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import tensorflow as tf

from kerasdist.devices import private_tensorflow, visible_gpus
from kerasdist.errors import OutOfMemoryError, causes

# What TensorFlow and XLA say if a device has no memory left (TF 2.21). They use
# ResourceExhaustedError for other things, too, such as messages that are too long to send.
_WORDS = re.compile(
    r"OOM when allocating|Out of memory|unable to allocate output tensor|failed to allocate "
    r"memory|Failed to allocate request|Dst tensor is not initialized",
    re.IGNORECASE,
)
_DEVICE = r"(?:/job:(?P<job>\w+)/replica:\d+/task:(?P<task>\d+))?/device:(?P<name>[A-Z]+:\d+)"
# In the order of how surely they name the device.
_PLACES = [
    re.compile(rf"OOM when allocating [^\n]*? on {_DEVICE}"),
    # A copy to another device: source;number;target;name of the tensor.
    re.compile(rf"Key: [^;\n]*;[^;\n]*;{_DEVICE}"),
    re.compile(rf"Failed copying input tensor from \S+ to {_DEVICE}"),
    re.compile(rf"copying tensor to device: {_DEVICE}"),
]
_ORDINAL = re.compile(r"on device ordinal (\d+)")
_SHAPE = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+)")
_BYTES = re.compile(r"(?:allocate request for|trying to allocate) ([\d.]+ ?(?:[KMGT]?i?B|bytes))")


# A device that had less of its memory in use was not out of memory.
_FULL = 0.5

# The most bytes that were in use on a device, and the bytes that it has.
Usage = Callable[[str], tuple[int, int]]


def found(
    error: BaseException, devices: Mapping[str, str], usage: Usage | None = None
) -> OutOfMemoryError | None:
    """What to tell the user about an error; None if no device was out of memory.

    Args:
        error: Any error, also one that was raised because of another one.
        devices: The user's name of each device of this process, by its name in TensorFlow.
        usage: The memory of a device. The default asks TensorFlow.
    """
    # Not `__context__`: the caller may be handling an earlier error of another training.
    for each in (error, *causes(error)):
        if isinstance(each, tf.errors.CancelledError):
            return _cancelled(devices, usage or _usage)
        if isinstance(each, tf.errors.OpError) and _WORDS.search(str(each)):
            titles = list(devices.values())
            some = titles[0] if len(titles) == 1 else f"One of {', '.join(titles)}"
            return _told(_device(str(each)) or some, _what(str(each)))
    return None


def _cancelled(devices: Mapping[str, str], usage: Usage) -> OutOfMemoryError | None:
    """If one of several devices fails, TensorFlow cancels the others, and sometimes tells only that
    (2.21). Then the device with the fullest memory is most likely the one: the message says so.
    """
    shares = {name: usage(name) for name in devices if name.startswith("GPU")}
    shares = {name: (used, total) for name, (used, total) in shares.items() if total > 0}
    if not shares:
        return None
    name = max(shares, key=lambda name: shares[name][0] / shares[name][1])
    used, total = shares[name]
    if used < _FULL * total:
        return None
    return _told(
        devices[name],
        "probably a tensor",
        f" TensorFlow cancelled the step without saying why, and up to {used / 2**20:,.0f} of "
        f"{total / 2**20:,.0f} MB were in use there.",
    )


def _usage(name: str) -> tuple[int, int]:
    peak = tf.config.experimental.get_memory_info(name)["peak"]
    return peak, private_tensorflow.memory_limits().get(name, 0)


def _told(device: str, what: str, evidence: str = "") -> OutOfMemoryError:
    fix = (
        "Use a smaller `batch_size`, more `shards` (the same maths with less memory), more devices "
        'or `precision="mixed_bfloat16"`; on the command line these are `--batch-size`, '
        "`--shards`, `--devices` and `--precision`."
    )
    if "CPU" not in device:
        fix += (
            " If other programs use that GPU (`nvidia-smi` lists them), stop them, or start them "
            "and kerasdist with `--memory-growth`."
        )
    return OutOfMemoryError(
        f"{device} is out of memory: {what} did not fit.{evidence} Expected the weights, the "
        f"optimizer and the activations of a step to fit on each device. {fix}"
    )


def _device(text: str) -> str | None:
    """The user's name of the device that an error names; None if it names none."""
    for place in _PLACES:
        named = place.search(text)
        if named is not None:
            return _title(named["name"], named["job"], named["task"])
    ordinal = _ORDINAL.search(text)
    return None if ordinal is None else _title(f"GPU:{ordinal[1]}")


def _title(name: str, job: str | None = None, task: str | None = None) -> str:
    shown = visible_gpus.shown(name)
    return f"worker {task} {shown}" if job == "worker" else shown


def _what(text: str) -> str:
    shape = _SHAPE.search(text)
    if shape is not None:
        sizes = [int(size) for size in shape[1].split(",") if size]
        return f"a tensor of shape {sizes} and type {shape[2]}"
    size = _BYTES.search(text)
    return "a tensor" if size is None else f"a piece of {size[1]}"
