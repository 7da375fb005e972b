"""The format of a checkpoint: what the manifest says, and how it is checked.

Nothing here runs code from a file, or trusts it. Names are keys and never paths, dtypes come from a
fixed list, and sizes are compared with the file before memory is allocated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError

FORMAT = 1
MANIFEST, ARRAYS = "manifest.json", "arrays.bin"
ALIGNMENT = 64
# Far more than any model needs. A manifest is parsed in memory.
MOST_MANIFEST_BYTES = 64 * 2**20
MOST_DIMENSIONS = 32  # NumPy 1's limit; NumPy 2 has 64.

PLAIN_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
EXTENSION_DTYPES = (
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"),
)


class BrokenError(Exception):
    """A checkpoint that must not be used. The message is the reason."""


@dataclass(frozen=True)
class Entry:
    """Where one array lies in `arrays.bin`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. `size` and `sha256` describe `arrays.bin`."""

    step: int
    meta: dict[str, Any]
    entries: tuple[Entry, ...]
    size: int
    sha256: str


def dtype_of(name: str) -> np.dtype:
    """The little-endian dtype of a known name."""
    if name in PLAIN_DTYPES:
        return np.dtype(name).newbyteorder("<")
    if name in EXTENSION_DTYPES:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    raise ValueError(f"unknown dtype {name!r}")


def is_storable(array: np.ndarray) -> bool:
    """Whether a checkpoint can hold an array of this dtype and number of dimensions."""
    is_known = array.dtype.name in PLAIN_DTYPES + EXTENSION_DTYPES
    return is_known and array.ndim <= MOST_DIMENSIONS


def describe(arrays: Mapping[str, np.ndarray]) -> tuple[Entry, ...]:
    """The entries of the arrays to save. Refuses what could not be read back."""
    entries = []
    end = 0
    for name, array in arrays.items():
        if not isinstance(name, str) or not name:
            raise KerasdistError(
                f"Received the name {name!r} for an array of a checkpoint. Expected a non-empty "
                "string. Rename the array."
            )
        array = np.asarray(array)
        dtype = array.dtype.name
        if not is_storable(array):
            raise KerasdistError(
                f"Received the array {name!r} of dtype {dtype} with {array.ndim} dimensions for a "
                "checkpoint. Expected one of the dtypes "
                f"{', '.join(PLAIN_DTYPES + EXTENSION_DTYPES)} with at most {MOST_DIMENSIONS} "
                "dimensions. Convert it, or leave it out."
            )
        offset = aligned(end)
        entries.append(Entry(name, dtype, array.shape, offset, array.nbytes))
        end = offset + array.nbytes
    return tuple(entries)


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def pieces(arrays: Mapping[str, np.ndarray], entries: tuple[Entry, ...]) -> Iterator[memoryview]:
    """The bytes of `arrays.bin`, in order: each array, and zeros up to the start of the next."""
    position = 0
    for entry in entries:
        yield memoryview(bytes(entry.offset - position))
        array = np.asarray(arrays[entry.name]).astype(dtype_of(entry.dtype), copy=False)
        # As uint8: extension dtypes and 0-d arrays have no usable buffer themselves.
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        position = entry.offset + entry.nbytes


def plain(meta: Any, where: str = "meta") -> Any:
    """A copy that holds only JSON's types. Refuses what JSON would turn into something else."""
    if isinstance(meta, Mapping):
        for key in meta:
            if not isinstance(key, str):
                _refuse(where, f"the key {key!r}", "strings as keys")
        return {key: plain(value, f"{where}[{key!r}]") for key, value in meta.items()}
    if isinstance(meta, (list, tuple)):
        return [plain(value, f"{where}[{i}]") for i, value in enumerate(meta)]
    if isinstance(meta, float) and not math.isfinite(meta):
        _refuse(where, repr(meta), "finite numbers, as JSON has no others")
    if meta is not None and not isinstance(meta, (bool, int, float, str)):
        _refuse(where, f"a {type(meta).__name__}", "None, bools, numbers, strings, lists and dicts")
    return meta


