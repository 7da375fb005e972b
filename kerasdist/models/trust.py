"""Whether a saved Keras configuration names code: found by reading it, nothing is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

# Parts of Keras that a model is made of; `keras.utils` downloads and unpacks, for example.
_PARTS = {
    *("activations", "constraints", "dtype_policies", "initializers", "layers", "losses"),
    *("metrics", "models", "ops", "optimizers", "quantizers", "random", "regularizers"),
    *("backend", "src"),
}
# A layer that runs whatever a folder beside the file holds.
_RUNS_FILES = {"TFSMLayer"}


def first_foreign(config: Any, modules: Collection[str] = ()) -> str | None:
    """Names the first thing in a configuration that is code, or of an unknown module.

    Args:
        config: What a `.keras` file's config.json or `model.to_json()` holds.
        modules: Top-level modules that may be named besides Keras.

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
            return f"the layer {name!r}, which runs what another file holds"
        if module is None or (module == "builtins" and name == "function"):
            continue  # Looked up by Keras among names that this process registered.
        if not isinstance(module, str) or not _is_known(module, modules):
            return f"the class {_short(name)} of the module {_short(module)}"
    return None


def _is_known(module: str, modules: Collection[str]) -> bool:
    top, *rest = module.split(".")
    if top != "keras":
        # Recipes and files given to --model are imported under names of ours.
        return top in modules or top.startswith("kerasdist")
    return all(part in _PARTS for part in rest[:1]) and "utils" not in rest and "saving" not in rest


def _dicts(config: Any) -> Iterator[dict]:
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
