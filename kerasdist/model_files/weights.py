"""Weights from a file into a model: by name and shape, with a report of what matched."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import keras

from kerasdist.errors import KerasdistError
from kerasdist.model_files.stored_arrays import (
    BFLOAT16,
    OPAQUE,
    SLACK_BYTES,
    Stored,
    arrays_of,
    opened,
    reading,
    shown,
)
from kerasdist.models.pure import all_layers

# A file may hold an optimizer's state too: at most about four times the weights.
MOST_COPIES = 8
NUM_LISTED = 10


@dataclass(frozen=True)
class Report:
    """Which arrays of a model were loaded, and which were not.

    Attributes:
        loaded: Names of the arrays that the model has now from the file.
        missing: Those of the model that the file does not have; they are as they were.
        unexpected: Those of the file that the model does not have, the optimizer's left out.
        mismatched: `(name, in the file, in the model)`, such as `("layers/dense/vars/0",
            "float32 (4, 3)", "float32 (4, 2)")`; they are as they were.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, str, str], ...]

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def summary(self) -> str:
        """A line with the counts, and one for each kind of array that was not loaded."""
        wanted = len(self.loaded) + len(self.missing) + len(self.mismatched)
        lines = [f"loaded {len(self.loaded)} of the model's {wanted} arrays"]
        if self.missing:
            lines.append(f"not in the file: {_listed(self.missing)}")
        if self.unexpected:
            lines.append(f"not in the model: {_listed(self.unexpected)}")
        if self.mismatched:
            pairs = [f"{shown(name)} is {a}, not {b}" for name, a, b in self.mismatched]
            lines.append(f"of another shape or type: {_joined(pairs)}")
        return "\n  ".join(lines)


def load_into(model: keras.Model, path: str | os.PathLike, *, strict: bool) -> Report:
    """Loads the weights of a file into a built model, by name and shape; runs no code of the file.

    The optimizer's state and the seed generators' stay as they are. On an error the model does.

    Args:
        model: A model that is built.
        path: A `.keras` or `.weights.h5` file, or the folder of a run.
        strict: Whether file and model must have the same arrays. Otherwise those that match are
            loaded, at least one.

    Example:
        >>> import keras
        >>> from kerasdist.model_files.weights import load_into
        >>> small = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> large = keras.Sequential([keras.Input((3,)), *small.layers, keras.layers.Dense(1)])
        >>> small.save_weights("small.weights.h5")
        >>> print(load_into(large, "small.weights.h5", strict=False).summary())
        loaded 2 of the model's 4 arrays
          not in the file: 'layers/dense_1/vars/0', 'layers/dense_1/vars/1'
    """
    if not model.built:
        raise KerasdistError(
            f"Received the model {type(model).__name__!r}, which is not built: it has no weights "
            "yet. Expected a built model. Call it once on a batch, or use `model.build`."
        )
    # Only a walk through Keras's private names knows which array belongs to which variable. So
    # Keras lists them itself: the model's own weights are saved, replaced and loaded.
    with _private_folder() as folder:
        draft = os.path.join(folder, "draft.weights.h5")
        model.save_weights(draft)
        with h5py.File(draft, "r+") as file:
            report = _replace(file, model, path, strict)
        model.load_weights(draft)
    return report


def _replace(draft: h5py.File, model: keras.Model, path: str | os.PathLike, strict: bool) -> Report:
    """Writes what matches of the file at `path` over the model's own arrays."""
    optimizers = _optimizer_attributes(model)
    with reading(f"the model {type(model).__name__!r}"):
        own = arrays_of(draft)
    wanted = {name: array for name, array in own.items() if not _inside(name, optimizers)}
    num_bytes = sum(array.num_bytes for array in wanted.values())
    most_bytes = MOST_COPIES * num_bytes + SLACK_BYTES
    with opened(path, most_bytes, _modules(model)) as (file, found):
        # "optimizer": the file's model may have been compiled where this one was not.
        report = _compare(wanted, found, optimizers | {"optimizer"})
        _check(report, model, file, strict)
        for name in report.loaded:
            with reading(repr(str(file))):
                array = found[name].read().astype(wanted[name].dtype)
            draft[name][...] = array.view(OPAQUE) if array.dtype == BFLOAT16 else array
    return report


def _compare(
    wanted: Mapping[str, Stored], found: Mapping[str, Stored], optimizers: set[str]
) -> Report:
    shared = [name for name in wanted if name in found]
    fits = {
        name: (found[name].shape, found[name].kind) == (wanted[name].shape, wanted[name].kind)
        for name in shared
    }
    return Report(
        loaded=tuple(name for name in shared if fits[name]),
        missing=tuple(name for name in wanted if name not in found),
        unexpected=tuple(
            name for name in found if name not in wanted and not _inside(name, optimizers)
        ),
        mismatched=tuple(
            (name, str(found[name]), str(wanted[name])) for name in shared if not fits[name]
        ),
    )


def _check(report: Report, model: keras.Model, file: Path, strict: bool) -> None:
    kind = type(model).__name__
    if strict and not report.complete:
        raise KerasdistError(
            f"Received {str(file)!r}, which does not fit the model {kind!r}. Expected the same "
            "arrays in both. Build the model as it was when it was saved, or start a new training "
            f"with `init_from`, which takes what matches.\n  {report.summary()}"
        )
    if not strict and not report.loaded:
        raise KerasdistError(
            f"Received {str(file)!r}, of which nothing fits the model {kind!r}. Expected at least "
            "one array of the same name, shape and type. Name the file of a similar model.\n  "
            f"{report.summary()}"
        )


def _modules(model: keras.Model) -> set[str]:
    """Where the classes of the model come from: a file of such a model names them, too."""
    compiled = [getattr(model, name, None) for name in ("optimizer", "loss")]
    parts = [*all_layers(model), *compiled, *model.metrics]
    kinds = [part if callable(part) and hasattr(part, "__name__") else type(part) for part in parts]
    return {"__main__", *(str(kind.__module__).split(".")[0] for kind in kinds)} - {"builtins"}


def _optimizer_attributes(model: keras.Model) -> set[str]:
    """Names under which the model and those inside it hold optimizers: their state is no weight."""
    return {
        name
        for layer in all_layers(model)
        for name, value in vars(layer).items()
        if isinstance(value, keras.optimizers.Optimizer)
    }


def _inside(name: str, groups: set[str]) -> bool:
    return not groups.isdisjoint(name.split("/")[:-1])


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    try:
        with tempfile.TemporaryDirectory(prefix="kerasdist-") as folder:
            yield folder
    except OSError as error:
        raise KerasdistError(
            f"Received the temporary folder {tempfile.gettempdir()!r}, which cannot be written: "
            f"{error}. Expected room for the model's weights. Set TMPDIR to another folder."
        ) from error


def _listed(names: Iterable[str]) -> str:
    return _joined([shown(name) for name in names])


def _joined(texts: list[str]) -> str:
    more = [f"and {len(texts) - NUM_LISTED:,} more"] if len(texts) > NUM_LISTED else []
    return ", ".join(texts[:NUM_LISTED] + more)
