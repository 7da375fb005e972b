"""What a TensorFlow checkpoint holds: weights, their averages, and what else is in it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kerasdist.devices.private_tensorflow import names_in_object_graph
from kerasdist.model_files.tf_checkpoints.files import Opened, broken

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_AVERAGE = "ExponentialMovingAverage"
_SLOT = "/.OPTIMIZER_SLOT/"
# Keras's `export` has all variables here as well.
_SECOND = "_all_variables/"
# Where an optimizer of Keras 3 holds the weights. TensorFlow may write them under this name only.
_WEIGHTS = "_trainable_variables"
# What training loops keep beside the weights.
_COUNTERS = re.compile(
    r"(^|/)(global_step|iter|iterations?|step|save_counter|learning_rate|decay|momentum|rho|"
    r"beta_?[12](_power)?|current_loss_scale|good_steps|num_updates|epsilon)$"
)
_SEED = re.compile(r"seed_generator_state$")


@dataclass(frozen=True, eq=False)
class Entry:
    """An array of a checkpoint that may be a weight.

    Attributes:
        key: Its name in the file.
        name: The same without TensorFlow's suffix: what people read, and write into a mapping.
        names: All names that it goes by. A checkpoint of TensorFlow 2 also knows the name that the
            variable had in Python.
        order: Where it was in the model, if the checkpoint says so.
    """

    key: str
    name: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    order: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Contents:
    """The entries of a checkpoint.

    Attributes:
        opened: The files.
        is_object_based: Whether TensorFlow 2 wrote it, by objects and not by names.
        entries: What may be weights.
        averages: The key of the moving average of an entry, by the entry's key.
        left_out: The names of all other arrays, by what they are.
    """

    opened: Opened
    is_object_based: bool
    entries: tuple[Entry, ...]
    averages: dict[str, str]
    left_out: dict[str, list[str]] = field(default_factory=dict)


def contents_of(opened: Opened) -> Contents:
    """Sorts the arrays of a checkpoint."""
    is_object_based = _GRAPH in opened.shapes
    names: dict[str, str] = {}
    if is_object_based:
        try:
            names = names_in_object_graph(opened.read(_GRAPH))
        except ValueError as error:
            raise broken(opened.prefix, f"its object graph is damaged: {error}") from error
    # Variables that got no name are all called "Variable".
    uses = Counter(names[key] for key in names if not key.startswith(_SECOND))
    names = {key: name for key, name in names.items() if uses[name] == 1}
    weights, averages, left_out = _sorted(opened, names)
    has_order = is_object_based and not any(_WEIGHTS in key.split("/") for key in weights)
    entries = [
        Entry(
            key,
            plain(key),
            _names(key, names.get(key)),
            opened.shapes[key],
            opened.dtypes[key],
            natural(key) if has_order else None,
        )
        for key in weights
    ]
    entries.sort(key=lambda entry: natural(entry.name))
    return Contents(opened, is_object_based, tuple(entries), averages, left_out)


def plain(key: str) -> str:
    """The name of an array without TensorFlow's suffix."""
    return key.removesuffix(_VALUE)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts `block2` before `block10`."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in parts if p)


def _names(key: str, python_name: str | None) -> tuple[str, ...]:
    own = plain(key)
    return (own,) if not python_name or python_name == own else (python_name, own)


def _sorted(
    opened: Opened, names: dict[str, str]
) -> tuple[list[str], dict[str, str], dict[str, list[str]]]:
    """`(keys of weights, averages, names of the rest)`."""
    weights: list[str] = []
    averages: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    every = set(opened.shapes) - {_GRAPH}
    repeated = _repeated(every)
    for key in sorted(every, key=natural):
        parent, _, leaf = key.rpartition("/")
        kind = _kind(key, names.get(key), opened)
        if leaf == _AVERAGE and parent in every:
            averages[parent] = key
        elif kind is not None:
            left_out.setdefault(kind, []).append(plain(key))
        elif parent in every:
            # TensorFlow 1 names the state of an optimizer after the variable: conv1/weights/Adam.
            left_out.setdefault("the optimizer's state", []).append(key)
        elif key not in repeated:
            weights.append(key)
    return weights, averages, left_out


def _kind(key: str, python_name: str | None, opened: Opened) -> str | None:
    """What an array is if it is not a weight."""
    name = plain(key)
    if opened.dtypes[key].kind == "O":
        return "text"
    parts = name.split("/")
    is_optimizer = any(part in ("optimizer", "_optimizer") for part in parts)
    if _SLOT in key or (is_optimizer and _WEIGHTS not in parts):
        return "the optimizer's state"
    if not opened.shapes[key] and _COUNTERS.search(name):
        return "counters and rates"
    if "keras_api" in parts and "metrics" in parts:
        return "metrics"
    if _SEED.search(name) or (python_name and _SEED.search(python_name)):
        return "random seeds"
    return None


def _repeated(keys: set[str]) -> set[str]:
    """What Keras's `export` writes a second time."""
    second = {key for key in keys if key.startswith(_SECOND)}
    return second if any(key.startswith("variables/") for key in keys) else set()
