"""Finds code that a saved Keras configuration names, by reading it: nothing is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

# The parts of Keras that models consist of. Others are risky: `keras.utils` can download files.
_PARTS = {
    *("activations", "constraints", "dtype_policies", "initializers", "layers", "losses"),
    *("metrics", "models", "ops", "optimizers", "quantizers", "random", "regularizers"),
    *("backend", "src"),
}
# A layer that runs a SavedModel from another folder.
_RUNS_FILES = {"TFSMLayer"}


def first_foreign(config: Any, modules: Collection[str] = ()) -> str | None:
    """Names the first thing in a configuration that is code or belongs to an unknown module.

    Args:
        config: The content of `config.json` in a `.keras` file, or of `model.to_json()`.
        modules: Top-level modules that are allowed besides Keras.

    Returns:
        A description for a message, or None if the file names nothing foreign.

    Example:
        >>> first_foreign({"module": "keras.layers", "class_name": "Dense", "config": {}})
        >>> first_foreign({"module": "os", "class_name": "system", "config": {}})
        "the class 'system' of the module 'os'"
    """
    for item in _dicts(config):
        name, module = item.get("class_name"), item.get("module")
        inner = item.get("config")
        if name == "__lambda__":
            return "the code of a function"
        if name == "Lambda" and isinstance(inner, dict) and isinstance(inner.get("function"), list):
            return "the code of a Lambda layer"
        if name in _RUNS_FILES:
            return f"the layer {name!r}, which runs code from another file"
        if module is None or (module == "builtins" and name == "function"):
            continue  # Keras looks the name up among those that this process registered.
        if not isinstance(module, str) or not _is_known(module, modules):
            return f"the class {_short(name)} of the module {_short(module)}"
    return None


def _is_known(module: str, modules: Collection[str]) -> bool:
    top, *rest = module.split(".")
    if top != "keras":
        # Recipes, and files given to --model, are imported under names that kerasdist chooses.
        return top in modules or top.startswith("kerasdist")
    return all(part in _PARTS for part in rest[:1]) and "utils" not in rest and "saving" not in rest


def _dicts(config: Any) -> Iterator[dict[str, Any]]:
    waiting = [config]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _short(name: Any) -> str:
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:100]}..."
