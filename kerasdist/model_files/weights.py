"""Loads the weights of a file into a model, by name and shape, and reports what matched."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import keras
import numpy as np

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
from kerasdist.models import pure

# A file may also hold the optimizer's state: at most about four times the weights.
MOST_COPIES = 8
NUM_LISTED = 10


@dataclass(frozen=True)
class Report:
    """Which arrays of a model were loaded, and which were not.

    Attributes:
        loaded: Names of the arrays that were loaded from the file.
        missing: Arrays of the model that the file does not have. They are unchanged.
        unexpected: Arrays of the file that the model does not have, without the optimizer's.
        mismatched: Arrays of another shape or type, as `(name, in the file, in the model)`, such as
            `("layers/dense/vars/0", "float32 (4, 3)", "float32 (4, 2)")`. They are unchanged.
        file: The file of a run that they come from, such as "best.keras"; "" for other files.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, str, str], ...]
    file: str = ""

    @property
    def complete(self) -> bool:
        """Whether the file and the model have exactly the same arrays."""
        return not (self.missing or self.unexpected or self.mismatched)

    def summary(self) -> str:
        """A line with the counts, and a line for each kind of array that was not loaded."""
        wanted = len(self.loaded) + len(self.missing) + len(self.mismatched)
        place = f" from {self.file}" if self.file else ""
        lines = [f"loaded {len(self.loaded)} of the model's {wanted} arrays{place}"]
        if self.missing:
            lines.append(f"not in the file: {_listed(self.missing)}")
        if self.unexpected:
            lines.append(f"not in the model: {_listed(self.unexpected)}")
        if self.mismatched:
            pairs = [f"{shown(name)} is {a}, not {b}" for name, a, b in self.mismatched]
            lines.append(f"of another shape or type: {_joined(pairs)}")
        return "\n  ".join(lines)


def load_into(
    model: keras.Model, path: str | os.PathLike[str], *, strict: bool, inside: bool = False
) -> Report:
    """Loads the weights of a file into a built model, by name and shape. Runs no code of the file.

    The state of the optimizer and of seed generators stays as it is. If an error is raised, the
    whole model stays as it is.

    Args:
        model: A built model.
        path: A `.keras` or `.weights.h5` file, or the folder of a run.
        strict: Whether the file and the model must have the same arrays. Otherwise the arrays that
            match are loaded; there must be at least one. If there is none, but exactly one
            part of the model in the file has all arrays of this model, these are loaded.
        inside: Whether the model may be a part of the model in the file.

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
    if not pure.has_weights(model):
        raise KerasdistError(
            f"The model {type(model).__name__!r} is not built: it has no weights yet. Expected a "
            "built model. Call it once on a batch, or use `model.build`."
        )
    # Only Keras's private code knows which array belongs to which variable. So Keras saves the
    # model's weights to a draft, the arrays in the draft are replaced, and Keras loads it again.
    with _private_folder() as folder, pure.as_built(model):
        draft = os.path.join(folder, "draft.weights.h5")
        model.save_weights(draft)
        with h5py.File(draft, "r+") as file:
            report = _replace(file, model, path, strict, inside)
        adapters = _adapters(model)
        model.load_weights(draft)
        for variable, value in adapters:
            variable.assign(value)
    return report


def _adapters(model: keras.Model) -> list[tuple[keras.Variable, np.ndarray]]:
    """The first matrix of each pair of LoRA. Keras's loading sets both to 0, and 0 never trains."""
    layers = [layer for layer in pure.all_layers(model) if getattr(layer, "lora_enabled", False)]
    found = [v for layer in layers for v in layer.weights if re.fullmatch(r"lora_\w+_a", v.name)]
    return [(v, v.numpy()) for v in found]


def _replace(
    draft: h5py.File, model: keras.Model, path: str | os.PathLike[str], strict: bool, inside: bool
) -> Report:
    """Overwrites arrays of the draft with the arrays of the file at `path` that match."""
    optimizers = _optimizer_attributes(model)
    with reading(f"the model {type(model).__name__!r}"):
        own = arrays_of(draft)
    wanted = {name: array for name, array in own.items() if not _inside(name, optimizers)}
    num_bytes = sum(array.num_bytes for array in wanted.values())
    most_bytes = MOST_COPIES * num_bytes + SLACK_BYTES
    with opened(path, most_bytes, modules_of(model)) as (file, found):
        found = _without_compilation(model, found)
        if inside:
            found = _part(wanted, found)
        # "optimizer": the file's model may have been compiled, even if this one is not.
        report = _compare(wanted, found, optimizers | {"optimizer"})
        if strict:
            _check_complete(report, model, file)
        elif not report.loaded:
            part = _only_part(wanted, found)
            if part is None:
                raise _nothing_fits(report, model, file, found)
            report, found = _compare(wanted, part, optimizers | {"optimizer"}), part
        for name in report.loaded:
            with reading(repr(str(file))):
                array = found[name].read().astype(wanted[name].dtype)
            draft[name][...] = array.view(OPAQUE) if array.dtype == BFLOAT16 else array
    is_of_run = Path(path).expanduser().is_dir()
    return dataclasses.replace(report, file=Path(file).name if is_of_run else "")


