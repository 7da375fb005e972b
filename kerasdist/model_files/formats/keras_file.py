"""`--format keras`: a .keras file, if it can be made of Keras's own layers and operations alone.

A class of a recipe is not in a file, only its name. But where its `call` uses nothing but Keras, it
can be run on symbolic tensors: what it does to them is a functional model that needs no class.
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

from kerasdist.errors import KerasdistError
from kerasdist.model_files.served import Runtime, Served, failed, first_line
from kerasdist.models import pure

NEEDS_CLASSES = "the file needs the code of {names} when it is loaded: {reason}"


def write(served: Served, path: Path) -> list[str]:
    """Writes the model as a functional one, or if that cannot be, as it is."""
    _forget_training(served.model)
    try:
        with _called_through(served.model):
            model = _functional(served)
        model.save(path)
        foreign = _foreign_class(path)
        if foreign is None:
            _check_same(served, path)
            return []
        reason = f"{foreign!r} cannot be written in Keras's own layers"
    except Exception as error:  # noqa: BLE001 - whatever a `call` does with symbolic tensors
        reason = first_line(error)
    path.unlink(missing_ok=True)
    try:
        served.model.save(path)
    except Exception as error:
        raise failed(
            f"Received the model {type(served.model).__name__!r}, which Keras cannot describe: "
            f"{first_line(error)} Expected a class with a `get_config`. Add it, or use another "
            "format, for example `--format saved_model`.",
            error,
        ) from error
    names = ", ".join(sorted({type(layer).__name__ for layer in _own_layers(served.model)}))
    return [NEEDS_CLASSES.format(names=names or type(served.model).__name__, reason=reason)]


def _functional(served: Served) -> keras.Model:
    inputs = [
        keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=spec.name) for spec in served.inputs
    ]
    outputs = pure.call(served.model, served.pack(inputs), training=False)
    _make_names_unique(served.model)
    # By name where there are several: `model({"frames": ..., "length": ...})`.
    by_name = {tensor.name: tensor for tensor in inputs}
    name = "".join(c if c.isalnum() else "_" for c in type(served.model).__name__)
    return keras.Model(by_name if len(inputs) > 1 else inputs[0], outputs, name=name)


@contextlib.contextmanager
def _called_through(model: keras.Model) -> Iterator[None]:
    """While it lasts, layers that are not Keras's own, and models around them, leave no trace.

    Calling one calls its `call`, which then meets the symbolic tensors itself.
    """
    own = _own_layers(model)
    around = [
        layer
        for layer in pure.all_layers(model)
        if isinstance(layer, keras.Model) and any(inner in own for inner in pure.all_layers(layer))
    ]
    through = {id(layer) for layer in (model, *own, *around)}
    original = keras.layers.Layer.__call__

    def call(self, *args, **kwargs):
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
    """What calling a layer does to its inputs: floats become those that it computes with."""
    is_tensor = keras.ops.is_tensor(value) or isinstance(value, keras.KerasTensor)
    if not is_tensor or not layer.autocast or "float" not in str(value.dtype):
        return value
    return (
        value if value.dtype == layer.compute_dtype else keras.ops.cast(value, layer.compute_dtype)
    )


def _forget_training(model: keras.Model) -> None:
    """Takes initializers and the like of classes that plain Keras does not have out of layers.

    A trained layer that only predicts does not use them, and a file names their classes.
    """
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
    """Layers of classes that plain Keras does not have."""
    return [layer for layer in pure.all_layers(model) if not _is_keras(type(layer))]


def _make_names_unique(model: keras.Model) -> None:
    """Two blocks may each have a "conv"; in one functional model they may not."""
    taken: set[str] = set()
    for layer in pure.all_layers(model):
        name, number = layer.name, 1
        while name in taken:
            name, number = f"{layer.name}_{number}", number + 1
        taken.add(name)
        layer.name = name


def _foreign_class(path: Path) -> str | None:
    """The first class or function that a file names and plain Keras does not have."""
    with zipfile.ZipFile(path) as archive:
        waiting = [json.loads(archive.read("config.json"))]
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
    """One made-up example through both, before the file counts as the model."""
    from kerasdist.model_files.agreement import compare, random_inputs

    found = compare(served, opened(path, served), [random_inputs(served, 2)])
    if not found.is_small:
        raise KerasdistError(f"as a functional model it computes something else ({found.largest})")


def opened(path: Path, served: Served) -> Runtime:
    """Loads the file with safe mode on; classes of the recipe are known by name, if it has any."""
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
