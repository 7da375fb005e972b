"""Lists the layers of a model for model.json: classes, output shapes, numbers of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import keras

# A model of more layers is listed up to here.
_MOST_LAYERS = 1000


def summary(model: keras.Model) -> dict[str, Any]:
    """The layers of a built model, and how many numbers its weights hold.

    The model is not run: the shape of a layer is known if Keras recorded it, or if the layer says
    how its output follows from its input.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> found = summary(model)
        >>> found["parameters"], found["layers"][0]["output"], found["layers"][0]["parameters"]
        (8, [2], 8)
    """
    layers = [
        {
            "name": layer.name,
            "class": type(layer).__name__,
            "output": _output_shape(layer),
            "parameters": _count(layer.weights),
        }
        for layer in model.layers[:_MOST_LAYERS]
    ]
    return {
        "parameters": _count(model.weights),
        "trainable": _count(model.trainable_weights),
        "layers": layers,
    }


def _count(weights: Iterable[Any]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _output_shape(layer: keras.Layer) -> list[int | None] | None:
    """The shape of a layer's output for one example; None if it is unknown, or if it has several.

    Layers may be anybody's code, so whatever goes wrong means that the shape is unknown.
    """
    try:
        shape = layer.output.shape
    except Exception:  # noqa: BLE001 - a layer that is not part of a graph of layers
        shape = _computed_shape(layer)
    is_single = isinstance(shape, (tuple, list)) and all(
        size is None or isinstance(size, int) for size in shape
    )
    return list(shape[1:]) if is_single and shape else None


def _computed_shape(layer: keras.Layer) -> Any:
    # Keras's own version of this method runs the layer, which may be slow.
    if type(layer).compute_output_shape is keras.Layer.compute_output_shape:
        return None
    try:
        built = layer.get_build_config() or {}
        return layer.compute_output_shape(**built)
    except Exception:  # noqa: BLE001 - see `_output_shape`
        return None
