"""What callbacks remember between epochs: checkpoints keep it, and resumed runs give it back."""

from __future__ import annotations

import dis
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import keras
import numpy as np
import tensorflow as tf

from kerasdist.runs.checkpoints.manifests import is_storable

# What Keras's own callbacks remember between epochs. Other attributes are settings.
_STATE: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "epochs_since_last_save"),
    keras.callbacks.CSVLogger: (),
    keras.callbacks.LearningRateScheduler: (),
    keras.callbacks.LambdaCallback: (),
    keras.callbacks.TerminateOnNaN: (),
    keras.callbacks.TensorBoard: (),
}
_MAY_BE_NONE = {"best", "best_weights", "epochs_since_last_save"}
_PREFIX = "callbacks/"
# Ends the key of a list of numbers in a checkpoint. Other lists have a key for each array.
_NUMBERS = "numbers"

# By the name of an attribute: its value, as `setattr` takes it.
Values = dict[str, Any]


class Remembering(keras.callbacks.Callback):
    """A callback of kerasdist that says itself what checkpoints keep of it.

    Attributes:
        remembered: Names of attributes or properties. Each is a number or a list of arrays.
    """

    remembered: tuple[str, ...] = ()


class CallbackMemory:
    """What the callbacks of one training remember.

    In checkpoints each callback has the name of its class, the metric that it monitors, and its
    number among those with the same: `callbacks/EarlyStopping(val_loss)/0/best`. So other callbacks
    may come, go and change places before the run is resumed.

    Args:
        callbacks: All callbacks of the training. It has not begun.
        own: Those that this worker calls. Some write files, which only the chief does.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        own: Iterable[keras.callbacks.Callback],
    ):
        called = {id(callback) for callback in own}
        counts: Counter[str] = Counter()
        self._all: dict[str, keras.callbacks.Callback] = {}
        for callback in callbacks:
            name = _title(callback)
            self._all[f"{name}/{counts[name]}"] = callback
            counts[name] += 1
        self._own = {label: c for label, c in self._all.items() if id(c) in called}
        self._at_begin = {label: _copied(vars(c)) for label, c in self._own.items()}
        self._of_keras = {label: _set_by_keras(type(c)) for label, c in self._own.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """What checkpoints keep, as arrays (a best value can be infinite)."""
        arrays = {}
        for label, name, value in self._remembered():
            key = f"{_PREFIX}{label}/{name}"
            if _is_numbers(value):
                arrays[f"{key}/{_NUMBERS}"] = np.asarray(value)
            elif isinstance(value, list):
                arrays |= {f"{key}/{j:04d}": np.asarray(item) for j, item in enumerate(value)}
            else:
                arrays[key] = np.asarray(value)
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Gives the callbacks what a checkpoint kept. Returns whose memory found no callback."""
        unknown = []
        for label, values in self._named(_parsed(arrays)):
            if label not in self._all:
                unknown.append(label.rpartition("/")[0] or f"number {label}")
            elif label in self._own:
                _set(self._own[label], values)
        return unknown

    def _named(self, found: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """With today's labels. In older checkpoints a callback was its place in the list."""
        old = [values for label, values in found.items() if label.isdigit()]
        places = list(self._all)
        for label, values in found.items():
            if not label.isdigit():
                yield label, values
                continue
            fitting = [other for other in places if self._fits(self._all[other], values)]
            kinds = {type(self._all[other]) for other in fitting}
            rivals = [each for each in old if fitting and self._fits(self._all[fitting[0]], each)]
            at_place = places[int(label) : int(label) + 1]
            # The names of the attributes must leave no doubt which callback this was.
            if len(kinds) != 1 or len(rivals) != len(fitting):
                yield label, values
            elif len(fitting) == 1 and _of_keras(self._all[fitting[0]]):
                yield fitting[0], values
            else:
                yield (at_place[0] if set(at_place) <= set(fitting) and at_place else label), values

    def _fits(self, callback: keras.callbacks.Callback, values: Values) -> bool:
        known = set(_of_keras(callback))
        if isinstance(callback, Remembering):
            return set(values) <= known
        names = known if type(callback) in _STATE else {*known, *vars(callback)}
        return known - _MAY_BE_NONE <= set(values) <= names

    def _remembered(self) -> Iterator[tuple[str, str, Any]]:
        for label, callback in self._own.items():
            known = _of_keras(callback)
            names = list(known)
            if type(callback) not in _STATE and not isinstance(callback, Remembering):
                # The numbers that the training changed. Others are settings.
                others = {"params", *names, *self._of_keras[label]}
                names += [
                    name
                    for name, value in vars(callback).items()
                    if name not in others and not _same(value, self._at_begin[label].get(name))
                ]
            for name in names:
                value = getattr(callback, name, None)
                if name in known and isinstance(value, (tf.Tensor, keras.Variable)):
                    value = value.numpy()  # A metric that a callback added to the logs.
                if _can_be_kept(value, has_arrays=name in known):
                    yield label, name, value


def _title(callback: keras.callbacks.Callback) -> str:
    monitor = getattr(callback, "monitor", None)
    name = type(callback).__name__
    return f"{name}({quote(monitor, safe='')})" if isinstance(monitor, str) else name


def _of_keras(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """What a callback of Keras's or kerasdist's class remembers."""
    if isinstance(callback, Remembering):
        return callback.remembered
    return next((names for kind, names in _STATE.items() if isinstance(callback, kind)), ())


def _set_by_keras(kind: type[keras.callbacks.Callback]) -> frozenset[str]:
    """The attributes that Keras's code sets in a class of Keras's that `kind` inherits from.

    They are known or settings: `EarlyStopping` turns the sign of its `min_delta` in each process.
    """
    if not any(issubclass(kind, known) for known in _STATE):
        return frozenset()
    of_keras = [vars(each) for each in kind.__mro__ if each.__module__.startswith("keras.")]
    functions = [f for each in of_keras for f in each.values() if isinstance(f, types.FunctionType)]
    return frozenset(
        str(step.argval)
        for function in functions
        for step in dis.get_instructions(function)
        if step.opname == "STORE_ATTR"
    )


def _parsed(arrays: Mapping[str, np.ndarray]) -> dict[str, Values]:
    """The values of attributes by the label of their callback."""
    found: dict[str, Values] = {}
    for key in sorted(key for key in arrays if key.startswith(_PREFIX)):
        parts = key.removeprefix(_PREFIX).split("/")
        size = 1 if parts[0].isdigit() else 2  # Old checkpoints have a number in the list.
        label, name, *item = "/".join(parts[:size]), *parts[size:]
        values, array = found.setdefault(label, {}), arrays[key]
        if not item:
            values[name] = array if array.ndim else array.item()
        elif item == [_NUMBERS]:
            values[name] = array.tolist()
        else:
            values.setdefault(name, []).append(array)
    return found


def _set(callback: keras.callbacks.Callback, values: Values) -> None:
    for name, value in values.items():
        current = vars(callback).get(name)
        if isinstance(value, list) and isinstance(current, list):
            current[:] = value  # Somebody else may hold this list.
        else:
            setattr(callback, name, value)


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a callback, with copies of its lists of numbers: it may append to them."""
    return {k: list(v) if isinstance(v, list) else v for k, v in attributes.items()}


def _same(value: Any, other: Any) -> bool:
    is_plain = isinstance(value, (bool, int, float, str)) or _is_numbers(value)
    return value is other or (is_plain and value == other)


def _can_be_kept(value: Any, *, has_arrays: bool) -> bool:
    if isinstance(value, list) and not _is_numbers(value):
        is_kind = bool(value) and all(isinstance(item, np.ndarray) for item in value)
        return is_kind and all(map(is_storable, value))
    is_kind = isinstance(value, (bool, int, float, np.number)) or _is_numbers(value)
    is_kind = is_kind or (has_arrays and isinstance(value, np.ndarray))
    return is_kind and is_storable(np.asarray(value))


def _is_numbers(value: Any) -> bool:
    """Whether it is a list of numbers of one type, such as the losses of all epochs."""
    return (
        isinstance(value, list)
        and bool(value)
        and type(value[0]) in (bool, int, float)
        and all(type(item) is type(value[0]) for item in value)
    )
