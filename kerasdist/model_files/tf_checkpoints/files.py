"""Finds and opens checkpoints of TensorFlow 1 and 2, and says what is wrong with a broken one."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError

INDEX = ".index"
STATE = "checkpoint"
SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
# What people pass, and what belongs to the same checkpoint.
_SUFFIXES = re.compile(r"(\.index|\.meta|\.data-\d{5}-of-\d{5})$")
_KERAS = (".keras", ".h5", ".json")


@dataclass(frozen=True)
class Opened:
    """A checkpoint whose files are all there. The arrays are not read yet.

    Attributes:
        prefix: What the names of its files begin with, such as `runs/model.ckpt-1000`.
        shapes: The shape of each array, by its name in the file.
        dtypes: The type of each array.
    """

    prefix: str
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    _reader: Any

    def read(self, name: str) -> Any:
        """The value of an array."""
        try:
            return self._reader.get_tensor(name)
        except Exception as error:  # The reader raises TensorFlow's errors and plain ones.
            raise broken(self.prefix, f"{name!r} cannot be read: {_short(error)}") from error


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path means a TensorFlow checkpoint, and not a run or a file of Keras.

    Example:
        >>> from kerasdist.model_files.tf_checkpoints.files import is_checkpoint
        >>> is_checkpoint("model.keras"), is_checkpoint("model.ckpt-1000.index")
        (False, True)
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return any((path / name).is_file() for name in (STATE, *SAVED_MODEL, f"variables{INDEX}"))
    if path.suffix in _KERAS:
        return False
    if _SUFFIXES.search(path.name) or ".ckpt" in path.name:
        return True
    return path.with_name(path.name + INDEX).is_file() or bool(_shards(path))


def open_checkpoint(path: str | os.PathLike[str]) -> Opened:
    """Opens the checkpoint that `path` stands for, after checking that all its files are there."""
    prefix = _prefix(Path(path).expanduser())
    has_index = prefix.with_name(prefix.name + INDEX).is_file()
    if has_index or _shards(prefix):
        _check_shards(prefix, has_index=has_index)
    elif not prefix.is_file():  # TensorFlow 1 also had checkpoints that are a single file.
        raise KerasdistError(
            f"There is no checkpoint {str(prefix)!r}. Expected the files {prefix.name}{INDEX} and "
            f"{prefix.name}.data-00000-of-00001, or a folder with a file `{STATE}`. Check the "
            f"name: {_beside(prefix)}."
        )
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = {k: tuple(v) for k, v in reader.get_variable_to_shape_map().items()}
        kinds = reader.get_variable_to_dtype_map()
        dtypes = {name: np.dtype(kinds[name].as_numpy_dtype) for name in shapes}
    except Exception as error:  # The reader raises TensorFlow's errors and plain ones.
        raise broken(prefix, _short(error)) from error
    if has_index:
        _check_size(prefix, shapes, dtypes)
    return Opened(str(prefix), shapes, dtypes, reader)


def broken(prefix: str | os.PathLike[str], reason: str) -> KerasdistError:
    """The error for a checkpoint that cannot be read."""
    return KerasdistError(
        f"The TensorFlow checkpoint {str(prefix)!r} cannot be read: {reason}. Expected complete "
        f"files, as `tf.train.Saver` or `tf.train.Checkpoint` write them. Copy all files of the "
        "checkpoint again, or use an earlier one."
    )


def _prefix(path: Path) -> Path:
    if not path.is_dir():
        return path.with_name(_SUFFIXES.sub("", path.name))
    for name in SAVED_MODEL:
        if (path / name).is_file():
            return path / "variables" / "variables"
    if (path / f"variables{INDEX}").is_file() and not (path / STATE).is_file():
        return path / "variables"
    return _newest(path)


def _newest(folder: Path) -> Path:
    """The newest checkpoint of a folder, as its file `checkpoint` says."""
    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except Exception as error:  # A broken file gives many types of errors.
        raise broken(folder / STATE, _short(error)) from error
    if state is None:
        raise broken(folder / STATE, "it names no checkpoint")
    named = Path(state.model_checkpoint_path)
    if named.with_name(named.name + INDEX).is_file() or named.is_file():
        return named
    return folder / named.name  # An absolute path from before the folder was moved.


def _shards(prefix: Path) -> dict[int, int]:
    """The numbers of the data files that are there, and of how many."""
    folder = prefix.parent
    if not folder.is_dir():
        return {}
    found = {}
    for path in folder.iterdir():
        match = _SHARD.search(path.name)
        if match and path.name[: match.start()] == prefix.name:
            found[int(match[1])] = int(match[2])
    return found


def _check_shards(prefix: Path, *, has_index: bool) -> None:
    shards = _shards(prefix)
    if not has_index:
        raise broken(prefix, f"the file {prefix.name}{INDEX} is missing")
    total = max(shards.values(), default=1)
    missing = [i for i in range(total) if shards.get(i) != total]
    if missing:
        names = [f"{prefix.name}.data-{i:05d}-of-{total:05d}" for i in missing]
        verb = "is" if len(names) == 1 else "are"
        raise broken(prefix, f"{', '.join(names[:5])} {verb} missing")


def _check_size(
    prefix: Path, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, np.dtype]
) -> None:
    """Refuses data files that are shorter than their arrays, before anything is read."""
    plain = [name for name in shapes if dtypes[name].kind != "O"]
    wanted = sum(math.prod(shapes[name]) * dtypes[name].itemsize for name in plain)
    total = max(_shards(prefix).values())
    files = [prefix.with_name(f"{prefix.name}.data-{i:05d}-of-{total:05d}") for i in range(total)]
    have = sum(file.stat().st_size for file in files)
    if have < wanted:
        raise broken(
            prefix,
            f"its data files have {have:,} bytes, but its arrays need {wanted:,}; truncated?",
        )


def _beside(prefix: Path) -> str:
    if not prefix.parent.is_dir():
        return f"the folder {str(prefix.parent)!r} does not exist"
    there = sorted(
        path.name.removesuffix(INDEX) for path in prefix.parent.iterdir() if path.suffix == INDEX
    )
    if not there:
        return f"the folder {str(prefix.parent)!r} has no checkpoint"
    return f"the folder has {listed(there, 5)}"


def listed(names: Iterable[str], most: int = 10) -> str:
    """A few names in one line."""
    known = list(names)
    more = [f"and {len(known) - most:,} more"] if len(known) > most else []
    return ", ".join([*known[:most], *more])


def _short(error: Exception) -> str:
    text = getattr(error, "message", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0][:200]