def _without_compilation(model: keras.Model, found: Mapping[str, Stored]) -> dict[str, Stored]:
    """A file without what a `compile` of the model's own adds, such as two optimizers of a GAN.

    A rebuilt model is not compiled, so it does not have these attributes.
    """
    if model.compiled or not pure.overrides(model, "compile"):
        return dict(found)
    return {name: a for name, a in found.items() if hasattr(model, name.split("/")[0])}


def _part(wanted: Mapping[str, Stored], found: Mapping[str, Stored]) -> dict[str, Stored]:
    """The arrays of the part of a file that has most of the wanted ones."""

    def num_fitting(prefix: str) -> int:
        names = [name for name in wanted if f"{prefix}{name}" in found]
        return sum(found[f"{prefix}{name}"].shape == wanted[name].shape for name in names)

    return _below(max(sorted({"", *_prefixes(wanted, found)}), key=num_fitting), found)


def _only_part(
    wanted: Mapping[str, Stored], found: Mapping[str, Stored]
) -> dict[str, Stored] | None:
    """The part of a file that has all wanted arrays; None if several parts have them, or none."""
    parts = [_below(prefix, found) for prefix in _prefixes(wanted, found)]
    whole = [part for part in parts if len(_compare(wanted, part, set()).loaded) == len(wanted)]
    return whole[0] if len(whole) == 1 else None


def _prefixes(wanted: Mapping[str, Stored], found: Mapping[str, Stored]) -> set[str]:
    """The parts of a file that have an array with the name of the first wanted one."""
    first = next(iter(wanted), "")
    return {name.removesuffix(first) for name in found if name.endswith(f"/{first}")}


def _below(prefix: str, found: Mapping[str, Stored]) -> dict[str, Stored]:
    return {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}


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


def _check_complete(report: Report, model: keras.Model, file: Path) -> None:
    if not report.complete:
        raise KerasdistError(
            f"{str(file)!r} does not fit the model {type(model).__name__!r}. Expected the same "
            "arrays in both. Build the model as it was when it was saved, or start a new training "
            f"with `init_from`, which loads what matches.\n  {report.summary()}"
        )


def _nothing_fits(
    report: Report, model: keras.Model, file: Path, found: Mapping[str, Stored]
) -> KerasdistError:
    layer = _layer_that_fits(model, "model", found)
    fix = (
        f"However, it fits a layer: `kerasdist.load_weights({layer}, {str(file)!r})`."
        if layer
        else "Use the file of a similar model."
    )
    return KerasdistError(
        f"Nothing in {str(file)!r} fits the model {type(model).__name__!r}. Expected at least one "
        f"array of the same name, shape and type. {fix}\n  {report.summary()}"
    )


def _layer_that_fits(model: keras.Model, code: str, found: Mapping[str, Stored]) -> str | None:
    """Code for the layer that has all its arrays in a file, if a layer is a model of its own."""
    for layer in model.layers:
        if not (isinstance(layer, keras.Model) and layer.weights and pure.has_weights(layer)):
            continue
        own = f"{code}.get_layer({layer.name!r})"
        with _private_folder() as folder, pure.as_built(layer):
            draft = os.path.join(folder, "layer.weights.h5")
            layer.save_weights(draft)
            with h5py.File(draft, "r") as file:
                wanted = arrays_of(file)
        report = _compare(wanted, found, _optimizer_attributes(layer))
        if not (report.missing or report.mismatched):
            return own
        deeper = _layer_that_fits(layer, own, found)
        if deeper is not None:
            return deeper
    return None


def modules_of(model: keras.Model) -> set[str]:
    """The top-level modules of the model's classes: a file of such a model may name them, too."""
    compiled = [getattr(model, name, None) for name in ("optimizer", "loss")]
    parts = [*pure.all_layers(model), *compiled, *model.metrics]
    kinds = [part if callable(part) and hasattr(part, "__name__") else type(part) for part in parts]
    return {"__main__", *(str(kind.__module__).split(".")[0] for kind in kinds)} - {"builtins"}


def _optimizer_attributes(model: keras.Model) -> set[str]:
    """Names of the attributes that hold optimizers, in the model and its layers.

    The state of an optimizer is not a weight of the model.
    """
    return {
        name
        for layer in pure.all_layers(model)
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
            f"The temporary folder {tempfile.gettempdir()!r} cannot be written: {error}. Expected "
            "room for the model's weights. Set TMPDIR to another folder."
        ) from error


def _listed(names: Iterable[str]) -> str:
    return _joined([shown(name) for name in names])


def _joined(texts: list[str]) -> str:
    more = [f"and {len(texts) - NUM_LISTED:,} more"] if len(texts) > NUM_LISTED else []
    return ", ".join(texts[:NUM_LISTED] + more)
