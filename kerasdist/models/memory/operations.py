"""A fingerprint of what functional models compute between their layers, such as `x * 0.2`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import keras

from kerasdist.models import pure

_TENSOR = "__keras_tensor__"


def of_operations(model: keras.Model) -> str | None:
    """The version of Keras, which decides how operations are written, and a hash of them.

    None if no part of the model is functional. Names do not count: Keras numbers them.

    Example:
        >>> x = keras.Input((3,))
        >>> one, other = (keras.Model(x, keras.layers.Flatten()(x) * n) for n in (1, 2))
        >>> of_operations(one) == of_operations(other)
        False
    """
    parts = {id(part): part for part in (model, *pure.all_layers(model))}
    graphs = [_graph(part) for part in parts.values() if isinstance(part, keras.Model)]
    found = [graph for graph in graphs if graph is not None]
    if not found:
        return None
    text = json.dumps(found, sort_keys=True, default=lambda value: type(value).__name__)
    return f"{keras.__version__} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def differ(saved: str | None, now: str | None) -> bool:
    """Whether both are known and differ. Another version of Keras may write them otherwise."""
    if saved is None or now is None or saved.split()[0] != now.split()[0]:
        return False
    return saved != now


def _graph(model: keras.Model) -> list[Any] | None:
    """What each node of a functional model is, and which nodes it takes."""
    if not hasattr(model, "operations"):
        return None
    try:
        entries = model.get_config()["layers"]
        places = {entry["name"]: i for i, entry in enumerate(entries)}
        return [
            [entry["class_name"], _settings(entry), _linked(entry["inbound_nodes"], places)]
            for entry in entries
        ]
    except Exception:  # noqa: BLE001 - it may hold a custom class without `get_config`
        return None


def _settings(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Of an operation. Those of layers are compared one by one (`identity.of_layers`)."""
    if ".ops." not in str(entry.get("module")):
        return None
    return {name: value for name, value in entry["config"].items() if name != "name"}


def _linked(item: Any, places: dict[str, int]) -> Any:
    """Arguments, with the place of a node for each tensor."""
    if isinstance(item, dict) and item.get("class_name") == _TENSOR:
        name, *indices = item["config"]["keras_history"]
        return [places[name], *indices]
    if isinstance(item, dict):
        return {key: _linked(value, places) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_linked(value, places) for value in item]
    return item
