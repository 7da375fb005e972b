"""`--format keras`: a .keras file, with only Keras's layers and operations if possible.

A .keras file holds the name of a recipe's class, but not its code. If the class's `call` uses
nothing but Keras, it can run on symbolic tensors. The result is a functional model that needs no
class.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist.errors import KerasdistError, RunFailedError
from kerasdist.model_files.agreement import compare, random_inputs
from kerasdist.model_files.served import Runtime, Served, reason
from kerasdist.models import pure
from kerasdist.runs.trained_model import CONFIG_MEMBER

NEEDS_CLASSES = "the file needs the code of {names} when it is loaded: {reason}"
NEEDS_OURS = "before the file is loaded, run `from kerasdist import {names}`"


def write(served: Served, path: Path) -> list[str]:
    """Writes the model as a functional model; if that is not possible, as it is."""
    _forget_training(served.model)
    try:
        with _called_through(served.model):
            model = _functional(served)
        model.save(path)
        foreign = _foreign_class(path)
        if foreign is None:
            _check_same(served, path)
            return []
        why = f"{foreign!r} cannot be written with Keras's layers alone"
    except Exception as error:  # noqa: BLE001 - a `call` on symbolic tensors can raise anything
        why = reason(error)
    path.unlink(missing_ok=True)
    try:
        served.model.save(path)
    except Exception as error:
        raise RunFailedError(
            f"Keras cannot describe the model {type(served.model).__name__!r}: {reason(error)} "
            "Expected a class with a `get_config`. Add one, or use another format, for example "
            "`--format saved_model`."
        ) from error
    kinds = {type(layer) for layer in _own_layers(served.model)} or {type(served.model)}
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    if all(kind.__module__.split(".")[0] == "kerasdist" for kind in kinds):
        return [NEEDS_OURS.format(names=names)]
    return [NEEDS_CLASSES.format(names=names, reason=why)]


def _functional(served: Served) -> keras.Model:
    inputs = [
        keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=spec.name) for spec in served.inputs
    ]
    outputs = pure.call(served.model, served.pack(inputs), training=False)
    _make_names_unique(served.model)
    # Several inputs are given by name: `model({"frames": ..., "length": ...})`.
    by_name = {tensor.name: tensor for tensor in inputs}
    name = "".join(c if c.isalnum() else "_" for c in type(served.model).__name__)
    return keras.Model(by_name if len(inputs) > 1 else inputs[0], outputs, name=name)


@contextlib.contextmanager
def _called_through(model: keras.Model) -> Iterator[None]:
    """Inside this block, custom layers, and models that contain them, leave no trace in the graph.

    Calling such a layer calls only its `call`, which works on the symbolic tensors directly.
    """
    own = _own_layers(model)
    around = [
        layer
        for layer in pure.all_layers(model)
        if isinstance(layer, keras.Model) and any(inner in own for inner in pure.all_layers(layer))
    ]
    through = {id(layer) for layer in (model, *own, *around)}
    original = keras.layers.Layer.__call__

    def call(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in through:
            return original(self, *args, **kwargs)
        if any(pure.get_mask(tensor) is not None for tensor in keras.tree.flatten(args)):
            raise KerasdistError(f"a mask reaches the layer {self.name!r}")
        args = keras.tree.map_structure(lambda value: _cast(self, value), args)
        return self.call(*args, **kwargs)

    keras.layers.Layer.__call__ = call
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = original


def _cast(layer: keras.layers.Layer, value: Any) -> Any:
    """Casts a float tensor to the layer's compute dtype, as calling the layer does."""
    is_tensor = keras.ops.is_tensor(value) or isinstance(value, keras.KerasTensor)
    if not is_tensor or not layer.autocast or "float" not in str(value.dtype):
        return value
    return (
        value if value.dtype == layer.compute_dtype else keras.ops.cast(value, layer.compute_dtype)
    )


def _forget_training(model: keras.Model) -> None:
    """Removes the optimizer, and custom initializers, regularizers and constraints of layers.

    Prediction does not use them, but a file would name their classes.
    """
    model.compiled, model.optimizer = False, None
    for layer in pure.all_layers(model):
        for name, value in list(vars(layer).items()):
            kind = value if hasattr(value, "__name__") else type(value)
            is_own = value is not None and not _is_keras(kind)
            if name.endswith("_initializer") and is_own:
                setattr(layer, name, keras.initializers.Zeros())
            elif name.endswith(("_regularizer", "_constraint")) and is_own:
                setattr(layer, name, None)


def _is_keras(kind: Any) -> bool:
    return str(kind.__module__).split(".")[0] == "keras"


def _own_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Layers whose classes are not Keras's."""
    return [layer for layer in pure.all_layers(model) if not _is_keras(type(layer))]


def _make_names_unique(model: keras.Model) -> None:
    """Renames layers with equal names, such as "conv" in two blocks. Keras needs unique ones."""
    taken: set[str] = set()
    for layer in pure.all_layers(model):
        name, number = layer.name, 1
        while name in taken:
            name, number = f"{layer.name}_{number}", number + 1
        taken.add(name)
        layer.name = name


def _foreign_class(path: Path) -> str | None:
    """The first class or function in a file that is not Keras's."""
    with zipfile.ZipFile(path) as archive:
        waiting = [json.loads(archive.read(CONFIG_MEMBER))]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            module, registered = item.get("module"), item.get("registered_name")
            is_registered = isinstance(registered, str) and ">" in registered
            is_elsewhere = isinstance(module, str) and module.split(".")[0] not in (
                "keras",
                "builtins",
            )
            if "class_name" in item and (is_registered or is_elsewhere):
                return str(item["class_name"])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return None


def _check_same(served: Served, path: Path) -> None:
    """Compares the file with the model on random examples."""
    found = compare(served, opened(path, served), [random_inputs(served, 2)])
    if not found.is_small:
        raise KerasdistError(f"as a functional model it computes other values ({found.largest})")


def opened(path: Path, served: Served) -> Runtime:
    """Loads the file with safe mode on. Custom classes of the model are found by their names."""
    known = {type(layer).__name__: type(layer) for layer in _own_layers(served.model)}
    model = keras.models.load_model(path, custom_objects=known, compile=False, safe_mode=True)
    is_functional = isinstance(model, keras.Model) and not _own_layers(model)

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if is_functional and len(served.inputs) > 1:
            named = zip(served.inputs, arrays, strict=True)
            outputs = model({spec.name: array for spec, array in named}, training=False)
        elif is_functional:
            outputs = model(arrays[0], training=False)
        else:
            outputs = pure.call(model, served.pack(arrays), training=False)
        return [np.asarray(t) for t in keras.tree.flatten(outputs) if t is not None]

    return run
