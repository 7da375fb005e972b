"""Downloads the archive of a data set into kerasdist's cache: whole and checked, or not at all.

An archive is saved and unpacked in a temporary folder beside its place in the cache. The last step
renames the unpacked folder, so what is in the cache is always complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.errors import first_line
from kerasdist.recipes.archives import BadArchiveError, unpack

# How long to wait for the first answer of a server: without a network, nobody waits for long.
PROBE_SECONDS = 3.0
# How long to wait for more of a download that has begun.
READ_SECONDS = 30.0
# A killed process leaves its temporary folder. Nobody has used it for this long: remove it.
LEFTOVER_SECONDS = 3600.0
CHUNK_BYTES = 1 << 20
_TEMPORARY = "part-"

FindFiles = Callable[[Path], Path | None]


@dataclass(frozen=True)
class Archive:
    """An archive on a server.

    Attributes:
        name: The name of the data set, for its folder in the cache.
        title: Its common name, for messages.
        url: A tar file (also compressed) or a zip file.
        megabytes: Its size, for messages.
        sha256: The SHA-256 of the archive, as hexadecimal digits.
    """

    name: str
    title: str
    url: str
    megabytes: int
    sha256: str

    @property
    def folder(self) -> Path:
        """Where its files are after the download. Another archive has another folder."""
        name = re.sub(r"[^\w-]+", "-", self.name) or "data"
        return cache_folder() / name / self.sha256.lower()[:12]

    def find(self, find_files: FindFiles) -> Path | None:
        """The folder of the downloaded files, or None if the cache does not have them."""
        return find_files(self.folder) if self.folder.is_dir() else None


class DownloadError(Exception):
    """The archive cannot be had. The message is a reason, for the middle of a sentence."""


def cache_folder() -> Path:
    """The folder where kerasdist keeps its downloads."""
    chosen = os.environ.get("KERASDIST_DATA_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    caches = os.environ.get("XDG_CACHE_HOME")
    # The standard for this variable says: ignore it if it is not an absolute path.
    if caches and Path(caches).is_absolute():
        return Path(caches) / "kerasdist"
    return Path.home() / ".cache" / "kerasdist"


def download(archive: Archive, find_files: FindFiles) -> tuple[Path | None, str | None]:
    """Downloads and unpacks an archive, unless another process just did.

    Args:
        archive: What to download.
        find_files: Finds the folder of the data set's files in or below a folder.

    Returns:
        The folder of the files and None, or None and the reason why it failed.
    """
    try:
        return _download(archive, find_files), None
    except DownloadError as error:
        return None, str(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None, f"the disk of {cache_folder()} is full (change it with KERASDIST_DATA_DIR)"
        return None, f"{cache_folder()} cannot be written ({named(error)})"


def _download(archive: Archive, find_files: FindFiles) -> Path:
    place = archive.folder.parent
    # Ask the server before the lock: without a network, several workers do not wait in a line.
    response = _connect(archive.url)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _turn(place / "lock", archive.title) as waited:
            found = archive.find(find_files)
            if found is not None:
                return found
            if waited:
                # The server may have given up on an answer that nobody read.
                response.close()
                response = _connect(archive.url)
            _remove_leftovers(place)
            with tempfile.TemporaryDirectory(
                dir=place, prefix=_TEMPORARY, ignore_cleanup_errors=True
            ) as folder:
                _install(response, archive, Path(folder), find_files)
    finally:
        response.close()
    found = archive.find(find_files)
    if found is None:
        raise DownloadError(f"another process removed {archive.folder}")
    return found


def _install(response: Any, archive: Archive, folder: Path, find_files: FindFiles) -> None:
    """Saves, checks and unpacks in a temporary folder, then renames to the place in the cache."""
    print(
        f"Downloading {archive.title} ({archive.megabytes} MB) to {archive.folder}", file=sys.stderr
    )
    _save(response, archive, folder / "archive")
    files = folder / "files"
    files.mkdir()
    try:
        unpack(folder / "archive", files)
    except BadArchiveError as error:
        raise DownloadError(f"{archive.url} cannot be unpacked: {error}") from error
    if find_files(files) is None:
        raise DownloadError(f"{archive.url} does not have the files of {archive.title}")
    try:
        files.rename(archive.folder)
    except OSError:
        if archive.find(find_files) is not None:
            return  # Without locks on this file system, another process was faster.
        # Somebody removed some of the files: what is left makes room for all of them.
        archive.folder.rename(folder / "damaged")
        files.rename(archive.folder)


def _connect(url: str) -> Any:
    """Opens a URL. Gives up within seconds, even if the name lookup hangs."""
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "kerasdist"})
            answer.set_result(urllib.request.urlopen(request, timeout=READ_SECONDS))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            answer.set_exception(error)

    # The name lookup has no timeout, so it runs in a thread that nobody has to wait for.
    threading.Thread(target=ask, name="kerasdist-download", daemon=True).start()
    try:
        return answer.result(timeout=PROBE_SECONDS)
    except TimeoutError:
        answer.add_done_callback(_close_answer)
        raise DownloadError(f"{url} did not answer in {PROBE_SECONDS:.0f} s") from None
    except Exception as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DownloadError(f"{url} cannot be reached ({named(error)})") from error


def _close_answer(answer: Future[Any]) -> None:
    with contextlib.suppress(Exception):
        answer.result().close()


@contextlib.contextmanager
def _turn(lock: Path, title: str) -> Iterator[bool]:
    """Lets one process after the other in. Yields whether this one had to wait.

    The lock is the kernel's: it ends with its process, however that ends.
    """
    file, waited = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666), False
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process that downloads {title}", file=sys.stderr)
            waited = True
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            # A file system without locks: each process downloads, and the first rename counts.
            pass
        yield waited
    finally:
        os.close(file)


def _remove_leftovers(place: Path) -> None:
    for folder in place.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            used = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if time.time() - used > LEFTOVER_SECONDS:
                shutil.rmtree(folder)


def _save(response: Any, archive: Archive, path: Path) -> None:
    digest, received = hashlib.sha256(), 0
    length = response.headers.get("Content-Length", "")
    size = int(length) if length.isdigit() else None
    with path.open("xb") as file, _progress(size) as show:
        while chunk := _read(response, archive.url):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            show(received)
    if size is not None and received != size:
        raise DownloadError(f"{archive.url} broke off after {received} of {size} bytes")
    if digest.hexdigest() != archive.sha256.lower():
        raise DownloadError(
            f"{archive.url} is not the known file: its SHA-256 is {digest.hexdigest()} instead of "
            f"{archive.sha256.lower()}"
        )


def _read(response: Any, url: str) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except Exception as error:
        # Any error of the network or of the protocol. Those of the disk come from elsewhere.
        raise DownloadError(f"{url} broke off ({named(error)})") from error


@contextlib.contextmanager
def _progress(size: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that shows how much was received. It rewrites a line of a terminal."""
    total = "" if size is None else f" of {size / 2**20:.0f}"
    shown = 0.0

    def show(received: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - shown >= 0.5:
            shown = time.monotonic()
            print(f"\r{received / 2**20:.0f}{total} MB ", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown:
            print(file=sys.stderr)


def named(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"
