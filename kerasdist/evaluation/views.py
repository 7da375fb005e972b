"""Test-time augmentation: a model's outputs as the mean over several views of each example."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from kerasdist.errors import KerasdistError


@contextlib.contextmanager
def acting_as(model: keras.Model, kind: type[keras.Model]) -> Iterator[None]:
    """Gives a model another class for the while.

    Compiling anew, or a model around it, would lose what the model was compiled with.
    """
    own = type(model)
    kind.__name__, kind.__qualname__ = own.__name__, own.__qualname__
    object.__setattr__(model, "__class__", kind)
    try:
        yield
    finally:
        object.__setattr__(model, "__class__", own)


def averaging(model: keras.Model, views: Callable[..., Sequence[Any]]) -> Any:
    """A context in which the model's outputs are the mean over what `views` makes of its features.

    Args:
        model: A built model.
        views: Takes what `call` takes, and returns a list of it: one tensor, or a tuple, a view.

    Example:
        >>> import keras, numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.ReLU()])
        >>> with averaging(model, lambda x: [x, -x]):
        ...     model(np.array([[4.0]])).numpy().tolist()
        [[2.0]]
    """
    own = type(model)

    class Averaging(own):  # type: ignore[valid-type, misc]
        def call(self, *args, **kwargs):
            seen = views(*args)
            if not isinstance(seen, (list, tuple)) or not seen:
                raise KerasdistError(
                    f"Received {type(seen).__name__} from the recipe's views. Expected a list of "
                    "at least one. Correct `build_views` in data.py."
                )
            each = [
                own.call(self, *(view if isinstance(view, tuple) else (view,)), **kwargs)
                for view in seen
            ]
            return keras.tree.map_structure(lambda *outputs: ops.mean(ops.stack(outputs), 0), *each)

    return acting_as(model, Averaging)
