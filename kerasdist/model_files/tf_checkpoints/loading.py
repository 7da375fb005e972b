"""Loads the weights of a TensorFlow 1 or 2 checkpoint into a model, and says what it loaded."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.model_files.tf_checkpoints.contents import Contents, Entry, contents_of
from kerasdist.model_files.tf_checkpoints.files import listed, open_checkpoint
from kerasdist.model_files.tf_checkpoints.mapping import MapLike, read_map, resolve, write_draft
from kerasdist.model_files.tf_checkpoints.matching import Matches, match
from kerasdist.model_files.tf_checkpoints.names import Names, Weight, weights_of
from kerasdist.models import pure

NUM_LISTED = 20


@dataclass(frozen=True)
class ImportReport:
    """What was loaded from a TensorFlow checkpoint.

    Attributes:
        path: What the names of the checkpoint's files begin with.
        version: The TensorFlow that wrote it, 1 or 2.
        loaded: The name in the checkpoint of each weight that was loaded, by the weight's name.
        by_shape: The weights that were matched by their shape alone.
        averaged: The weights whose moving averages were loaded.
        missing: Weights that the checkpoint does not have. They are unchanged.
        unused: Arrays of the checkpoint that the model does not have.
        mismatched: Weights of another shape, as `(name, name and shape in the checkpoint, shape)`.
        left_out: The names of arrays that are not weights, by what they are.
        num_averages: How many weights of the checkpoint have a moving average.
    """

    path: str
    version: int
    loaded: dict[str, str]
    by_shape: tuple[str, ...]
    averaged: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    mismatched: tuple[tuple[str, str, str], ...]
    left_out: dict[str, list[str]]
    num_averages: int

    @property
    def complete(self) -> bool:
        """Whether the model has a value for each weight from the checkpoint, and none is unused."""
        return not (self.missing or self.unused or self.mismatched)

    def summary(self) -> str:
        """What was loaded from where, and a line for each kind of what was not."""
        total = len(self.loaded) + len(self.missing) + len(self.mismatched)
        lines = [
            f"loaded {len(self.loaded)} of the model's {total} weights from {self.path} "
            f"(TensorFlow {self.version})",
            *self._pairs(),
        ]
        if self.averaged:
            lines.append(f"moving averages were taken for {len(self.averaged)} of them")
        elif self.num_averages:
            lines.append(
                f"it also has moving averages of {self.num_averages} weights, which were not taken "
                "(`init_averages`)"
            )
        if self.by_shape:
            lines.append(f"matched by shape, not by name: {listed(self.by_shape)}")
        if self.missing:
            lines.append(f"not in the checkpoint, unchanged: {listed(self.missing)}")
        if self.mismatched:
            pairs = [f"{name} is {b}, not {a}" for name, a, b in self.mismatched]
            lines.append(f"of another shape, unchanged: {listed(pairs)}")
        if self.unused:
            lines.append(f"not in the model: {listed(self.unused)}")
        for kind, names in self.left_out.items():
            lines.append(f"left out, {kind}: {listed(names, 4)}")
        return "\n  ".join(lines)

    def _pairs(self) -> list[str]:
        shown = list(itertools.islice(self.loaded.items(), NUM_LISTED))
        width = max((len(name) for name, _ in shown), default=0)
        lines = [f"  {name:{width}} <- {source}" for name, source in shown]
        more = len(self.loaded) - len(shown)
        return [*lines, f"  and {more:,} more"] if more else lines


def load_checkpoint(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    init_map: MapLike | None = None,
    averages: bool = False,
) -> ImportReport:
    """Loads the weights of a TensorFlow checkpoint into a built model.

    If an error is raised, the whole model stays as it is.

    Args:
        model: A built model.
        path: What the checkpoint's files begin with, its `.index` file, a folder with a file
            `checkpoint`, or a SavedModel.
        init_map: The names in the checkpoint of weights or layers that are called differently.
        averages: Whether to load moving averages where the checkpoint has them.
    """
    mapping = read_map(init_map)
    contents = contents_of(open_checkpoint(path))
    if averages and not contents.averages:
        raise KerasdistError(
            f"Received `init_averages=True`, but the checkpoint {contents.opened.prefix!r} has no "
            "moving averages. Expected names that end in /ExponentialMovingAverage. Remove "
            "`init_averages`."
        )
    places = pure.places(model)
    names = Names(places, contents.entries)
    weights = weights_of(places, names)
    mapped, left_alone = resolve(mapping, weights, contents.entries, names)
    found = match(weights, contents.entries, names, mapped=mapped, left_alone=left_alone)
    _refuse_transposed(found, contents)
    _refuse_unclear(found, contents, model)
    values = [_value(weight, entry, contents, averages) for weight, entry in found.pairs]
    for (weight, _), value in zip(found.pairs, values, strict=True):
        weight.variable.assign(value)
    return _report(found, contents, weights, averages)


def _value(weight: Weight, entry: Entry, contents: Contents, averages: bool) -> np.ndarray:
    key = contents.averages.get(entry.key, entry.key) if averages else entry.key
    value = np.asarray(contents.opened.read(key))
    wanted = np.dtype(weight.variable.numpy().dtype)
    kinds = {kind.replace("V", "f") for kind in (value.dtype.kind, wanted.kind)}  # V: bfloat16.
    if value.shape != weight.shape or len(kinds) > 1:
        raise KerasdistError(
            f"{key!r} in the checkpoint {contents.opened.prefix!r} is {value.dtype.name} "
            f"{value.shape}, and {weight.name!r} is {wanted.name} {weight.shape}. Expected the "
            "same shape and kind of numbers. Leave the weight out: map it to null with `init_map`."
        )
    return value.astype(wanted)


def _refuse_transposed(found: Matches, contents: Contents) -> None:
    transposed = [
        f"{entry.name} {entry.shape} for {weight.name} {weight.shape}"
        for weight, entry in found.mismatched
        if sorted(weight.shape) == sorted(entry.shape)
    ]
    if transposed:
        raise KerasdistError(
            f"The checkpoint {contents.opened.prefix!r} has arrays that fit only transposed: "
            f"{listed(transposed)}. Expected the layout of Keras: (height, width, in, out) for a "
            "convolution, (in, out) for a dense layer. Write a checkpoint with transposed arrays, "
            "or leave the weights out: map them to null with `init_map`."
        )


def _refuse_unclear(found: Matches, contents: Contents, model: keras.Model) -> None:
    if found.pairs and not found.ambiguous:
        return
    where = f"the checkpoint {contents.opened.prefix!r}"
    fix = f"{write_draft(found)}pass the file as `init_map` (`--init-map`)."
    if found.ambiguous:
        lines = [
            f"{weight.name} {weight.shape}: {' or '.join(e.name for e in some[:4])}"
            f"{' or others' if len(some) > 4 else ''}?"
            for weight, some in found.ambiguous[:NUM_LISTED]
        ]
        more = len(found.ambiguous) - len(lines)
        lines += [f"and {more:,} more"] if more else []
        raise KerasdistError(
            f"It is not clear which arrays of {where} belong to {len(found.ambiguous)} weights. "
            f"Expected the same names, or shapes that occur once. {fix}\n  " + "\n  ".join(lines)
        )
    raise KerasdistError(
        f"Nothing in {where} fits the model {type(model).__name__!r}. Expected at least one array "
        f"of the same name or shape. {fix}\n  in the checkpoint: {_shown(contents.entries)}\n  "
        f"in the model: {_shown(found.missing)}"
    )


def _shown(items: Sequence[Weight | Entry]) -> str:
    return listed([f"{item.name} {item.shape}" for item in items]) or "nothing"


def _report(
    found: Matches, contents: Contents, weights: Sequence[Weight], averages: bool
) -> ImportReport:
    order = {id(weight): i for i, weight in enumerate(weights)}
    pairs = sorted(found.pairs, key=lambda pair: order[id(pair[0])])
    return ImportReport(
        path=contents.opened.prefix,
        version=2 if contents.is_object_based else 1,
        loaded={weight.name: entry.name for weight, entry in pairs},
        by_shape=tuple(weight.name for weight, _ in found.by_shape),
        averaged=tuple(w.name for w, e in pairs if averages and e.key in contents.averages),
        missing=tuple(weight.name for weight in found.missing),
        unused=tuple(entry.name for entry in found.unused),
        mismatched=tuple(
            (w.name, f"{e.name} {e.shape}", str(w.shape)) for w, e in found.mismatched
        ),
        left_out=contents.left_out,
        num_averages=len(contents.averages),
    )
