"""Fingerprints of a model and its data. Two starts of one run must have the same ones."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.streams import Stream
from kerasdist.models import pure

# Of larger arrays only the first and last rows are hashed, so that a start is not delayed.
_WHOLE_BYTES = 256 * 2**20
_ROWS = 256
# The rate may be changed by callbacks, and is the checkpoint's.
_NO_SETTINGS = {"learning_rate", "name"}
_PLAIN = (bool, int, float, str, type(None))
# They change nothing of a run that is continued: state and initial values are the checkpoint's.
_NOT_OF_LAYERS = {"name", "trainable", "dtype", "seed", "module", "registered_name", "build_config"}
# What predictions do not use.
_TRAINING_LAYER = re.compile(r"(\w*Dropout|Gaussian\w+|ActivityRegularization|Random\w+)( \d+)?")
_TRAINING_SETTING = re.compile(r"dropout|regularizer|constraint|momentum|synchronized")
# A longer text is not a setting: a Lambda layer writes its code.
_LONGEST_TEXT = 40


def of_model(model: keras.Model) -> dict[str, str]:
    """The fingerprint of a model: path, shape and type of its variables and its optimizer's."""
    optimizer = type(model.optimizer).__name__
    described = [f"{v.path}{tuple(v.shape)}{v.dtype}" for v in model.weights]
    optimizers = pure.optimizers_of(model)
    slots = [f"{tuple(v.shape)}{v.dtype}" for o in optimizers for v in o.variables]
    # Keras numbers the layers of a whole process: "dense_3" may be "dense" after a restart.
    plain = "\n".join(without_numbers(text) for text in described) + "\n" + "\n".join(slots)
    digest = _short_hash(plain)
    return {"model": f"{type(model).__name__} {digest}", "optimizer": optimizer}


def of_compilation(model: keras.Model) -> dict[str, Any]:
    """What the model was compiled with: loss, metrics, and the optimizer's settings but its rate.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
        >>> found = of_compilation(model)
        >>> found["loss"], found["metrics"], found["optimizer_settings"]["momentum"]
        ("'mse'", "['mae']", 0.9)
    """
    given = pure.compile_arguments(model)
    names = ("loss", "loss_weights", "metrics", "weighted_metrics")
    found: dict[str, Any] = {name: _named(given.get(name)) for name in names}
    found["loss_settings"] = dict(_arguments(given.get("loss")))
    metrics = {name: given.get(name) for name in ("metrics", "weighted_metrics")}
    found["metric_settings"] = dict(_arguments(metrics))
    if model.optimizer is not None:
        settings = _settings(model.optimizer)
        plain = {k: v for k, v in settings.items() if isinstance(v, _PLAIN)}
        found["optimizer_settings"] = {k: v for k, v in plain.items() if k not in _NO_SETTINGS}
        rate = settings.get("learning_rate")
        schedule = rate.get("config", {}) if isinstance(rate, dict) else {}
        # More epochs make a schedule longer.
        found["schedule"] = {
            k: v for k, v in schedule.items() if isinstance(v, _PLAIN) and "steps" not in k
        }
        if isinstance(rate, float):
            found["learning_rate"] = rate
        paths = [without_numbers(path) for path in pure.without_decay(model)]
        found["optimizer_settings"]["weights without decay"] = _counted(paths)
    return found


def of_layers(model: keras.Model) -> dict[str, dict[str, Any]]:
    """Settings of Keras's layers that no shape of a weight tells, such as the rate of a Dropout.

    Example:
        >>> part = keras.Sequential([keras.layers.Dropout(0.2), keras.layers.Flatten()])
        >>> of_layers(keras.Sequential([part]))["Dropout"]
        {'rate': 0.2, 'noise_shape': None}
    """
    found: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for layer in _visible(model):
        kind = type(layer).__name__
        counts[kind] += 1
        name = kind if counts[kind] == 1 else f"{kind} {counts[kind]}"
        try:
            config = layer.get_config()
        except Exception:  # noqa: BLE001 - it may hold a custom class without `get_config`
            config = {}
        found[name] = dict(_flat(config))
    return found


