"""Providers: objects with `batch_size` and `get_batch_data()`."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from kerasdist.data.batches import Batch, as_arrays, check_batch_size, count_examples
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.errors import KerasdistError


@dataclass(frozen=True)
class Provider:
    """A provider and the options for reading it; see `read_provider`."""

    source: Any
    reader_threads: int = 1
    capacity: int = 8
    drop_remainder: bool = False


def read_provider(
    provider: Any, *, reader_threads: int = 1, capacity: int = 8, drop_remainder: bool = False
) -> Provider:
    """Sets how a provider (`batch_size` and `get_batch_data()`) is read in the background.

    You can also pass a provider itself as `data`; it is then read with the default options.

    Args:
        provider: An object with `batch_size` and `get_batch_data()`.
        reader_threads: How many threads call `get_batch_data`. With more than one, it must be
            thread-safe. The first thread that meets the end of a pass ends it. Batches that the
            other threads are still reading count to this pass, even if the provider has already
            begun the next one for them.
        capacity: How many batches are kept ready.
        drop_remainder: Whether to skip batches smaller than `batch_size`.

    Returns:
        An object that `fit`, `evaluate` and `predict` take as `data`.

    Example:
        >>> import kerasdist
        >>> class Squares:
        ...     batch_size = 2
        ...     left = 3
        ...     def get_batch_data(self):
        ...         if self.left == 0:
        ...             self.left = 3
        ...             return None
        ...         self.left -= 1
        ...         return [[1.0], [2.0]], [[1.0], [4.0]]
        >>> data = kerasdist.read_provider(Squares(), capacity=2)
        >>> data.capacity
        2
    """
    for name, value in (("reader_threads", reader_threads), ("capacity", capacity)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise KerasdistError(
                f"Received `{name}={value!r}`. Expected a whole number of at least 1. Pass for "
                f"example `{name}=1`."
            )
    return Provider(provider, reader_threads, capacity, drop_remainder)


class ProviderStream(PythonStream):
    """The batches of a provider."""

    def __init__(self, provider: Provider, name: str):
        source = provider.source
        size = _checked_size(source, name)

        def read() -> Batch:
            while True:
                batch = source.get_batch_data()
                if batch is None or not provider.drop_remainder:
                    return batch
                arrays = as_arrays(batch, f"a batch of `{name}`")
                if count_examples(arrays, f"a batch of `{name}`") >= size:
                    return arrays

        super().__init__(
            read=read,
            num_threads=provider.reader_threads,
            capacity=provider.capacity,
            name=name,
        )
        self.batch_size = size


def _checked_size(source: Any, name: str) -> int:
    """The batch size of a provider. Raises if the object is not a provider."""
    kind = source.__name__ if isinstance(source, type) else type(source).__name__
    if isinstance(source, type):
        raise KerasdistError(
            f"Received `{name}`, the class {kind!r}. Expected an object of this class. Pass "
            f"`{kind}(...)`."
        )
    if not hasattr(source, "get_batch_data") or getattr(source, "batch_size", None) is None:
        missing = "batch_size" if hasattr(source, "get_batch_data") else "get_batch_data"
        raise KerasdistError(
            f"Received `{name}`, the provider {kind!r} without `{missing}`. Expected the "
            f"attributes `batch_size` and `get_batch_data`. Add `{missing}`."
        )
    check_batch_size(source.batch_size, f"the number of examples that {kind!r} returns per call")
    return int(source.batch_size)
