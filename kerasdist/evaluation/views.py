"""Test-time augmentation: averages a model's outputs over several views of each example."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops

from kerasdist.errors import KerasdistError


@contextlib.contextmanager
def acting_as(model: keras.Model, kind: type[keras.Model]) -> Iterator[None]:
    """Gives a model another class inside the block.

    Wrapping the model or compiling it again would lose what it was compiled with.
    """
    own = type(model)
    kind.__name__, kind.__qualname__ = own.__name__, own.__qualname__
    object.__setattr__(model, "__class__", kind)
    try:
        yield
    finally:
        object.__setattr__(model, "__class__", own)


def averaging(
    model: keras.Model, views: Callable[..., Sequence[Any]]
) -> AbstractContextManager[None]:
    """A context in which the model averages its outputs over the views of its features.

    Args:
        model: A built model.
        views: Takes what the model's `call` takes and returns a list of views. A view is what
            `call` takes: a tensor, or a tuple of several.

    Example:
        >>> import keras, numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.ReLU()])
        >>> with averaging(model, lambda x: [x, -x]):
        ...     model(np.array([[4.0]])).numpy().tolist()
        [[2.0]]
    """
    own: Any = type(model)

    class Averaging(own):
        def call(self, *args: Any, **kwargs: Any) -> Any:
            seen = views(*args)
            if not isinstance(seen, (list, tuple)) or not seen:
                found = "an empty list" if isinstance(seen, (list, tuple)) else repr(type(seen))
                raise KerasdistError(
                    f"The function from the recipe's `build_views` returned {found}. Expected a "
                    "list of at least one view. Correct `build_views` in data.py."
                )
            each = [
                own.call(self, *(view if isinstance(view, tuple) else (view,)), **kwargs)
                for view in seen
            ]
            return keras.tree.map_structure(lambda *outputs: ops.mean(ops.stack(outputs), 0), *each)

    return acting_as(model, Averaging)
