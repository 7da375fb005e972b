"""Arrays of files that nobody vouches for.

A `.keras` or HDF5 file can name code to run and other files to read. So no configuration is acted
on, one that names code is refused, and so is a file that holds anything but arrays as Keras writes
them.
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
from kerasdist.runs import folder

BEST = "best.keras"
MEMBER = "model.weights.h5"
CONFIG_MEMBER = "config.json"
MOST_CONFIG_BYTES = 64 << 20
SLACK_BYTES = 64 << 20
# The largest models have some ten thousand variables.
MOST_OBJECTS = 100_000

BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)
# How Keras writes bfloat16, which HDF5 does not have. The attribute that says so is not looked at:
# HDF5 1.14.6 hangs on a broken one.
OPAQUE = np.dtype("V2")
PLAIN_LAYOUTS = (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT)
PLAIN_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Stored:
    """An array of a file that is not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def num_bytes(self) -> int:
        # Not numpy's product, which wraps around for a shape that somebody made up.
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> str:
        return "f" if self.dtype == BFLOAT16 else self.dtype.kind

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"


def read_arrays(path: str | os.PathLike, modules: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a `.keras` or `.weights.h5` file, or of a run, by their names in it.

    Names are those of Keras's own layout, such as `layers/dense_1/vars/0`: the place of a layer in
    the model, not its `name`. The state of an optimizer is among them.

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
    path: str | os.PathLike, most_bytes: int | None = None, modules: Collection[str] = ()
) -> Iterator[tuple[Path, dict[str, Stored]]]:
    """The file that `path` stands for, and its arrays, to be read while it is open.

    The configuration of a .keras file may name classes of Keras and of `modules` only.
    """
    with contextlib.ExitStack() as stack:
        with reading(repr(str(path))):
            file = _find(Path(path).expanduser())
        with reading(repr(str(file))):
            content = _member(file, most_bytes, modules) if file.suffix == ".keras" else file
            found = arrays_of(stack.enter_context(h5py.File(content, "r")))
        yield file, found


def _find(path: Path) -> Path:
    """The file of weights that a path stands for."""
    if path.is_dir():
        for name in (BEST, folder.FINAL):
            if (path / name).is_file():
                return path / name
        raise KerasdistError(
            f"Received the folder {str(path)!r}, which has neither {BEST} nor {folder.FINAL}. "
            "Expected the folder of a run with a trained model. Name such a run, or a file."
        )
    if not path.is_file():
        what = "is no regular file" if path.exists() else "does not exist"
        raise KerasdistError(
            f"Received {str(path)!r}, which {what}. Expected the folder of a run, a .keras or a "
            ".weights.h5 file. Check the name."
        )
    if path.name.endswith(".weights.json"):
        raise KerasdistError(
            f"Received {str(path)!r}, the index of weights in several files. Expected one file. "
            "Save the weights again, without `max_shard_size`."
        )
    if path.suffix not in (".keras", ".h5"):
        raise KerasdistError(
            f"Received {str(path)!r}, whose name ends with {path.suffix!r}. Expected the folder of "
            "a run, a .keras or a .weights.h5 file. Save the model with `model.save` or "
            "`model.save_weights`."
        )
    return path


def _member(path: Path, most_bytes: int | None, modules: Collection[str]) -> io.BytesIO:
    """The weights of a .keras file, in memory: nothing of the archive is written to the disk."""
    if most_bytes is None:
        most_bytes = 4 * path.stat().st_size + SLACK_BYTES
    with zipfile.ZipFile(path) as archive:
        _refuse_code(archive, modules)
        members = [info for info in archive.infolist() if info.filename == MEMBER]
        if len(members) != 1:
            raise _Refused(f"which has {len(members) or 'no'} members {MEMBER!r}")
        # Other methods can ask for gigabytes before the first byte comes out.
        if members[0].compress_type not in PLAIN_METHODS:
            raise _Refused(f"whose {MEMBER!r} is compressed in an unusual way")
        if members[0].file_size > most_bytes:
            raise KerasdistError(
                f"Received {str(path)!r}, whose weights have {members[0].file_size:,} bytes. "
                f"Expected at most {most_bytes:,}. Name the file of a model of similar size; or, "
                f"if you know where this one comes from, unpack its {MEMBER} and name that."
            )
        with archive.open(members[0]) as member:
            # The size above may be a lie, which zipfile finds out only after unpacking.
            content = member.read(most_bytes)
    return io.BytesIO(content)


