"""Names of weights, brought to one form, so that those of a model and a checkpoint can be compared.

A name becomes a tuple, such as `("conv1", "kernel")` for "conv1/weights".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import keras

from kerasdist.model_files.tf_checkpoints.contents import Entry
from kerasdist.models import pure

Name = tuple[str, ...]

# What TensorFlow 1 and people call the weights that Keras calls so.
_LEAVES = {
    "weights": "kernel",
    "weight": "kernel",
    "w": "kernel",
    "_kernel": "kernel",
    "biases": "bias",
    "b": "bias",
    "depthwise_weights": "depthwise_kernel",
    "pointwise_weights": "pointwise_kernel",
    "embedding": "embeddings",
    "_embeddings": "embeddings",
}
_NUMBERED = re.compile(r"^(.*?)(?:_(\d+))?$")


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight of a model, with the names that it goes by.

    Attributes:
        variable: The weight.
        name: What people read, and write into a mapping, such as "backbone/conv1/kernel".
        names: Its names in the form that is compared.
        layer: A number for its layer, in the order of the model.
    """

    variable: keras.Variable
    name: str
    names: tuple[Name, ...]
    layer: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.variable.shape)

    @property
    def leaf(self) -> str:
        return self.names[0][-1]


class Names:
    """Brings names to one form.

    Keras numbers the layers that got no name in a whole process: "conv2d_3" may be "conv2d" after a
    restart. If a model and a checkpoint have equally many of a kind, they are numbered from 0 here,
    in the order in which they were made. If not, these names say nothing.
    """

    def __init__(self, places: Sequence[pure.Place], entries: Iterable[Entry]):
        automatic = {
            pure.automatic_name(layer)
            for place in places
            for layer in place.layers
            if _base(layer.name) == pure.automatic_name(layer)
        }
        of_model = _numbers((part for p in places for part in p.names[:-1]), automatic)
        in_file = _numbers(
            (part for e in entries for name in e.names for part in name.split("/")[:-1]), automatic
        )
        self._of_model: dict[str, str] = {}
        self._in_file: dict[str, str] = {}
        for base in automatic:
            own, other = sorted(of_model[base]), sorted(in_file[base])
            if len(own) == len(other):
                self._of_model |= {_join(base, n): f"{base}#{i}" for i, n in enumerate(own)}
                self._in_file |= {_join(base, n): f"{base}#{i}" for i, n in enumerate(other)}
            else:
                self._of_model |= {_join(base, n): f"{base}#own {n}" for n in own}
                self._in_file |= {_join(base, n): f"{base}#other {n}" for n in other}

    def of_weight(self, place: pure.Place) -> tuple[Name, ...]:
        """The names of a weight, the longest first."""
        found = [self._form(place.names, self._of_model)]
        path = tuple(place.variable.path.split("/"))
        # `path` has the scopes that a custom layer opened itself.
        if path[-len(place.names) :] != place.names:
            found.append(self._form(path, self._of_model))
        if place.layers and isinstance(place.layers[-1], keras.layers.DepthwiseConv2D):
            found += [(*name[:-1], "depthwise_kernel") for name in found if name[-1] == "kernel"]
        return tuple(dict.fromkeys(found))

    def of_entry(self, entry: Entry) -> tuple[Name, ...]:
        """The names of an entry of a checkpoint."""
        found = [self._form(tuple(name.split("/")), self._in_file) for name in entry.names]
        return tuple(dict.fromkeys(found))

    @staticmethod
    def _form(name: Sequence[str], numbers: Mapping[str, str]) -> Name:
        *scopes, leaf = name
        leaf = leaf.removesuffix(":0")
        return (*(numbers.get(scope, scope) for scope in scopes), _LEAVES.get(leaf.lower(), leaf))


def weights_of(places: Sequence[pure.Place], names: Names) -> list[Weight]:
    """The weights of a model in its order."""
    layers: dict[tuple[int, ...], int] = {}
    seen: Counter[str] = Counter()
    weights = []
    for place in places:
        name = "/".join(place.names)
        seen[name] += 1
        # A custom layer may have two weights of one name.
        unique = name if seen[name] == 1 else f"{name} ({seen[name]})"
        layer = layers.setdefault(tuple(id(layer) for layer in place.layers), len(layers))
        weights.append(Weight(place.variable, unique, names.of_weight(place), layer))
    return weights


def _base(name: str) -> str:
    match = _NUMBERED.match(name)
    return match[1] if match else name


def _join(base: str, number: int) -> str:
    return base if number < 0 else f"{base}_{number}"


def _numbers(parts: Iterable[str], bases: set[str]) -> dict[str, set[int]]:
    """The numbers that each of the names in `bases` has. -1 stands for none."""
    found: dict[str, set[int]] = defaultdict(set)
    for part in set(parts):
        match = _NUMBERED.match(part)
        if match and match[1] in bases:
            found[match[1]].add(-1 if match[2] is None else int(match[2]))
    return found
