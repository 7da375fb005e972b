"""Where exported models are written: nothing that is not ours is replaced. Without TensorFlow."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.runs.atomic import write_json

FOLDER, RECORDS = "export", "exports.json"
NAMES = {
    "keras": "model.keras",
    "saved_model": "saved_model",
    "litert": "model.tflite",
    "onnx": "model.onnx",
}
# What a format needs besides TensorFlow, and the extra of ours that brings it.
_PACKAGES = {"onnx": ("tf2onnx", "onnx", "onnxruntime")}


@dataclass(frozen=True)
class Target:
    """A path to write an export to. `is_default`: in the run's folder, with a record of it."""

    path: Path
    format: str
    is_default: bool

    def prepare(self) -> None:
        """Makes the folder that the export goes to."""
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """A path to write to first, on the same disk; nothing of it stays behind."""
        self.prepare()
        with _writing(self.path):
            folder = tempfile.mkdtemp(prefix=".tmp-export-", dir=self.path.parent)
        try:
            yield Path(folder) / self.path.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                if self.is_default:
                    self.path.parent.rmdir()  # Only if nothing was ever exported.

    def place(self, draft: Path, about: Mapping[str, Any]) -> None:
        """Moves a finished draft to its path, and notes in the run's folder what it is."""
        digest = sha256(draft)
        with _writing(self.path):
            if self.is_default and self.path.is_dir():
                shutil.rmtree(self.path)
            if not self.is_default and os.path.lexists(self.path):
                raise _exists(self.path)  # It came into being while the model was converted.
            os.replace(draft, self.path)
            if self.is_default:
                records = _records(self.path.parent)
                records[self.path.name] = {**about, "sha256": digest}
                write_json(self.path.parent / RECORDS, records)


def target(run: Path, format: str, output: str | None) -> Target:
    """Where to export to; refuses a path that holds something else, and missing packages."""
    missing = [name for name in _PACKAGES.get(format, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise KerasdistError(
            f"Received `--format {format}`, and {', '.join(missing)} is not installed. Expected "
            f"the packages of the extra {format!r}. Install them with "
            f"`pip install 'kerasdist[{format}]'`."
        )
    if output is not None:
        path = Path(output).expanduser()
        suffix = Path(NAMES[format]).suffix
        if suffix and path.suffix != suffix:
            raise KerasdistError(
                f"Received `--output {output}` for `--format {format}`. Expected a name that ends "
                f"in {suffix}. Give for example `--output {path.with_suffix(suffix)}`."
            )
        if os.path.lexists(path):
            raise _exists(path)
        return Target(path, format, is_default=False)
    path = run / FOLDER / NAMES[format]
    if os.path.lexists(path) and not _is_ours(path):
        raise _exists(path)
    return Target(path, format, is_default=True)


def _is_ours(path: Path) -> bool:
    """Whether an export is as we wrote it."""
    if path.is_symlink() or path.parent.is_symlink():
        return False
    known = _records(path.parent).get(path.name)
    return isinstance(known, dict) and known.get("sha256") == sha256(path)


def _records(folder: Path) -> dict[str, Any]:
    try:
        records = json.loads((folder / RECORDS).read_text())
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def sha256(path: Path) -> str:
    """Of a file, or of all files in a folder with their names."""
    digest = hashlib.sha256()
    if path.is_dir():
        for inner in sorted(p for p in path.rglob("*") if p.is_file()):
            digest.update(f"{inner.relative_to(path).as_posix()} {sha256(inner)}\n".encode())
    else:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def num_bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(p.stat().st_size for p in files if p.is_file())


def _exists(path: Path) -> KerasdistError:
    return KerasdistError(
        f"Received {str(path)!r} to export to, which exists and is not an export of ours. Expected "
        "a new path: nothing else is overwritten. Give another one with `--output`."
    )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KerasdistError(
            f"Received {str(path)!r} to export to, which cannot be written: {error.strerror}. "
            "Expected a folder one can write to. Give another path with `--output`."
        ) from error
