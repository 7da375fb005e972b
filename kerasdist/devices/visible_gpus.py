"""The GPUs that TensorFlow may see, and their numbers.

TensorFlow reserves memory on every GPU that it sees, and numbers them from 0. kerasdist shows and
accepts the numbers from before it hid the others: if only the second GPU is left, it is "GPU:1" for
the user and "GPU:0" for TensorFlow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow as tf

from kerasdist.devices import private_tensorflow

# The numbers of the GPUs that are left; None if none were hidden.
_kept: tuple[int, ...] | None = None


def keep(indices: Collection[int]) -> None:
    """Hides all other GPUs from TensorFlow. Has no effect once TensorFlow has started."""
    global _kept
    visible = tf.config.get_visible_devices("GPU")
    if private_tensorflow.has_started() or _kept is not None or len(indices) >= len(visible):
        return
    _kept = tuple(sorted(indices))
    tf.config.set_visible_devices([visible[i] for i in _kept], "GPU")


def shown(name: str) -> str:
    """A device of TensorFlow by the name that the user knows."""
    return name if _kept is None else _translated(name, range(len(_kept)), _kept)


def in_tensorflow(names: Sequence[str]) -> tuple[str, ...]:
    """Devices by the names that TensorFlow has for them."""
    if _kept is None:
        return tuple(names)
    return tuple(_translated(name, _kept, range(len(_kept))) for name in names)


def positions(names: Sequence[str]) -> list[int]:
    """The positions of TensorFlow's devices `names` among all GPUs that CUDA lets it use."""
    visible = tf.config.get_visible_devices("GPU")
    numbers = [int(gpu.name.rpartition(":")[2]) for gpu in visible]
    indices = [int(name.partition(":")[2]) for name in names]
    return [numbers[i] if i < len(numbers) else i for i in indices]


def _translated(name: str, old: Sequence[int], new: Sequence[int]) -> str:
    kind, _, index = name.partition(":")
    if kind != "GPU" or not index.isdigit() or int(index) not in old:
        return name
    return f"GPU:{new[old.index(int(index))]}"
