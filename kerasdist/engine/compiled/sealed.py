"""Compiled functions whose graph does not depend on their caller."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import HOST
from kerasdist.models import pure
from kerasdist.models.tensors.composites import as_tensor, spec_of_rows


class Sealed:
    """`function(*args)` as one compiled function, the same for every replica and every worker.

    TensorFlow optimizes a call together with the graph around it. In a loop, or beside other
    operations, it may fuse or fold the same layers or use other kernels, and then they round
    differently. A sealed function is traced once, without a device or a strategy around it, and is
    never inlined. Everything it reads must come through its arguments.

    Args:
        function: Takes nested structures of tensors and None, and returns such a structure.
        seed: For the random numbers of Python and NumPy during the trace. Some layers draw them
            there (Keras 3.15's AugMix), and every process must draw the same.
        on_draw: Called if the trace drew such numbers.
        jit: Whether XLA compiles it. TensorFlow then compiles it once for each shape of its
            arguments and each device.
        device: Where every call runs. By default, on the device of its caller.
        on_gpu: Whether it runs on a GPU. Whole numbers then stay on the host, as int32: int64
            arguments would go to the GPU, and back to the host for operations that take them there.
        rows_of: `rows_of(*args)` returns the arguments whose first axis is the examples. Callers
            may know its size or not: the function is the same one for all sizes.

    Example:
        >>> import tensorflow as tf
        >>> double = Sealed(lambda numbers, bias: [2 * n for n in numbers], seed=0)
        >>> [int(n) for n in double([tf.constant(1), tf.constant(2)], None)]
        [2, 4]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        seed: int,
        on_draw: Callable[[], None] = lambda: None,
        jit: bool = False,
        device: str | None = None,
        rows_of: Callable[..., Any] = lambda *_: (),
        on_gpu: bool = False,
    ):
        self._function, self._rows_of, self._on_gpu = function, rows_of, on_gpu
        self._seed, self._jit, self._device = seed, jit, device
        self._on_draw = on_draw
        self._made: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        leaves = tf.nest.flatten(args)
        rows = {id(leaf) for leaf in tf.nest.flatten(self._rows_of(*args))}
        is_rows = [id(leaf) in rows for leaf in leaves if leaf is not None]
        given = [as_tensor(leaf) for leaf in leaves if leaf is not None]
        tensors = [self._narrow(tensor) for tensor in given]
        narrowed = tuple(t is not g for t, g in zip(tensors, given, strict=True))
        specs = tuple(_spec(t, r) for t, r in zip(tensors, is_rows, strict=True))
        concrete = self._concrete(args, leaves, specs, narrowed)
        if self._device is None:
            return concrete(*tensors)
        with tf.device(self._device):
            return concrete(*tensors)

    def _narrow(self, tensor: tf.Tensor) -> tf.Tensor:
        if not self._on_gpu or tensor.dtype != tf.int64 or tensor.shape.rank != 0:
            return tensor
        with tf.device(HOST):
            return tf.cast(tensor, tf.int32)

    def _concrete(
        self,
        args: tuple[Any, ...],
        leaves: list[Any],
        specs: tuple[tf.TypeSpec, ...],
        narrowed: tuple[bool, ...],
    ) -> Callable[..., Any]:
        present = tuple(leaf is not None for leaf in leaves)
        key = (present, specs, narrowed)
        if key not in self._made:
            structure = tf.nest.map_structure(lambda _: 0, args)

            def flat(*tensors: tf.Tensor) -> Any:
                given = (_wide(t, n) for t, n in zip(tensors, narrowed, strict=True))
                values = [next(given) if is_there else None for is_there in present]
                return self._function(*tf.nest.pack_sequence_as(structure, values))

            compiled = tf.function(
                flat,
                autograph=False,
                jit_compile=self._jit or None,
                experimental_attributes={"_noinline": True},
            )
            # Traced outside of the caller's graph: otherwise it would take over its devices.
            with _seeded(self._seed, self._on_draw):
                concrete = pure.in_new_thread(lambda: compiled.get_concrete_function(*specs))
            for tensor in concrete.captured_inputs:
                if tf.is_symbolic_tensor(tensor):  # Other callers do not have it.
                    raise RuntimeError(f"{tensor.name} is not an argument of a sealed function")
            self._made[key] = concrete
        return self._made[key]


def _wide(tensor: tf.Tensor, is_narrowed: bool) -> tf.Tensor:
    if not is_narrowed:
        return tensor
    with tf.device(HOST):
        return tf.cast(tensor, tf.int64)


def _spec(tensor: tf.Tensor, is_rows: bool) -> tf.TypeSpec:
    if is_rows and tensor.shape.rank:
        return spec_of_rows(tensor)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


@contextlib.contextmanager
def _seeded(seed: int, on_draw: Callable[[], None]) -> Iterator[None]:
    """Seeds the random numbers of Python and NumPy, and restores their states after."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    begin = _states()
    try:
        yield
    finally:
        if _states() != begin:
            on_draw()
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _states() -> tuple[Any, bytes, tuple[Any, ...]]:
    kind, numbers, *rest = np.random.get_state()
    return random.getstate(), np.asarray(numbers).tobytes(), (kind, *rest)
