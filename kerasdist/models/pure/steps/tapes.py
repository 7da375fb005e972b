"""`tf.GradientTape` inside a model's own step: it knows values that stand for Keras's variables.

Inside a `StatelessScope`, tensors stand for the variables. A tape watches these tensors, and
`tape.gradient(loss, weights)` takes the gradient for them. There, the shards of a batch meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.pure.replacements import Replace, Replacements

# Gets the gradients of a shard and the names of their variables, and returns the gradients of the
# whole batch. None stays None.
Gradients = list[tf.Tensor | None]
Meet = Callable[[Gradients, Sequence[str]], Gradients]

_active = threading.local()


class Recording:
    """The tapes of one call of a step, and the tensors that stand for its variables.

    Args:
        value_of: The tensor that stands for a variable now; None if none does.
        variables: The variables that tapes watch by themselves.
        meet: Called with the gradients for variables, where no other tape records them.
    """

    def __init__(
        self,
        value_of: Callable[[keras.Variable], tf.Tensor | None],
        variables: Sequence[keras.Variable],
        meet: Meet,
    ):
        self._value_of, self._meet = value_of, meet
        self._variables = {id(v): v for v in variables if tf.as_dtype(v.dtype).is_floating}
        self._owners: dict[int, int] = {}
        self._tapes: list[tuple[tf.GradientTape, bool, dict[int, list[tf.Tensor]]]] = []
        self._recording: list[tf.GradientTape] = []
        self._before: Recording | None = None

    def __enter__(self) -> Recording:
        self._before = _current()
        _active.recording = self
        self._replaced = _REPLACED.active()
        self._replaced.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._replaced.__exit__(None, None, None)
        _active.recording = self._before

    def begin(self, tape: tf.GradientTape, watches: bool) -> None:
        """A tape starts to record."""
        self._recording.append(tape)
        if any(known is tape for known, _, _ in self._tapes):
            return
        self._tapes.append((tape, watches, {}))
        if watches:
            for variable in self._variables.values():
                self.watch(tape, variable)

    def end(self, tape: tf.GradientTape) -> None:
        """A tape stops recording."""
        self._recording = [other for other in self._recording if other is not tape]

    def watch(self, tape: tf.GradientTape, variable: keras.Variable) -> bool:
        """Watches the tensor that stands for a variable now. False if none does."""
        value = self._value_of(variable)
        if value is None:
            return False
        _watch(tape, value)
        self._owners[id(value)] = id(variable)
        self._leaves(tape).setdefault(id(variable), []).append(value)
        return True

    def variable_of(self, value: Any) -> keras.Variable | None:
        """The variable itself, or the one that a tensor stands for now; None for other values."""
        if isinstance(value, keras.Variable):
            return value
        return next((v for v in self._variables.values() if self._value_of(v) is value), None)

    def assigned(self, variable: keras.Variable) -> None:
        """A new tensor stands for the variable: tapes that record watch this one, too."""
        if id(variable) not in self._variables:
            return
        for tape, watches, leaves in self._tapes:
            is_watched = watches or id(variable) in leaves
            if is_watched and any(other is tape for other in self._recording):
                self.watch(tape, variable)

    def gradient(
        self, tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """`tape.gradient`, for variables and for other sources."""
        flat = tf.nest.flatten(sources)
        leaves = [self._leaves_of(tape, source) for source in flat]
        found = _gradient(tape, target, leaves, *args, **kwargs)
        gradients = [_sum(each) for each in found]
        is_weight = [self._is_weight(source) for source in flat]
        is_outermost = not any(other is not tape for other in self._recording)
        if is_outermost and any(is_weight):
            numbers = [i for i, is_one in enumerate(is_weight) if is_one]
            names = [getattr(flat[i], "path", "a weight") for i in numbers]
            own = [_dense(gradients[i], flat[i].shape) for i in numbers]
            whole = self._meet(own, names)
            for i, gradient in zip(numbers, whole, strict=True):
                gradients[i] = gradient
        return tf.nest.pack_sequence_as(sources, gradients)

    def _leaves(self, tape: tf.GradientTape) -> dict[int, list[tf.Tensor]]:
        return next((leaves for known, _, leaves in self._tapes if known is tape), {})

    def _leaves_of(self, tape: tf.GradientTape, source: Any) -> list[Any]:
        """The tensors that stood for a variable while the tape recorded."""
        if not isinstance(source, keras.Variable):
            return [source]
        found = self._leaves(tape).get(id(source))
        if found:
            return found
        value = self._value_of(source)
        return [source.value if value is None else value]

    def _is_weight(self, source: Any) -> bool:
        key = id(source) if isinstance(source, keras.Variable) else self._owners.get(id(source))
        return key in self._variables


def _dense(gradient: Any, shape: tf.TensorShape) -> tf.Tensor | None:
    """The whole gradient of an embedding, with the shape that TensorFlow may not infer."""
    if gradient is None:
        return None
    dense = tf.convert_to_tensor(gradient)
    return dense if dense.shape == shape else tf.ensure_shape(dense, shape)


def _sum(gradients: Sequence[Any]) -> Any:
    present = [g for g in gradients if g is not None]
    if len(present) < 2:
        return present[0] if present else None
    return tf.add_n([tf.convert_to_tensor(g) for g in present])


def _current() -> Recording | None:
    return getattr(_active, "recording", None)


_watch = tf.GradientTape.watch
_gradient = tf.GradientTape.gradient
_enter = tf.GradientTape.__enter__
_exit = tf.GradientTape.__exit__
_init = tf.GradientTape.__init__


def _new_init(
    self: tf.GradientTape, persistent: bool = False, watch_accessed_variables: bool = True
) -> None:
    _init(self, persistent, watch_accessed_variables)
    self.kerasdist_watches = watch_accessed_variables


def _new_enter(self: tf.GradientTape) -> Any:
    result = _enter(self)
    if (recording := _current()) is not None:
        recording.begin(self, getattr(self, "kerasdist_watches", True))
    return result


def _new_exit(self: tf.GradientTape, *args: Any) -> Any:
    if (recording := _current()) is not None:
        recording.end(self)
    return _exit(self, *args)


def _new_watch(self: tf.GradientTape, tensor: Any) -> None:
    recording = _current()
    for each in tf.nest.flatten(tensor):
        variable = None if recording is None else recording.variable_of(each)
        if recording is None or variable is None or not recording.watch(self, variable):
            _watch(self, each)


def _new_gradient(
    self: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    recording = _current()
    if recording is None:
        return _gradient(self, target, sources, *args, **kwargs)
    return recording.gradient(self, target, sources, *args, **kwargs)


def _refuse_jacobian(original: Callable[..., Any]) -> Callable[..., Any]:
    def jacobian(self: tf.GradientTape, target: Any, sources: Any, *args: Any, **kw: Any) -> Any:
        has_weights = any(isinstance(s, keras.Variable) for s in tf.nest.flatten(sources))
        if _current() is not None and has_weights:
            raise KerasdistError(
                "The step calls `tape.jacobian` for weights. kerasdist adds up gradients, not "
                "jacobians. Use `tape.gradient`, or train this model with Keras's own `fit`."
            )
        return original(self, target, sources, *args, **kw)

    return jacobian


def _apply(replace: Replace) -> None:
    replace(tf.GradientTape, "__init__", _new_init)
    replace(tf.GradientTape, "__enter__", _new_enter)
    replace(tf.GradientTape, "__exit__", _new_exit)
    replace(tf.GradientTape, "watch", _new_watch)
    replace(tf.GradientTape, "gradient", _new_gradient)
    for name in ("jacobian", "batch_jacobian"):
        replace(tf.GradientTape, name, _refuse_jacobian(vars(tf.GradientTape)[name]))


_REPLACED = Replacements(_apply)
