"""Decides where an exported model is written, without overwriting anything else.

This module does not load TensorFlow: the command line checks a path before it does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.runs.atomic import write_json
from kerasdist.runs.catalog import read_object

FOLDER, RECORDS = "export", "exports.json"
NAMES = {
    "keras": "model.keras",
    "saved_model": "saved_model",
    "litert": "model.tflite",
    "onnx": "model.onnx",
}
# The packages that a format needs. `pip install 'kerasdist[FORMAT]'` installs them.
_PACKAGES = {"onnx": ("tf2onnx", "onnx", "onnxruntime")}


@dataclass(frozen=True)
class Target:
    """Where to write an export.

    Attributes:
        is_default: Whether it is in the run's folder, which keeps a record of its exports.
    """

    path: Path
    format: str
    is_default: bool

    def prepare(self) -> None:
        """Makes the folder of the export."""
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Gives a temporary path on the same disk to write to, and removes it at the end."""
        self.prepare()
        with _writing(self.path):
            folder = tempfile.mkdtemp(prefix=".tmp-export-", dir=self.path.parent)
        try:
            yield Path(folder) / self.path.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                if self.is_default:
                    self.path.parent.rmdir()  # Fails if it holds an earlier export.

    def place(self, draft: Path, about: Mapping[str, Any]) -> None:
        """Moves a finished draft to its path, and records it in the run's folder.

        Wherever this is killed, the next export knows what is there as kerasdist's own.
        """
        digest = sha256(draft)
        with _writing(self.path):
            if not self.is_default and os.path.lexists(self.path):
                raise _exists(self.path)  # It appeared while the model was converted.
            if self.is_default:
                self._record({**about, "sha256": digest})
                if self.path.is_dir():
                    # At once: a folder of which only a part is removed would be nobody's.
                    os.replace(self.path, draft.with_name(f"replaced-{draft.name}"))
            os.replace(draft, self.path)

    def _record(self, about: dict[str, Any]) -> None:
        """Notes an export that is about to take its place, and what it takes the place of."""
        records = read_object(self.path.parent / RECORDS)
        if os.path.lexists(self.path):
            about["replaces_sha256"] = sha256(self.path)
        records[self.path.name] = about
        write_json(self.path.parent / RECORDS, records)


def target(run: Path, format: str, output: str | None) -> Target:
    """Where to export to. Refuses a path that holds something else, and missing packages."""
    missing = [name for name in _PACKAGES.get(format, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise KerasdistError(
            f"Received `--format {format}`, but these packages are missing: "
            f"{', '.join(missing)}. Expected "
            f"the packages of the extra {format!r}. Install them with "
            f"`pip install 'kerasdist[{format}]'`."
        )
    if output is not None:
        path = Path(output).expanduser()
        suffix = Path(NAMES[format]).suffix
        if suffix and path.suffix != suffix:
            raise KerasdistError(
                f"Received `--output {output}` for `--format {format}`. Expected a name that ends "
                f"in {suffix}. For example, use `--output {path.with_suffix(suffix)}`."
            )
        if os.path.lexists(path):
            raise _exists(path)
        return Target(path, format, is_default=False)
    path = run / FOLDER / NAMES[format]
    if os.path.lexists(path) and not _is_ours(path):
        raise _exists(path)
    return Target(path, format, is_default=True)


def _is_ours(path: Path) -> bool:
    """Whether an export is exactly as kerasdist wrote it."""
    if path.is_symlink() or path.parent.is_symlink():
        return False
    known = read_object(path.parent / RECORDS).get(path.name)
    names = ("sha256", "replaces_sha256")
    return isinstance(known, dict) and sha256(path) in [known.get(name) for name in names]


def sha256(path: Path) -> str:
    """The sha256 of a file, or of all files in a folder and their names."""
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
        f"The export cannot be written to {str(path)!r}: it exists. Expected a new "
        "path: kerasdist overwrites nothing else than its own exports in the folder of the run. "
        "Choose another one with `--output`."
    )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KerasdistError(
            f"The export cannot be written to {str(path)!r}: {error.strerror}. Expected a writable "
            "folder. Choose another path with `--output`."
        ) from error
