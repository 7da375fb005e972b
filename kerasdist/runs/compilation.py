"""How a run's model was compiled: losses and metrics that only the user's code has."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import keras

from kerasdist.errors import first_line
from kerasdist.models import pure
from kerasdist.models.foreign_code import first_foreign

COMPILED = "compile_config"


def own_functions(model: keras.Model) -> list[str]:
    """Names of the functions in `compile` that are not Keras's.

    Keras saves a function as its name, and would take its own function of that name for it.

    Example:
        >>> def huber(y, p):
        ...     return keras.ops.mean(keras.ops.abs(y - p), axis=-1)
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", huber, metrics=[keras.losses.mean_squared_error])
        >>> own_functions(model)
        ['huber']
    """
    functions = pure.compiled_functions(model)
    return sorted({f.__name__ for f in functions if not f.__module__.startswith("keras.")})


def complete(layers: Any, model: keras.Model) -> Any:
    """A model's description, with the settings of losses and metrics that Keras leaves out."""
    if isinstance(layers, dict) and isinstance(layers.get(COMPILED), dict):
        _complete(layers[COMPILED], pure.compile_arguments(model))
    return layers


def _complete(saved: Any, given: Any) -> None:
    if isinstance(saved, dict) and isinstance(given, dict):
        for key in saved.keys() & given.keys():
            _complete(saved[key], given[key])
    elif isinstance(saved, list) and isinstance(given, (list, tuple)):
        for one, other in zip(saved, given, strict=False):
            _complete(one, other)
    elif isinstance(saved, dict) and isinstance(saved.get("config"), dict):
        saved["config"] |= pure.forgotten_arguments(given)


def split(layers: Any) -> tuple[Any, dict[str, Any] | None]:
    """A model's description without how it was compiled, and that. Models in it lose theirs."""
    if not isinstance(layers, dict):
        return layers, None
    return _uncompiled(layers), layers.get(COMPILED) or None


def _uncompiled(item: Any) -> Any:
    if isinstance(item, dict):
        return {k: _uncompiled(value) for k, value in item.items() if k != COMPILED}
    return [_uncompiled(value) for value in item] if isinstance(item, list) else item


def compile_as(model: keras.Model, saved: dict[str, Any], own: Collection[str]) -> str | None:
    """Compiles a model as a run says, or returns what is missing for that."""
    saved = json.loads(json.dumps(saved))
    missing = []
    for item in _dicts(saved):
        if keras.saving.get_registered_object(str(item.get("registered_name"))) is not None:
            item.pop("module", None)  # Keras finds it by its name.
    for item in _functions(saved):
        registered = _registered(item["config"])
        if registered is not None:
            item["config"] = registered
        elif item["config"] in own or not _is_keras_function(item["config"]):
            missing.append(f"the function {item['config']!r}")
    missing += [f"the class {name!r}" for name in _missing_classes(saved)]
    foreign = None if missing else first_foreign(saved)
    if missing or foreign is not None:
        return foreign or " and ".join(dict.fromkeys(missing))
    try:
        model.compile_from_config(saved)
    except Exception as error:  # noqa: BLE001 - `from_config` may be anybody's code
        return f"what Keras did not find ({first_line(error)})"
    return None


def _functions(saved: Any) -> Iterator[dict[str, Any]]:
    for item in _dicts(saved):
        if item.get("class_name") == "function" and isinstance(item.get("config"), str):
            yield item


def _missing_classes(saved: Any) -> Iterator[str]:
    for item in _dicts(saved):
        name = item.get("class_name")
        if isinstance(name, str) and "registered_name" in item and item.get("module") is None:
            known = item["registered_name"] or name
            if keras.saving.get_registered_object(known) is None:
                yield name


def _registered(name: str) -> str | None:
    """The name with which Keras finds a custom function: it may have been registered later."""
    if keras.saving.get_registered_object(name) is not None:
        return name
    known = keras.saving.get_custom_objects()
    return next((key for key in known if key.endswith(f">{name}")), None)


def _is_keras_function(name: str) -> bool:
    parts = (keras.losses, keras.metrics, keras.activations, keras.initializers, keras.regularizers)
    return any(callable(getattr(part, name, None)) for part in (*parts, keras.ops))


def _dicts(item: Any) -> Iterator[dict[str, Any]]:
    if isinstance(item, dict):
        yield item
    for value in item.values() if isinstance(item, dict) else item:
        if isinstance(value, (dict, list)):
            yield from _dicts(value)
