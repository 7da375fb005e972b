"""The folder of a run's checkpoints: commits them, keeps the newest, and reads them back.

How a checkpoint is committed: its files are written to a folder `tmp-save-…` and synced, the
manifest last. Then the folder is synced and renamed to its final name, and its parent is synced. So
`step-…` is complete or absent, whenever the process dies. If the disk still loses data, the
checksums show it, and the checkpoint before is used. A checkpoint that is replaced is first renamed
to `tmp-old-…`. If the process dies before the new one has its name, the old one is read from there,
and the next save gives it its name back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.runs.checkpoints import manifests, names
from kerasdist.runs.checkpoints.files import CREATE, Files
from kerasdist.runs.checkpoints.manifests import ARRAYS, MANIFEST, Entry, Manifest
from kerasdist.runs.checkpoints.names import step_of
from kerasdist.runs.checkpoints.reader import UNREADABLE, Reader, reason
from kerasdist.runs.lock import is_alive

# Names of the drafts that threads of this process are writing now.
_in_use: set[str] = set()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was read and verified. Its arrays may be changed by the caller."""

    step: int
    path: Path
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class Store:
    """The checkpoints of one run. Only one process may save (see `kerasdist.runs.lock`).

    Any process may read: reading changes nothing in the folder. Files with other names than
    kerasdist's, and files behind links, are never touched.

    Args:
        folder: For example `runs/cifar10/0001/checkpoints`. The first save makes it.
        keep: How many good checkpoints to keep, 2 or more, with the one just saved.
        files: The file-system calls, for tests.
        make_parents: Whether to make the folders above it, too. Otherwise they must exist.

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
        folder: str | os.PathLike[str],
        *,
        keep: int = 2,
        files: Files | None = None,
        make_parents: bool = True,
    ):
        if not isinstance(keep, int) or keep < 2:
            raise KerasdistError(
                f"Received `keep={keep!r}`. Expected 2 or more: if the newest checkpoint is "
                "damaged, the run continues from the one before. Use `keep=2`."
            )
        self.folder = Path(folder)
        self.keep = keep
        self.skipped: list[tuple[Path, str]] = []
        self._files = files or Files()
        self._reader = Reader(self._files)
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

        A checkpoint of the same step that verifies stays as it is, unless `replace` is True. After
        an `OSError` (for example, a full disk) the earlier checkpoints are as they were, and the
        save can be tried again.

        Returns:
            The checkpoint's folder.
        """
        step = operator.index(step)
        if step < 0:
            raise KerasdistError(
                f"Received `step={step}`. Expected 0 or more. Give the number of optimizer updates."
            )
        entries = manifests.describe(arrays)
        plain_meta = manifests.plain(meta)
        path = self._path(step)
        self._check_folder()
        if self._files.make_folder(self.folder, with_parents=self._make_parents):
            self._synced_parents = False
        if not self._synced_parents:
            # If a power failure loses the folder's name, everything in it is lost, too.
            self._files.sync_parents(self.folder)
            self._synced_parents = True
        self._put_back()
        self._remove_stale()
        if not replace and self._reader.verifies(path):
            # An earlier save may have failed between its rename and its last sync.
            self._files.sync_folder(self.folder)
        else:
            self._commit(path, step, arrays, entries, plain_meta)
        self._broken.discard(path.name)
        self._remove_old(step)
        return path

    def newest(self) -> Checkpoint | None:
        """Reads the newest checkpoint that verifies.

        After that, `skipped` lists the newer ones that do not, newest first, each with the reason.
        """
        self._check_folder()
        self.skipped = []
        seen: set[str] = set()
        # A second round happens only if a process saved and removed checkpoints meanwhile.
        while paths := [path for path in reversed(self._readable()) if path.name not in seen]:
            for path in paths:
                seen.add(path.name)
                try:
                    manifest = self._reader.manifest(path)
                    arrays = self._reader.arrays(path, manifest)
                except UNREADABLE as error:
                    # A broken one that was moved aside was being removed.
                    if self._files.exists(path) and not names.is_aside(path.name):
                        self._broken.add(path.name)
                        self.skipped.append((path, reason(error)))
                else:
                    return Checkpoint(manifest.step, path, arrays, manifest.meta)
        return None

    def newest_meta(self) -> Mapping[str, Any] | None:
        """The `meta` of the newest checkpoint whose manifest verifies. Does not read its arrays."""
        for path in reversed(self._readable()):
            with contextlib.suppress(*UNREADABLE):
                return self._reader.manifest(path).meta
        return None

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending. Verifies nothing."""
        steps = []
        for path in self._found():
            # A checkpoint may vanish meanwhile: a running training removes its oldest.
            with contextlib.suppress(FileNotFoundError):
                if self._files.is_folder(path):
                    steps.append(step_of(path))
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
        draft = self.folder / names.new_draft(step)
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
                # Somebody is removing the folder at this moment.
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
        """Renames a checkpoint that is broken or about to be replaced; None if there is none."""
        if not self._files.exists(path):
            return None
        if not self._files.is_folder(path):
            raise KerasdistError(
                f"The checkpoint of step {step} cannot be saved: {str(path)!r} is a link or a "
                "file. Expected a folder, or nothing there. Move it somewhere else."
            )
        aside = self.folder / names.new_aside(step)
        self._files.rename(path, aside)
        return aside

    def _remove_old(self, saved: int) -> None:
        """Removes what is older than the `keep` newest good ones. A failure only costs space."""
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
        path, aside = self._path(step), self.folder / names.new_aside(step)
        with contextlib.suppress(OSError):
            if set(self._files.listdir(path)) <= {ARRAYS, MANIFEST}:
                # Renamed first, so that half a checkpoint never has the name of a complete one.
                self._files.rename(path, aside)
                self._remove(aside)

    def _put_back(self) -> None:
        """Gives checkpoints their names back, if a process died while it replaced them."""
        with contextlib.suppress(OSError):
            for path in self._aside():
                if self._looks_good(path):
                    self._files.rename(path, self._path(step_of(path)))

    def _remove_stale(self) -> None:
        """Removes what dead processes left behind. The next save may need the space."""
        with contextlib.suppress(OSError):
            for name in self._files.listdir(self.folder):
                pid = names.writer_of(name)
                if pid is None or name in _in_use:
                    continue
                # In a restarted container, this process may have the id of the dead one.
                if pid == os.getpid() or not is_alive(pid):
                    self._remove(self.folder / name)

    def _remove(self, path: Path) -> None:
        """Removes the files of a checkpoint, and its folder if nothing else is in it."""
        with contextlib.suppress(OSError):
            if self._files.is_folder(path):
                for name in (MANIFEST, ARRAYS):
                    with contextlib.suppress(FileNotFoundError):
                        self._files.unlink(path / name)
                self._files.rmdir(path)

    def _looks_good(self, path: Path) -> bool:
        return self._reader.looks_good(path) and path.name not in self._broken

    def _readable(self) -> list[Path]:
        """Everything that may be a checkpoint, sorted by step."""
        return sorted([*self._aside(), *self._found()], key=step_of)

    def _aside(self) -> list[Path]:
        """Checkpoints that were moved aside, and that no newer one of the same step replaces."""
        there = {step_of(path) for path in self._found()}
        paths = [self.folder / name for name in self._names() if names.is_aside(name)]
        return [path for path in paths if step_of(path) not in there]

    def _names(self) -> list[str]:
        try:
            return self._files.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _found(self) -> list[Path]:
        """Everything with the name of a checkpoint, sorted by step."""
        return [self._path(step) for step in names.steps_in(self._names())]

    def _path(self, step: int) -> Path:
        return self.folder / names.of_step(step)

    def _check_folder(self) -> None:
        if self._files.exists(self.folder) and not self._files.is_folder(self.folder):
            raise KerasdistError(
                f"The folder of checkpoints {str(self.folder)!r} is a link or a file. Expected a "
                "real folder, or nothing there yet. Give the folder itself."
            )
