"""`tf.random` inside a step: its numbers depend on seed, step and shard, not on the time.

TensorFlow's own functions keep a state in the process. Inside of `drawing`, they call TensorFlow's
stateless functions instead. In the body of a loop they keep their state: such operations are found
in the graph.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kerasdist.devices import private_tensorflow
from kerasdist.models.pure.replacements import Replace, Replacements

# Each replica is traced in its own thread.
_active = threading.local()


class _Drawing:
    """The seed of a shard's numbers, and how often was drawn. With `one_row`, rows are alike."""

    def __init__(self, seed: tf.Tensor, one_row: Callable[[Any], bool] | None):
        self._seed, self._count, self._one_row = tf.cast(seed, tf.int64), 0, one_row
        self._graph = _graph()
        self.has_shuffled = False

    @property
    def is_here(self) -> bool:
        """Whether each call is traced: not inside a loop, a branch or a nested `tf.function`.

        Such a body is traced once and may run often. It would draw the same numbers each time.
        """
        return _graph() is self._graph

    def next_seed(self, *, is_of_rows: bool = False) -> tf.Tensor:
        self._count += 1
        # A probe repeats rows. For what it cannot repeat, the first number gives other seeds.
        first = self._seed[:1] * 0 if is_of_rows else self._seed[:1]
        return tf.concat([first, self._seed[1:] + self._count], axis=0)

    def of_shape(self, draw: Callable[..., tf.Tensor], shape: Any) -> tf.Tensor:
        """`draw(shape, seed)`, with alike rows if that is asked for and these are rows."""
        if self._one_row is None or not self._one_row(shape):
            return draw(shape, self.next_seed())
        seed = self.next_seed(is_of_rows=True)
        row = draw([1, *tf.unstack(tf.convert_to_tensor(shape))[1:]], seed)
        return tf.repeat(row, shape[0], axis=0)


@contextlib.contextmanager
def drawing(seed: tf.Tensor, one_row: Callable[[Any], bool] | None = None) -> Iterator[_Drawing]:
    """Inside, `tf.random` draws from `seed`: a tensor of two whole numbers.

    `one_row(shape)` tells for which shapes one row is drawn and repeated.
    """
    before = _current()
    _active.drawing = _Drawing(seed, one_row)
    try:
        with _REPLACED.active():
            yield _active.drawing
    finally:
        _active.drawing = before


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _current() -> _Drawing | None:
    return getattr(_active, "drawing", None)


def _or_original(original: Callable[..., Any], stateless: Callable[..., Any]) -> Callable[..., Any]:
    """`stateless(drawing, ...)` inside of `drawing`, else the original function."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        drawing = _current()
        if drawing is None or not drawing.is_here:
            return original(*args, **kwargs)
        return stateless(drawing, *args, **kwargs)

    return draw


def _normal(
    drawing: _Drawing,
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = tf.float32,
    seed: Any = None,
    name: Any = None,
) -> tf.Tensor:
    unit = drawing.of_shape(lambda s, n: tf.random.stateless_normal(s, n, dtype=dtype), shape)
    return unit * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _truncated_normal(
    drawing: _Drawing,
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = tf.float32,
    seed: Any = None,
    name: Any = None,
) -> tf.Tensor:
    draw = tf.random.stateless_truncated_normal
    unit = drawing.of_shape(lambda s, n: draw(s, n, dtype=dtype), shape)
    return unit * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _uniform(
    drawing: _Drawing,
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = tf.float32,
    seed: Any = None,
    name: Any = None,
) -> tf.Tensor:
    dtype = tf.as_dtype(dtype)
    if maxval is None and dtype.is_integer:
        raise ValueError(f"Must specify maxval for integer dtype {dtype!r}")  # As TensorFlow.
    maxval = 1 if maxval is None else maxval
    if dtype.is_floating:
        draw = tf.random.stateless_uniform
        unit = drawing.of_shape(lambda s, n: draw(s, n, dtype=dtype), shape)
        low = tf.cast(minval, dtype)
        return unit * (tf.cast(maxval, dtype) - low) + low
    bounds = {"minval": tf.cast(minval, dtype), "maxval": tf.cast(maxval, dtype)}
    return drawing.of_shape(
        lambda s, n: tf.random.stateless_uniform(s, n, dtype=dtype, **bounds), shape
    )


def _gamma(
    drawing: _Drawing,
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = tf.float32,
    seed: Any = None,
    name: Any = None,
) -> tf.Tensor:
    alpha = tf.convert_to_tensor(alpha, dtype)
    beta = tf.ones([], dtype) if beta is None else tf.convert_to_tensor(beta, dtype)
    of_parameters = tf.broadcast_dynamic_shape(tf.shape(alpha), tf.shape(beta))
    whole = tf.concat([tf.convert_to_tensor(shape, tf.int32), of_parameters], axis=0)
    return tf.random.stateless_gamma(whole, drawing.next_seed(), alpha, beta, dtype)


def _poisson(
    drawing: _Drawing,
    shape: Any,
    lam: Any,
    dtype: Any = tf.float32,
    seed: Any = None,
    name: Any = None,
) -> tf.Tensor:
    lam = tf.convert_to_tensor(lam)
    whole = tf.concat([tf.convert_to_tensor(shape, tf.int32), tf.shape(lam)], axis=0)
    return tf.random.stateless_poisson(whole, drawing.next_seed(), lam, dtype)


def _categorical(
    drawing: _Drawing,
    logits: Any,
    num_samples: Any,
    dtype: Any = None,
    seed: Any = None,
    name: Any = None,
) -> tf.Tensor:
    drawing.has_shuffled = True
    return tf.random.stateless_categorical(
        logits, num_samples, drawing.next_seed(), dtype or tf.int64
    )


def _shuffle(drawing: _Drawing, value: Any, seed: Any = None, name: Any = None) -> tf.Tensor:
    drawing.has_shuffled = True
    value = tf.convert_to_tensor(value)
    keys = tf.random.stateless_uniform([tf.shape(value)[0]], drawing.next_seed())
    return tf.gather(value, tf.argsort(keys, stable=True))


def rows_like(size: int) -> Callable[[Any], bool]:
    """Tells, eagerly, whether a shape has one row per example, or several."""

    def is_of_rows(shape: Any) -> bool:
        sizes = [int(n) for n in tf.convert_to_tensor(shape).numpy()] if len(shape) else []
        return bool(sizes) and sizes[0] > 0 and sizes[0] % size == 0

    return is_of_rows


_STATELESS: dict[str, Callable[..., Any]] = {
    "normal": _normal,
    "truncated_normal": _truncated_normal,
    "uniform": _uniform,
    "gamma": _gamma,
    "poisson": _poisson,
    "categorical": _categorical,
    "shuffle": _shuffle,
}


def _apply(replace: Replace) -> None:
    for name, stateless in _STATELESS.items():
        replace(tf.random, name, _or_original(getattr(tf.random, name), stateless))
    # What TensorFlow itself calls, for example in `tf.image.random_flip_left_right`.
    module = private_tensorflow.RANDOM_FUNCTIONS
    for name, known in private_tensorflow.RANDOM_NAMES.items():
        replace(module, name, _or_original(getattr(module, name), _STATELESS[known]))


_REPLACED = Replacements(_apply)
