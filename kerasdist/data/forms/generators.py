"""Generator functions, which are called once per pass, and generators, which are read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from kerasdist.data.batches import Batch
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.errors import KerasdistError


def function_stream(function: Callable[[], Iterable[Batch]], name: str) -> PythonStream:
    """The batches that a generator function yields."""
    return PythonStream(partial(_batches, function), name=name)


def generator_stream(generator: Iterator[Batch], name: str) -> PythonStream:
    """The batches of a generator, or of another iterator."""
    return PythonStream(read=partial(next, generator), is_one_shot=True, name=name)


def _batches(function: Callable[[], Iterable[Batch]], epoch: int, start: int) -> Iterator[Batch]:
    batches = function()
    if not hasattr(batches, "__iter__"):
        raise KerasdistError(
            f"Received as data a function that returned {type(batches).__name__}. Expected a "
            "generator function: one that yields batches. Use `yield` in it."
        )
    return islice(batches, start, None) if start else iter(batches)
