"""Reads arrays from untrusted `.keras` and HDF5 files.

Such a file can name code to run and other files to read. So kerasdist acts on no configuration,
refuses one that names code, and refuses a file that holds anything but arrays as Keras writes them.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.foreign_code import first_foreign
from kerasdist.runs.compilation import split
from kerasdist.runs.file_names import BEST, FINAL
from kerasdist.runs.trained_model import CONFIG_MEMBER, WEIGHTS_MEMBER

MOST_CONFIG_BYTES = 64 << 20
SLACK_BYTES = 64 << 20
# The largest models have some ten thousand variables.
MOST_OBJECTS = 100_000

BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)
# How Keras writes bfloat16, which HDF5 does not have. The attribute that says so is not read:
# HDF5 1.14.6 hangs on a broken one.
OPAQUE = np.dtype("V2")
PLAIN_LAYOUTS = (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT)
PLAIN_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Stored:
    """An array in a file, not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def num_bytes(self) -> int:
        """The size of the array."""
        # Not NumPy's product, which overflows for a forged shape.
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """The kind of its numbers, as in `np.dtype.kind`."""
        return "f" if self.dtype == BFLOAT16 else self.dtype.kind

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"


def read_arrays(
    path: str | os.PathLike[str], modules: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Reads the arrays of a `.keras` or `.weights.h5` file, or of a run, by their names in it.

    The names are those of Keras's file layout, such as `layers/dense_1/vars/0`: the place of a
    layer in the model, not its `name`. The optimizer's state is included.

    Example:
        >>> import keras
        >>> from kerasdist.model_files.stored_arrays import read_arrays
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> model.save_weights("line.weights.h5")
        >>> {name: array.shape for name, array in read_arrays("line.weights.h5").items()}
        {'layers/dense/vars/0': (3, 2), 'layers/dense/vars/1': (2,)}
    """
    with opened(path, modules=modules) as (file, found), reading(repr(str(file))):
        return {name: array.read() for name, array in found.items()}


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str], most_bytes: int | None = None, modules: Collection[str] = ()
) -> Iterator[tuple[Path, dict[str, Stored]]]:
    """Opens the file that `path` stands for, and gives the file and its arrays, not read yet.

    The configuration of a .keras file may name only classes of Keras and of `modules`.
    """
    with contextlib.ExitStack() as stack:
        with reading(repr(str(path))):
            file = _find(Path(path).expanduser())
        with reading(repr(str(file))):
            content = _member(file, most_bytes, modules) if file.suffix == ".keras" else file
            found = arrays_of(stack.enter_context(h5py.File(content, "r")))
        yield file, found


def _find(path: Path) -> Path:
    """The file of weights for a path, which may be a run's folder."""
    if path.is_dir():
        for name in (BEST, FINAL):
            if (path / name).is_file():
                return path / name
        raise KerasdistError(
            f"The folder {str(path)!r} has neither {BEST} nor {FINAL}. Expected the folder of a "
            "run with a trained model. Give such a folder, or a file."
        )
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise KerasdistError(
            f"{str(path)!r} {what}. Expected the folder of a run, or a .keras or .weights.h5 file. "
            "Check the name."
        )
    if path.name.endswith(".weights.json"):
        raise KerasdistError(
            f"{str(path)!r} is the index of weights in several files. Expected a single file. "
            "Save the weights again, without `max_shard_size`."
        )
    if path.suffix not in (".keras", ".h5"):
        raise KerasdistError(
            f"{str(path)!r} ends in {path.suffix!r}. Expected the folder of a run, or a .keras or "
            ".weights.h5 file. Save the model with `model.save` or `model.save_weights`."
        )
    return path


def _member(path: Path, most_bytes: int | None, modules: Collection[str]) -> io.BytesIO:
    """The weights in a .keras file, in memory: nothing is unpacked to the disk."""
    if most_bytes is None:
        most_bytes = 4 * path.stat().st_size + SLACK_BYTES
    with zipfile.ZipFile(path) as archive:
        _refuse_code(archive, modules)
        members = [info for info in archive.infolist() if info.filename == WEIGHTS_MEMBER]
        if len(members) != 1:
            raise _Refused(f"it has {len(members) or 'no'} members {WEIGHTS_MEMBER!r}")
        # Other compression methods can allocate gigabytes before the first byte comes out.
        if members[0].compress_type not in PLAIN_METHODS:
            raise _Refused(f"its {WEIGHTS_MEMBER!r} is compressed in an unusual way")
        if members[0].file_size > most_bytes:
            raise KerasdistError(
                f"The weights in {str(path)!r} have {members[0].file_size:,} bytes. Expected at "
                f"most {most_bytes:,}. Use the file of a model of similar size. If you trust this "
                f"file, unpack its {WEIGHTS_MEMBER} and use that."
            )
        with archive.open(members[0]) as member:
            # The size above may be forged, which zipfile notices only after unpacking.
            content = member.read(most_bytes)
    return io.BytesIO(content)


def _refuse_code(archive: zipfile.ZipFile, modules: Collection[str]) -> None:
    """Refuses a configuration that names code. Nothing else of a configuration is used."""
    for info in archive.infolist():
        if info.filename != CONFIG_MEMBER:
            continue
        if info.compress_type not in PLAIN_METHODS or info.file_size > MOST_CONFIG_BYTES:
            raise _Refused(f"its {CONFIG_MEMBER!r} is larger or packed differently than Keras's")
        with archive.open(info) as member:
            config = json.loads(member.read(MOST_CONFIG_BYTES))
        layers, _ = split(config)  # Weights need no loss.
        foreign = first_foreign(layers, modules)
        if foreign is not None:
            raise _Refused(f"its configuration names {foreign}; no code was run")


def arrays_of(file: h5py.File) -> dict[str, Stored]:
    """Finds all arrays of a file without reading them. Refuses a file with anything else."""
    if "layer_names" in file.attrs or "model_config" in file.attrs:
        raise _Refused("it has the layout of Keras 2, in which a file of weights could hold code")
    found: dict[str, Stored] = {}
    seen = {h5py.h5o.get_info(file.id).addr}
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    while groups:
        prefix, group = groups.pop()
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(key, str) or "/" in key:  # Bytes are not text.
                raise _Refused(f"{shown(name)} is not a name that Keras gives")
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise _Refused(f"{shown(name)} leads to another place or file")
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                raise _Refused(f"{shown(name)} is a second name for something")
            seen.add(address)
            if len(seen) > MOST_OBJECTS:
                raise _Refused(f"it holds more than {MOST_OBJECTS:,} objects")
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            else:
                found[name] = _stored(name, item)
    num_bytes = sum(array.num_bytes for array in found.values())
    if num_bytes > file.id.get_filesize():
        raise _Refused(f"its arrays have {num_bytes:,} bytes, more than the file")
    return dict(sorted(found.items()))


def _stored(name: str, item: h5py.HLObject) -> Stored:
    """An array that is stored plainly, so that its shape really says how much there is to read."""
    if not isinstance(item, h5py.Dataset):
        raise _Refused(f"{shown(name)} is a {type(item).__name__}")
    creation = item.id.get_create_plist()
    if creation.get_external_count():
        raise _Refused(f"the data of {shown(name)} is in another file")
    # A chunk can unpack to any size, whatever the shape says. A virtual array is in other files.
    if creation.get_layout() not in PLAIN_LAYOUTS:
        raise _Refused(f"{shown(name)} is chunked, compressed or virtual")
    dtype = item.dtype
    if dtype == OPAQUE:
        dtype = BFLOAT16
    elif dtype.kind not in "biufc" or item.shape is None:
        raise _Refused(f"{shown(name)} holds {shown(str(dtype))}, not numbers")
    array = Stored(item.shape, dtype, lambda: np.asarray(item[()]).view(dtype))
    if item.id.get_storage_size() != array.num_bytes:
        raise _Refused(f"{shown(name)} is not stored completely")
    return array


class _Refused(Exception):
    """Why a file is refused. `reading` adds which file it is."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns any error about a broken or refused file into a `KerasdistError` about `what`."""
    cause: Exception | None
    try:
        yield
        return
    except KerasdistError:
        raise
    except _Refused as error:
        reason, cause = str(error), None
    except Exception as error:  # noqa: BLE001 - h5py and zipfile raise many types of errors for a broken file
        message = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        # h5py's messages can quote the file.
        reason, cause = f"it is broken ({shown(message)[1:-1]})", error
    raise KerasdistError(
        f"The weights of {what} cannot be read: {reason}. Expected nothing but arrays, as Keras "
        "writes them. Save the weights again with `model.save_weights`, and do not use a file of "
        "unknown origin."
    ) from cause


def shown(name: str) -> str:
    """A name from an untrusted file, without control characters and not too long."""
    return ascii(name if len(name) <= 100 else f"{name[:100]}...")