def _refuse(where: str, received: str, expected: str) -> None:
    raise KerasdistError(
        f"Received {received} in `{where}` of a checkpoint. Expected {expected}. Convert it, or "
        "save it as an array."
    )


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest. There is only one way to write it: `decode` compares every byte."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "step": manifest.step,
        "meta": manifest.meta,
        "arrays": [{**asdict(entry), "shape": list(entry.shape)} for entry in manifest.entries],
        "files": {ARRAYS: {"size": manifest.size, "sha256": manifest.sha256}},
    }
    raw = _dump({**content, "checksum": _checksum(content)})
    if len(raw) > MOST_MANIFEST_BYTES:
        raise KerasdistError(
            f"The manifest of a checkpoint would have {len(raw)} bytes. Expected at most "
            f"{MOST_MANIFEST_BYTES}. Save long lists in `meta` as arrays."
        )
    return raw


def _dump(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False).encode("ascii") + b"\n"


def _checksum(content: Any) -> str:
    return hashlib.sha256(_dump(content)).hexdigest()


def decode(raw: bytes) -> Manifest:
    """Reads a manifest. Raises `BrokenError` if a single bit differs from what was written."""
    try:
        content = json.loads(raw)
        # Spaces, escapes, repeated keys and other spellings of the same content are damage, too.
        same = _dump(content) == raw
    except (ValueError, RecursionError):
        raise BrokenError(f"{MANIFEST} is not valid JSON") from None
    if not same or not isinstance(content, dict):
        raise BrokenError(f"{MANIFEST} is not as it was written")
    if content.pop("checksum", None) != _checksum(content):
        raise BrokenError(f"{MANIFEST} does not have its checksum")
    if content.get("format") != FORMAT:
        raise BrokenError(
            f"{MANIFEST} has format {content.get('format')!r}; this version reads {FORMAT}"
        )
    try:
        return _checked(content)
    except (ValueError, TypeError, KeyError) as error:
        raise BrokenError(f"{MANIFEST} makes no sense: {error}") from None


def _checked(content: dict[str, Any]) -> Manifest:
    """Checks the content: a correct checksum does not mean that kerasdist wrote the file."""
    if set(content) != {"format", "step", "meta", "arrays", "files"}:
        raise ValueError(f"it has the fields {sorted(content)}")
    if not isinstance(content["meta"], dict) or not isinstance(content["arrays"], list):
        raise TypeError("meta or arrays have the wrong type")
    if set(content["files"]) != {ARRAYS}:
        raise ValueError(f"it names the files {sorted(content['files'])}")
    file = content["files"][ARRAYS]
    entries: list[Entry] = []
    end = 0
    for item in content["arrays"]:
        entry = Entry(**{**item, "shape": tuple(item["shape"])})
        _check_entry(entry, aligned(end))
        entries.append(entry)
        end = entry.offset + entry.nbytes
    if len({entry.name for entry in entries}) != len(entries):
        raise ValueError("two arrays have the same name")
    if _natural(file["size"]) != end:
        raise ValueError(f"{ARRAYS} should have {end} bytes, not {file['size']}")
    if not isinstance(file["sha256"], str):
        raise TypeError("sha256 is not text")
    return Manifest(_natural(content["step"]), content["meta"], tuple(entries), end, file["sha256"])


def _check_entry(entry: Entry, offset: int) -> None:
    if not isinstance(entry.name, str) or not isinstance(entry.dtype, str) or not entry.name:
        raise TypeError("the name or dtype of an array is not text")
    if len(entry.shape) > MOST_DIMENSIONS:
        raise ValueError(f"array {entry.name!r} has {len(entry.shape)} dimensions")
    sizes = [_natural(size) for size in entry.shape]
    itemsize = dtype_of(entry.dtype).itemsize
    # NumPy refuses larger products of sizes, even if one of the sizes is 0.
    if math.prod(size for size in sizes if size) * itemsize >= 2**63:
        raise ValueError(f"array {entry.name!r} has the shape {entry.shape}")
    if _natural(entry.nbytes) != math.prod(sizes) * itemsize:
        raise ValueError(f"array {entry.name!r} cannot have {entry.nbytes} bytes")
    if _natural(entry.offset) != offset:
        raise ValueError(f"array {entry.name!r} cannot begin at {entry.offset}")


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
