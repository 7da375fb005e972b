"""Data of other libraries: torch, grain and Hugging Face datasets. None of them is imported here.

They are known by the module of their class, so a program that does not use them does not load them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.data.batches import Batch
from kerasdist.data.forms.examples import ExampleStream
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.errors import KerasdistError


def is_from(data: Any, package: str, *names: str) -> bool:
    """Whether the class of `data`, or one that it derives from, has such a name in a package."""
    return any(
        kind.__name__ in names and kind.__module__.split(".")[0] == package
        for kind in type(data).__mro__
    )


def loader_stream(
    data: Any, batch_size: int | None, shuffle: bool, seed: int, name: str
) -> PythonStream | None:
    """The stream of data of another library; None for other data."""
    # Before torch: where torch is installed, this class derives from one of torch.
    if is_from(data, "datasets", "IterableDataset"):
        if batch_size is None:
            raise KerasdistError(
                f"Received `{name}`, an `IterableDataset` of Hugging Face, and no `batch_size`. "
                "Expected the number of examples per step, over all devices. Pass for example "
                "`batch_size=128`."
            )
        return LoaderStream(lambda: data.iter(batch_size), name, batch_size)
    if is_from(data, "torch", "DataLoader"):
        _refuse_batch_size(batch_size, name, "a torch `DataLoader`")
        return TorchLoaderStream(data, shuffle, seed, name)
    if is_from(data, "torch", "IterableDataset"):
        raise KerasdistError(
            f"Received `{name}`, a torch `IterableDataset`. Expected batches, or examples by "
            "index. Wrap it: `torch.utils.data.DataLoader(data, batch_size=32)`."
        )
    if is_from(data, "grain", "DataLoader"):
        _refuse_batch_size(batch_size, name, "a grain `DataLoader`")
        return LoaderStream(lambda: data, name)
    if is_from(data, "grain", "MapDataset"):
        return _map_dataset(data, batch_size, shuffle, seed, name)
    if is_from(data, "grain", "IterDataset"):
        batches = data if batch_size is None else data.batch(batch_size, drop_remainder=False)
        return LoaderStream(lambda: batches, name, batch_size)
    return None


def _refuse_batch_size(batch_size: int | None, name: str, what: str) -> None:
    if batch_size is not None:
        raise KerasdistError(
            f"Received `batch_size={batch_size}` with `{name}`, {what}, which already has "
            "batches. Expected the batch size in one place. Leave `batch_size` out."
        )


class LoaderStream(PythonStream):
    """The batches of an object that can be iterated over again, in its own order."""

    def __init__(
        self,
        open_batches: Callable[[], Iterable[Batch]],
        name: str,
        batch_size: int | None = None,
        begin_pass: Callable[[int], None] = lambda epoch: None,
    ):
        def make_batches(epoch: int, start: int) -> Iterator[Batch]:
            begin_pass(epoch)
            for batch in islice(iter(open_batches()), start, None):
                yield _as_numpy(batch)

        super().__init__(make_batches, name=name)
        self.batch_size = batch_size


class TorchLoaderStream(LoaderStream):
    """The batches of a torch `DataLoader`.

    While training, torch is seeded by (seed, epoch) before each pass, as every other shuffled form
    is: a run that is resumed reads the same batches.
    """

    def __init__(self, loader: Any, shuffle: bool, seed: int, name: str):
        has_length = hasattr(loader.dataset, "__len__")
        if has_length and len(loader) == 0:
            raise KerasdistError(
                f"Received `{name}`, a torch `DataLoader` with 0 batches. Expected at least one. "
                "Check its dataset."
            )

        def begin_pass(epoch: int) -> None:
            if not shuffle:
                return
            number = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
            sys.modules["torch"].manual_seed(number)
            for owner in (loader, getattr(loader, "sampler", None)):
                generator = getattr(owner, "generator", None)
                if generator is not None:
                    generator.manual_seed(number)

        super().__init__(lambda: loader, name, loader.batch_size, begin_pass)
        self.num_batches = len(loader) if has_length else None


def _map_dataset(
    data: Any, batch_size: int | None, shuffle: bool, seed: int, name: str
) -> PythonStream:
    is_endless = len(data) == sys.maxsize  # That is what grain says after `repeat()`.
    if batch_size is None:
        stream = LoaderStream(lambda: data, name)
        stream.is_endless = is_endless
        return stream
    if is_endless:
        raise KerasdistError(
            f"Received `{name}`, an endless grain `MapDataset` of examples. Expected a known "
            "number of examples: kerasdist starts the data again for each epoch. Leave out "
            "`repeat()`, or make batches with `batch(...)` and leave out `batch_size`."
        )
    return ExampleStream(_Found(data, name), batch_size, shuffle, seed, name)


class _Found:
    """The examples of a grain `MapDataset`. Refuses those that a filter has removed."""

    def __init__(self, data: Any, name: str):
        self._data, self._name = data, name

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        example = self._data[index]
        if example is None:
            raise KerasdistError(
                f"Received `{self._name}`, a grain `MapDataset` whose filter removed example "
                f"{index}. Expected an example at each index. Make batches after the filter: "
                "`data.to_iter_dataset().batch(...)`, and leave out `batch_size`."
            )
        return _as_numpy(example)


def _as_numpy(value: Any) -> Any:
    """Tensors of torch as arrays. NumPy has no bfloat16."""
    if isinstance(value, dict):
        return {key: _as_numpy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = (_as_numpy(item) for item in value)
        return list(items) if isinstance(value, list) else tuple(items)
    if is_from(value, "torch", "Tensor"):
        value = value.detach().cpu()
        return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)
    return value.numpy() if isinstance(value, tf.Tensor) else value