def _refuse_code(archive: zipfile.ZipFile, modules: Collection[str]) -> None:
    """Nothing of a configuration is used. One with code in it says what kind of file this is."""
    for info in archive.infolist():
        if info.filename != CONFIG_MEMBER:
            continue
        if info.compress_type not in PLAIN_METHODS or info.file_size > MOST_CONFIG_BYTES:
            raise _Refused(f"whose {CONFIG_MEMBER!r} is larger or otherwise packed than Keras's")
        with archive.open(info) as member:
            config = json.loads(member.read(MOST_CONFIG_BYTES))
        foreign = first_foreign(config, modules)
        if foreign is not None:
            raise _Refused(f"whose configuration names {foreign}; nothing of it was run")


def arrays_of(file: h5py.File) -> dict[str, Stored]:
    """Every array of a file, in which there may be nothing else. None is read."""
    if "layer_names" in file.attrs or "model_config" in file.attrs:
        raise _Refused("which has the layout of Keras 2, where a file of weights could hold code")
    found: dict[str, Stored] = {}
    seen = {h5py.h5o.get_info(file.id).addr}
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    while groups:
        prefix, group = groups.pop()
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(key, str) or "/" in key:  # bytes: it is no text.
                raise _Refused(f"in which {shown(name)} is no name that Keras gives")
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise _Refused(f"in which {shown(name)} leads to another place or file")
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                raise _Refused(f"in which {shown(name)} is a second name of something")
            seen.add(address)
            if len(seen) > MOST_OBJECTS:
                raise _Refused(f"which holds more than {MOST_OBJECTS:,} objects")
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            else:
                found[name] = _stored(name, item)
    num_bytes = sum(array.num_bytes for array in found.values())
    if num_bytes > file.id.get_filesize():
        raise _Refused(f"whose arrays have {num_bytes:,} bytes, more than itself")
    return dict(sorted(found.items()))


def _stored(name: str, item: h5py.HLObject) -> Stored:
    """An array that lies in the file as it is; its shape says truly how much there is to read."""
    if not isinstance(item, h5py.Dataset):
        raise _Refused(f"in which {shown(name)} is a {type(item).__name__}")
    creation = item.id.get_create_plist()
    if creation.get_external_count():
        raise _Refused(f"in which the data of {shown(name)} is in another file")
    # A chunk can unpack to any size, whatever the shape says; a virtual array is in other files.
    if creation.get_layout() not in PLAIN_LAYOUTS:
        raise _Refused(f"in which {shown(name)} is chunked, compressed or virtual")
    dtype = item.dtype
    if dtype == OPAQUE:
        dtype = BFLOAT16
    elif dtype.kind not in "biufc" or item.shape is None:
        raise _Refused(f"in which {shown(name)} holds {shown(str(dtype))}, not numbers")
    array = Stored(item.shape, dtype, lambda: np.asarray(item[()]).view(dtype))
    if item.id.get_storage_size() != array.num_bytes:
        raise _Refused(f"in which {shown(name)} is not stored to its end")
    return array


class _Refused(Exception):
    """Why something is refused, until its name is known."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    cause: Exception | None
    try:
        yield
        return
    except KerasdistError:
        raise
    except _Refused as error:
        reason, cause = str(error), None
    except Exception as error:  # noqa: BLE001 - h5py and zipfile raise all sorts for a broken file
        message = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        # What h5py says can quote the file.
        reason, cause = f"which cannot be read: {shown(message)[1:-1]}", error
    raise KerasdistError(
        f"Received {what}, {reason}. Expected nothing but arrays, as Keras writes them. Save it "
        "again with `model.save_weights`, and do not use a file of unknown origin."
    ) from cause


def shown(name: str) -> str:
    """A name that a stranger chose: no control characters, not endless."""
    return ascii(name if len(name) <= 100 else f"{name[:100]}...")
