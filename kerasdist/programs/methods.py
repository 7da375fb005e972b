"""The functions that stand in for Keras's methods, with its signatures and docstrings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

from kerasdist.models import pure, refusals
from kerasdist.programs.program import Program
from kerasdist.training.keras_arguments.tracebacks import shortened

Method = Callable[..., Any]


def replacements(
    originals: Mapping[str, Method], find: Callable[[], Program | None]
) -> dict[str, Method]:
    """A function for each of Keras's methods. It asks `find` for the program at each call."""
    return {name: _replacement(name, original, find) for name, original in originals.items()}


def _replacement(name: str, original: Method, find: Callable[[], Program | None]) -> Method:
    signature = inspect.signature(original)
    receiver = next(iter(signature.parameters))

    @functools.wraps(original)
    def method(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        program = find()
        if program is None:  # Somebody kept the function beyond `disable`.
            return original(self, *args, **kwargs)
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}.{name}() {error}") from None
        given.apply_defaults()
        arguments = dict(given.arguments)
        model = arguments.pop(receiver)
        more = arguments.pop("kwargs", {})
        more.pop(pure.IN_FIT, None)
        if more:
            raise ValueError(f"Arguments not recognized: {more}")
        try:
            with refusals.called_by_model(name):
                return getattr(program, name)(model, **arguments)
        except Exception as error:
            error.__traceback__ = shortened(error)
            raise  # Without a value: Python adds no frame for this line.

    return method