def to_predict(layers: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of what `of_layers` found, what changes predictions: training alone uses a Dropout.

    Example:
        >>> to_predict({"Dropout 2": {"rate": 0.5}, "LSTM": {"units": 3, "dropout": 0.5}})
        {'LSTM': {'units': 3}}
    """
    return {
        name: {k: v for k, v in settings.items() if not _TRAINING_SETTING.search(k)}
        for name, settings in layers.items()
        if not _TRAINING_LAYER.fullmatch(name)
    }


def _visible(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of Keras itself, in order. What Keras's layers consist of is its own matter."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _visible(layer)
        elif type(layer).__module__.startswith("keras."):
            yield layer


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if name in _NOT_OF_LAYERS or name.endswith("initializer"):
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name} ")
        elif isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
            yield f"{prefix}{name}", str(list(value))
        elif isinstance(value, _PLAIN) and not (
            isinstance(value, str) and (len(value) > _LONGEST_TEXT or os.sep in value)
        ):
            yield f"{prefix}{name}", value


def _settings(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimizer's settings; none if they cannot be told, as with a custom schedule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About a rate that is a lambda: nothing is saved here.
        try:
            found: dict[str, Any] = optimizer.get_config()
        except Exception:  # noqa: BLE001 - a custom class without `get_config`
            return {}
    return found


def _named(item: Any) -> str:
    """Losses or metrics by their names."""
    if isinstance(item, dict):
        return f"{{{', '.join(f'{k!r}: {_named(v)}' for k, v in item.items())}}}"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(map(_named, item))}]"
    if isinstance(item, _PLAIN):
        return repr(item)
    return str(getattr(item, "__name__", type(item).__name__))


def _arguments(item: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The plain arguments of losses or metrics, with where they are."""
    if isinstance(item, (dict, list, tuple)):
        parts = item.items() if isinstance(item, dict) else enumerate(item)
        for name, part in parts:
            yield from _arguments(part, f"{place}{name} ")
    elif not isinstance(item, _PLAIN):
        for name, value in {**_config(item), **pure.forgotten_arguments(item)}.items():
            if isinstance(value, _PLAIN):
                yield f"{place}{name}", value


def _config(item: Any) -> dict[str, Any]:
    """The settings of a loss or metric. Keras numbers the names of metrics, and of some losses."""
    try:
        config = item.get_config()
    except Exception:  # noqa: BLE001 - a function, or a custom class
        return {}
    return {name: value for name, value in config.items() if name not in ("name", "dtype")}


def of_trained_weights(model: keras.Model) -> dict[str, Any]:
    """Which weights are trained, and in which precision: no shape of a weight tells it."""
    ids = {id(v) for v in pure.parts(model).trainable}
    # With their places: Keras's own names differ only in numbers.
    weights = enumerate(model.weights)
    trained = [f"{i} {without_numbers(v.path)}" for i, v in weights if id(v) in ids]
    policies = sorted({layer.dtype_policy.name for layer in pure.all_layers(model)})
    return {
        "trained_weights": _counted(trained),
        "precision": ", ".join(policies),
    }


def _counted(paths: Sequence[str]) -> str:
    joined = "\n".join(paths)
    return f"{len(paths)} ({_short_hash(joined)})"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_numbers(path: str) -> str:
    """The path of a weight without the numbers that Keras gives to layers."""
    return re.sub(r"_\d+(?=/|$)", "", path)


def of_data(stream: Stream) -> dict[str, Any]:
    """The fingerprint of data: shapes and types, and a hash.

    The hash covers data in memory, and the first batch of any other data.
    """
    content = stream.arrays if stream.arrays is not None else stream.first_batch()
    spec = tf.nest.map_structure(lambda s: f"{s.dtype.name}{tuple(s.shape)}", stream.element_spec)
    name = "data_hash" if stream.arrays is not None else "first_batch_hash"
    return {
        "data": str(spec),
        "num_batches": stream.num_batches,
        name: _hash(content),
    }


def _hash(structure: Any) -> str:
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(structure, expand_composites=True):
        array = np.asarray(leaf)
        digest.update(f"{array.shape}{array.dtype}".encode())
        if array.nbytes > _WHOLE_BYTES:
            array = np.concatenate([array[:_ROWS], array[-_ROWS:]])
        if array.dtype.kind == "O":
            digest.update(repr(array.tolist()).encode())
        else:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
