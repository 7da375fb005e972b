"""model.json: the input of a run's model, and its layers if Keras can describe them."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import kerasdist.optimizers  # noqa: F401 - registers kerasdist's classes with Keras
from kerasdist.errors import KerasdistError, first_line
from kerasdist.models import pure
from kerasdist.models.foreign_code import first_foreign
from kerasdist.runs import compilation

OWN_FUNCTIONS = "own_functions"
MISTAKEN = "mistaken_functions"


def describe(model: keras.Model, spec: Any) -> dict[str, Any]:
    """Returns the content of model.json.

    Args:
        model: A built model.
        spec: `tf.TensorSpec`s in the structure of the batches that the model was trained on.

    Example:
        >>> import keras, tensorflow as tf
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> describe(model, tf.TensorSpec((None, 3)))["data"]
        {'shape': [None, 3], 'dtype': 'float32'}
    """
    try:
        layers = compilation.complete(json.loads(model.to_json()), model)
    except Exception:  # noqa: BLE001 - a class without `get_config`: only its code can make it
        layers = None
    return {
        "class_name": type(model).__name__,
        "data": _plain(spec),
        "model": layers,
        OWN_FUNCTIONS: compilation.own_functions(model),
        MISTAKEN: _mistaken(model),
    }


def _mistaken(model: keras.Model) -> list[str]:
    """Names of custom functions in layers that Keras would take for its activations.

    It saves an activation as its name, also one that is not Keras's (Keras 3.15).
    """
    values = [value for layer in pure.all_layers(model) for value in vars(layer).values()]
    functions = [value for value in values if isinstance(value, types.FunctionType)]
    return sorted(
        {
            function.__name__
            for function in functions
            if not function.__module__.startswith("keras.")
            and hasattr(keras.activations, function.__name__)
            and keras.saving.get_registered_name(function) == function.__name__
        }
    )


def read_spec(path: Path) -> Any:
    """The batches that a run's model was trained on: `tf.TensorSpec`s in their structure."""
    content = _read(path)
    try:
        return _spec(content["data"])
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, str(error)) from error


def rebuild(path: Path) -> tuple[keras.Model, str | None]:
    """Builds the untrained model of a run, if all its classes are Keras's or registered.

    The model is not compiled if its loss, metrics or optimizer are not found. Then the second value
    says what is missing.
    """
    content = _read(path)
    kind, layers = content.get("class_name"), content.get("model")
    layers, compiled = compilation.split(layers)
    foreign = "the class " + repr(kind) if layers is None else _unregistered(layers)
    if foreign is None and content.get(MISTAKEN):
        foreign = f"the function {content[MISTAKEN][0]!r}, which has the name of one of Keras's"
    if foreign is not None:
        raise _foreign(path, foreign)
    try:
        model = keras.models.model_from_json(json.dumps(layers))
    except Exception as error:
        # Keras writes no module for a class of a script.
        missing = re.match(r"Could not locate (class|function) '([^']*)'", str(error))
        if missing is not None:
            raise _foreign(path, f"the {missing[1]} {missing[2]!r}") from error
        raise _broken(path, first_line(error)) from error
    if compiled is None:
        return model, None
    if any(layer.dtype_policy.name == "mixed_float16" for layer in pure.all_layers(model)):
        # Keras keeps the policies of layers, not the model's, which decides on a loss scale.
        model.dtype_policy = "mixed_float16"
    own = content.get(OWN_FUNCTIONS) or []
    return model, compilation.compile_as(model, compiled, own)


def _foreign(path: Path, what: str) -> KerasdistError:
    return KerasdistError(
        f"The model of the run {str(path.parent)!r} needs {what}, and kerasdist runs no code from "
        "a run's folder. Expected Keras's classes, or registered ones. Before training, put "
        "`@keras.saving.register_keras_serializable()` above it and give a class a `get_config`. "
        "Or build the model in your code and load the weights with "
        f"`kerasdist.load_weights(model, {str(path.parent)!r})`."
    )


def _unregistered(layers: Any) -> str | None:
    """The first class or function that is neither Keras's nor registered in this process."""
    known = keras.saving.get_custom_objects()
    return first_foreign(_without(layers, known))


def _without(item: Any, known: Mapping[str, Any]) -> Any:
    """A copy in which registered classes name no module: Keras looks them up by name."""
    if isinstance(item, dict):
        item = {key: _without(value, known) for key, value in item.items()}
        if item.get("registered_name") in known:
            item.pop("module", None)
        return item
    return [_without(value, known) for value in item] if isinstance(item, list) else item


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(content, dict):
        raise _broken(path, "it is not a JSON object")
    return content


def _broken(path: Path, reason: str) -> KerasdistError:
    return KerasdistError(
        f"{path.name} of the run {str(path.parent)!r} cannot be read: {reason}. Expected the file "
        "that `fit` wrote. Choose another run, or build the model in your code and load the "
        "weights with `fit(init_from=...)`."
    )


def _plain(spec: Any) -> Any:
    if isinstance(spec, Mapping):
        return {"fields": {name: _plain(item) for name, item in spec.items()}}
    if isinstance(spec, (tuple, list)):
        return {"positions": [_plain(item) for item in spec]}
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _spec(plain: Any) -> Any:
    if "fields" in plain:
        return {name: _spec(item) for name, item in plain["fields"].items()}
    if "positions" in plain:
        return tuple(_spec(item) for item in plain["positions"])
    return tf.TensorSpec(plain["shape"], tf.as_dtype(plain["dtype"]))
