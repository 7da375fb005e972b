"""What a fit of a script is, told from its arguments: two starts of the script must agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import keras

from kerasdist.models import pure
from kerasdist.models.memory.operations import differ, of_operations
from kerasdist.runs import identity
from kerasdist.runs.checkpoints.differences import OTHER_OPERATIONS, of_layers
from kerasdist.runs.trained_model import weights_sha256

# Arguments of `fit` that are told by their value.
_PLAIN = (
    "batch_size",
    "epochs",
    "validation_split",
    "shuffle",
    "class_weight",
    "initial_epoch",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
)
# What is told of a model that is built.
_LAYERS = ("layer_settings", "layers", "operations")


@dataclass(frozen=True)
class Record:
    """One fit of a script.

    Attributes:
        settings: What must be the same when the script is started again. The checkpoints compare
            the model and the data besides.
        start: A hash of the weights before the fit; None if the model is not built yet.
    """

    settings: Mapping[str, Any]
    start: str | None

    @classmethod
    def of(cls, model: keras.Model, given: Mapping[str, Any]) -> Record:
        callbacks = given["callbacks"]
        callbacks = getattr(callbacks, "callbacks", callbacks)
        settings = {
            "model": type(model).__name__,
            **{name: given[name] for name in _PLAIN},
            "has_validation_data": given["validation_data"] is not None,
            "callbacks": [type(c).__name__ for c in keras.tree.flatten(callbacks or [])],
            "optimizer": _config(getattr(model, "optimizer", None)),
            "loss": _config(getattr(model, "loss", None)),
            **(_of_built(model) if pure.has_weights(model) else {}),
        }
        plain = json.loads(_without_addresses(json.dumps(settings, default=str)))
        has_weights = model.weights and pure.has_weights(model)
        return cls(plain, weights_sha256(model) if has_weights else None)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        return cls(content["settings"], content["start"])

    def to_json(self) -> dict[str, Any]:
        return {"settings": self.settings, "start": self.start}


def differences(earlier: Record, now: Record, *, may_add_epochs: bool) -> list[str]:
    """The settings that differ. With `may_add_epochs`, a larger number of epochs is no difference.

    Example:
        >>> earlier, now = Record({"epochs": 2}, None), Record({"epochs": 1}, None)
        >>> differences(earlier, now, may_add_epochs=True)
        ['epochs was 2 and is 1']
    """
    found = _other_layers(earlier.settings, now.settings)
    for name in sorted({*earlier.settings, *now.settings}):
        was: Any = earlier.settings.get(name)
        is_now: Any = now.settings.get(name)
        if was == is_now or name in _LAYERS:
            continue
        if name == "epochs" and may_add_epochs and is_now > was:
            continue
        found += _told(name, was, is_now)
    return found


def _of_built(model: keras.Model) -> dict[str, Any]:
    told = (identity.of_layers(model), _layers(model), of_operations(model))
    return dict(zip(_LAYERS, told, strict=True))


def _layers(model: keras.Model) -> list[str]:
    """The weights with their shapes. Keras numbers the layers of a whole process."""
    return [f"{identity.without_numbers(v.path)} {tuple(v.shape)}" for v in model.weights]


def _other_layers(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The layers that differ, or the first weight. Older versions noted none."""
    settings: Any
    weights: Any
    made: Any
    settings, weights, made = ((earlier.get(name), now.get(name)) for name in _LAYERS)
    if all(settings) and (found := of_layers(*settings)):
        return found
    if not all(weights) or weights[0] == weights[1]:
        return [OTHER_OPERATIONS] if differ(*made) else []
    pairs = zip_longest(*weights, fillvalue="none")
    first, second = next((a, b) for a, b in pairs if a != b)
    return [f"the layers of the model differ: the weight {first} is now {second}"]


def _told(name: str, was: Any, is_now: Any) -> list[str]:
    if isinstance(was, dict) and isinstance(is_now, dict):
        keys = [key for key in {**was, **is_now} if was.get(key) != is_now.get(key)]
        return [f"{name} {key} was {was.get(key)!r} and is {is_now.get(key)!r}" for key in keys]
    return [f"{name} was {was!r} and is {is_now!r}"]


def _config(thing: Any) -> Any:
    """The settings of an optimizer or a loss, as far as it tells them."""
    if isinstance(thing, (dict, list, tuple)):
        return keras.tree.map_structure(_config, thing)
    if thing is None or isinstance(thing, str):
        return thing
    try:
        return {"class": type(thing).__name__, **thing.get_config()}
    except Exception:  # noqa: BLE001 - a class or function of the script, which tells only its name
        return getattr(thing, "__name__", type(thing).__name__)


def _without_addresses(text: str) -> str:
    return re.sub(r"\b0x[0-9a-f]+", "0x", text)
