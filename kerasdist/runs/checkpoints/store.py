"""The folder of a run's checkpoints: how one is committed, kept, verified and read back.

Commit protocol: the files are written to a folder `tmp-save-…` and synced, the manifest last; then
the folder is synced and renamed to its final name, and its parent synced. Whenever the process
dies, `step-…` is therefore either whole or absent; and should the disk break its promises, the
checksums say so and the checkpoint before is used. One that is replaced is first renamed to
`tmp-old-…`; if the process dies before the new one has its name, the old one is read from there,
and gets its name back with the next save.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import operator
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.runs.checkpoints import manifests
from kerasdist.runs.checkpoints.files import CHUNK, CREATE, READ, Files
from kerasdist.runs.checkpoints.manifests import ARRAYS, MANIFEST, BrokenError, Entry, Manifest
from kerasdist.runs.processes import is_alive

STEP = re.compile(r"step-([0-9]{8,})")
TEMPORARY = re.compile(r"tmp-(?:save|old)-[0-9]{8,}-([0-9]{1,10})-[0-9a-f]{8}")
ASIDE = re.compile(r"tmp-old-([0-9]{8,})-[0-9]{1,10}-[0-9a-f]{8}")

# Names of the drafts that threads of this process are writing: not left by a dead process.
_in_use: set[str] = set()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that verified. The arrays are the reader's own, and can be written to."""

    step: int
    path: Path
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class Store:
    """The checkpoints of one run. Only one process may save (see `kerasdist.locks`); any may read.

    Nothing is touched that does not have a name of ours, and nothing behind a link. Reading
    changes nothing in the folder.

    Args:
        folder: For example `runs/cifar10/0001/checkpoints`; made by the first save.
        keep: How many good checkpoints stay, 2 or more. The one just saved is one of them.
        files: The file-system calls, for tests.
        make_parents: Whether folders above it are made, too; else a save fails without them.

    Example:
        >>> import tempfile, numpy as np
        >>> store = Store(Path(tempfile.mkdtemp()) / "checkpoints")
        >>> store.save(1200, {"kernel": np.ones((2, 3))}, {"epoch": 3}).name
        'step-00001200'
        >>> store.newest().arrays["kernel"].shape
        (2, 3)
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        keep: int = 2,
        files: Files | None = None,
        make_parents: bool = True,
    ):
        if not isinstance(keep, int) or keep < 2:
            raise KerasdistError(
                f"Received `keep={keep!r}`. Expected 2 or more: if the newest checkpoint is "
                "damaged, the one before it is needed. Use `keep=2`."
            )
        self.folder = Path(folder)
        self.keep = keep
        self.skipped: list[tuple[Path, str]] = []
        self._files = files or Files()
        self._make_parents = make_parents
        self._broken: set[str] = set()
        self._synced_parents = False
        self._check_folder()

    def save(
        self,
        step: int,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        *,
        replace: bool = False,
    ) -> Path:
        """Commits a checkpoint, then removes those that are no longer kept.

        A step that is there already and verifies stays as it is, unless it is to be replaced. An
        `OSError` (the disk is full, for example) leaves the checkpoints before as they were, and
        saving can be tried again.

        Returns:
            The checkpoint's folder.
        """
        step = operator.index(step)
        if step < 0:
            raise KerasdistError(
                f"Received `step={step}`. Expected 0 or more. Count the optimizer's updates."
            )
        entries = manifests.describe(arrays)
        plain_meta = manifests.plain(meta)
        path = self._path(step)
        self._check_folder()
        if self._files.make_folder(self.folder, with_parents=self._make_parents):
            self._synced_parents = False
        if not self._synced_parents:
            # If the folder's own name is lost with the power, so is all in it.
            self._files.sync_parents(self.folder)
            self._synced_parents = True
        self._put_back()
        self._remove_stale()
        if not replace and self._verifies(path):
            # It may be here because an earlier save failed between its rename and its last sync.
            self._files.sync_folder(self.folder)
        else:
            self._commit(path, step, arrays, entries, plain_meta)
        self._broken.discard(path.name)
        self._remove_old(step)
        return path

    def newest(self) -> Checkpoint | None:
        """Reads the newest checkpoint that verifies.

        `skipped` then has the newer ones that do not, newest first, each with the reason.
        """
        self._check_folder()
        self.skipped = []
        seen: set[str] = set()
        # A second round only if a training saved and removed checkpoints while this was reading.
        while paths := [path for path in reversed(self._readable()) if path.name not in seen]:
            for path in paths:
                seen.add(path.name)
                try:
                    manifest = self._read_manifest(path)
                    arrays = self._read_arrays(path, manifest)
                except (BrokenError, EOFError, OSError) as error:
                    # What is not whole aside is one that was being removed.
                    if self._files.exists(path) and not ASIDE.fullmatch(path.name):
                        self._broken.add(path.name)
                        self.skipped.append((path, _reason(error)))
                else:
                    return Checkpoint(manifest.step, path, arrays, manifest.meta)
        return None

    def newest_meta(self) -> Mapping[str, Any] | None:
        """The `meta` of the newest checkpoint whose manifest verifies; its arrays are not read."""
        for path in reversed(self._readable()):
            with contextlib.suppress(BrokenError, EOFError, OSError):
                return self._read_manifest(path).meta
        return None

    def steps(self) -> list[int]:
        """The steps that have a folder, ascending. Nothing is verified."""
        steps = []
        for path in self._found():
            # One may go meanwhile: a run that trains removes its oldest.
            with contextlib.suppress(FileNotFoundError):
                if self._files.is_folder(path):
                    steps.append(_step(path))
        return steps

    def _commit(
        self,
        path: Path,
        step: int,
        arrays: Mapping[str, np.ndarray],
        entries: tuple[Entry, ...],
        meta: dict[str, Any],
    ) -> None:
        files = self._files
        draft = self._temporary("save", step)
        aside: Path | None = None
        _in_use.add(draft.name)
        try:
            files.mkdir(draft)
            digest = hashlib.sha256()
            with files.opened(draft / ARRAYS, CREATE) as file:
                for piece in manifests.pieces(arrays, entries):
                    files.write_all(file, piece, digest)
                files.fsync(file)
            size = entries[-1].offset + entries[-1].nbytes if entries else 0
            manifest = Manifest(step, meta, entries, size, digest.hexdigest())
            with files.opened(draft / MANIFEST, CREATE) as file:
                files.write_all(file, memoryview(manifests.encode(manifest)))
                files.fsync(file)
            files.sync_folder(draft)
            aside = self._move_aside(path, step)
            files.rename(draft, path)
            files.sync_folder(self.folder)
            if files.size(path / ARRAYS) != size or files.size(path / MANIFEST) is None:
                # Somebody is removing the folder right now.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        except Exception:
            self._remove(draft)
            with contextlib.suppress(OSError):
                if aside is not None and not files.exists(path):
                    files.rename(aside, path)
            raise
        finally:
            _in_use.discard(draft.name)
        if aside is not None:
            self._remove(aside)

    def _move_aside(self, path: Path, step: int) -> Path | None:
        """Makes room where a checkpoint is that is broken, or to be replaced."""
        if not self._files.exists(path):
            return None
        if not self._files.is_folder(path):
            raise KerasdistError(
                f"Received a checkpoint of step {step}, but {str(path)!r} is a link or a file. "
                "Expected nothing there, or a folder. Move it elsewhere."
            )
        aside = self._temporary("old", step)
        self._files.rename(path, aside)
        return aside

    def _remove_old(self, saved: int) -> None:
        """Removes what is older than the `keep` newest good ones. A failure only takes space."""
        with contextlib.suppress(OSError):
            steps = self.steps()
            good = [saved]
            for step in reversed(steps):
                if len(good) < self.keep and step != saved and self._looks_good(self._path(step)):
                    good.append(step)
            if len(good) == self.keep:
                for step in steps:
                    if step < min(good):
                        self._discard(step)

    def _discard(self, step: int) -> None:
        path, aside = self._path(step), self._temporary("old", step)
        with contextlib.suppress(OSError):
            if set(self._files.listdir(path)) <= {ARRAYS, MANIFEST}:
                # Renamed first: half a checkpoint never has the name of a whole one.
                self._files.rename(path, aside)
                self._remove(aside)

    def _put_back(self) -> None:
        """Gives a checkpoint its name back whose saver died while it replaced it."""
        with contextlib.suppress(OSError):
            for path in self._aside():
                if self._looks_good(path):
                    self._files.rename(path, self._path(_step(path)))

    def _remove_stale(self) -> None:
        """Removes what dead savers left, before a save that may need the space."""
        with contextlib.suppress(OSError):
            for name in self._files.listdir(self.folder):
                match = TEMPORARY.fullmatch(name)
                if match and name not in _in_use:
                    pid = int(match[1])
                    # In a restarted container this process may have the dead one's id.
                    if pid == os.getpid() or not is_alive(pid):
                        self._remove(self.folder / name)

    def _remove(self, path: Path) -> None:
        """Removes our files, and the folder if nothing else is in it."""
        with contextlib.suppress(OSError):
            if self._files.is_folder(path):
                for name in (MANIFEST, ARRAYS):
                    with contextlib.suppress(FileNotFoundError):
                        self._files.unlink(path / name)
                self._files.rmdir(path)

    def _verifies(self, path: Path) -> bool:
        """Checks every byte, without a second copy of the arrays in memory."""
        try:
            manifest = self._read_manifest(path)
            digest = hashlib.sha256()
            buffer = memoryview(bytearray(min(CHUNK, manifest.size)))
            with self._files.opened(path / ARRAYS, READ) as file:
                for start in range(0, manifest.size, CHUNK):
                    self._files.read_all(file, buffer[: manifest.size - start], digest)
        except (BrokenError, EOFError, OSError):
            return False
        return digest.hexdigest() == manifest.sha256

    def _looks_good(self, path: Path) -> bool:
        """Checks all but the arrays' bytes, which would take too long at each save."""
        try:
            self._read_manifest(path)
        except (BrokenError, EOFError, OSError):
            return False
        return path.name not in self._broken

    def _read_manifest(self, path: Path) -> Manifest:
        """Reads the manifest, and compares the sizes of the files with it."""
        if not self._files.is_folder(path):
            raise BrokenError("it is a link or a file, not a folder")
        raw = bytearray(self._size(path / MANIFEST, manifests.MOST_MANIFEST_BYTES))
        with self._files.opened(path / MANIFEST, READ) as file:
            self._files.read_all(file, memoryview(raw))
        manifest = manifests.decode(bytes(raw))
        if manifest.step != _step(path):
            raise BrokenError(f"{MANIFEST} is that of step {manifest.step}")
        if (size := self._size(path / ARRAYS, manifest.size)) != manifest.size:
            raise BrokenError(f"{ARRAYS} has {size} bytes, not {manifest.size}")
        return manifest

    def _read_arrays(self, path: Path, manifest: Manifest) -> dict[str, np.ndarray]:
        arrays = {}
        digest = hashlib.sha256()
        position = 0
        with self._files.opened(path / ARRAYS, READ) as file:
            for entry in manifest.entries:
                padding = memoryview(bytearray(entry.offset - position))
                self._files.read_all(file, padding, digest)
                raw = np.empty(entry.nbytes, np.uint8)
                self._files.read_all(file, raw.data, digest)
                dtype = manifests.dtype_of(entry.dtype)
                arrays[entry.name] = raw.view(dtype).reshape(entry.shape)
                position = entry.offset + entry.nbytes
        if digest.hexdigest() != manifest.sha256:
            raise BrokenError(f"{ARRAYS} does not have its sha256")
        return arrays

    def _size(self, path: Path, most: int) -> int:
        size = self._files.size(path)
        if size is None:
            raise BrokenError(f"{path.name} is missing, or is not a regular file")
        if size > most:
            raise BrokenError(f"{path.name} has {size} bytes, more than {most}")
        return size

    def _readable(self) -> list[Path]:
        """Everything that may be a checkpoint, by step."""
        return sorted([*self._aside(), *self._found()], key=_step)

    def _aside(self) -> list[Path]:
        """What was renamed to be replaced or removed, and has no successor."""
        there = {_step(path) for path in self._found()}
        paths = [self.folder / name for name in self._names() if ASIDE.fullmatch(name)]
        return [path for path in paths if _step(path) not in there]

    def _names(self) -> list[str]:
        try:
            return self._files.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _found(self) -> list[Path]:
        """Everything that is named like a checkpoint, by step."""
        names = self._names()
        steps = sorted({int(match[1]) for match in map(STEP.fullmatch, names) if match})
        # Not `step-000000012`, which is none of our names.
        return [path for path in map(self._path, steps) if path.name in names]

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _temporary(self, kind: str, step: int) -> Path:
        return self.folder / f"tmp-{kind}-{step:08d}-{os.getpid()}-{secrets.token_hex(4)}"

    def _check_folder(self) -> None:
        if self._files.exists(self.folder) and not self._files.is_folder(self.folder):
            raise KerasdistError(
                f"Received {str(self.folder)!r} as the folder of checkpoints, which is a link or "
                "a file. Expected a folder, or nothing there yet. Name the folder itself."
            )


def _step(path: Path) -> int:
    match = STEP.fullmatch(path.name) or ASIDE.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name!r} is not named like a checkpoint")
    return int(match[1])


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    return str(error) or "a file ends too early"
