"""Where the weights of a model are: the names of the layers around each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import keras
from keras.src.utils.naming import to_snake_case


@dataclass(frozen=True)
class Place:
    """A weight of a model and the layers that it is in.

    Attributes:
        variable: The weight.
        layers: The layers around it, from the outermost to its own. The model is not among them.
    """

    variable: keras.Variable
    layers: tuple[keras.layers.Layer, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers and of the weight, such as `("backbone", "conv1", "kernel")`.

        `variable.path` lacks the outer layers if a functional model is used as a layer.
        """
        return (*(layer.name for layer in self.layers), self.variable.name)


def places(model: keras.Model) -> list[Place]:
    """A place for each weight of a built model, in the order of `model.weights`."""
    found: dict[int, Place] = {}
    for layers in _chains(model, ()):
        inner = layers[-1] if layers else model
        # Outer layers first, so that the innermost one that has a weight is the last to claim it.
        found.update({id(v): Place(v, layers) for v in inner.weights})
    return [found[id(v)] for v in model.weights]


def _chains(
    layer: keras.layers.Layer, outer: tuple[keras.layers.Layer, ...]
) -> Iterator[tuple[keras.layers.Layer, ...]]:
    yield outer
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        if inner not in outer:  # A layer may hold the one that it is in.
            yield from _chains(inner, (*outer, inner))


def automatic_name(layer: keras.layers.Layer) -> str:
    """The name that Keras gives a layer of this kind, before it adds a number: "conv2d"."""
    return to_snake_case(type(layer).__name__)
