"""Generator functions, which are called once per pass, and generators, which are read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from kerasdist.data.batches import Batch
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.errors import KerasdistError

_NUM_REPLAYED = 2


def function_stream(function: Callable[[], Iterable[Batch]], name: str) -> PythonStream:
    """The batches that a generator function yields."""
    return PythonStream(partial(_batches, function), name=name)


def generator_stream(generator: Iterator[Batch], name: str) -> PythonStream:
    """The batches of a generator, or of another iterator."""
    return PythonStream(read=partial(next, generator), is_one_shot=True, name=name)


def replayed_stream(generator: Iterator[Batch], name: str, steps: int | None) -> PythonStream:
    """A generator to validate on. As in Keras, each pass begins with its first two batches again.

    Keras reads these to learn their shapes, and puts them in front of what the generator yields
    next (3.15.1). So `validation_steps=2` validates on the same two batches after every epoch.
    A pass ends after `steps` batches: what is read ahead of them would be lost.
    """
    first: list[Batch] = []

    def batches(epoch: int, start: int) -> Iterator[Batch]:
        return islice(replayed(start), None if steps is None else max(0, steps - start))

    def replayed(start: int) -> Iterator[Batch]:
        yield from list(first)[start:]
        for batch in generator:
            if len(first) < _NUM_REPLAYED:
                first.append(batch)
            yield batch

    stream = PythonStream(batches, capacity=1, name=name)
    stream.is_one_shot = True
    return stream


def _batches(function: Callable[[], Iterable[Batch]], epoch: int, start: int) -> Iterator[Batch]:
    batches = function()
    if not hasattr(batches, "__iter__"):
        raise KerasdistError(
            f"Received as data a function that returned {type(batches).__name__}. Expected a "
            "generator function: one that yields batches. Use `yield` in it."
        )
    return islice(batches, start, None) if start else iter(batches)
