"""Finds a recipe's public data set: its files, a TFDS folder, or a synthetic substitute.

TFDS (tensorflow-datasets) is optional. Without it, kerasdist downloads the original files.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.recipes import downloads
from kerasdist.recipes.downloads import PROBE_SECONDS, named

SOURCES = ("auto", "files", "tfds", "synthetic")
INSTALL_TFDS = "pip install 'kerasdist[tfds]'"


@dataclass(frozen=True)
class PublicData:
    """A public data set of a recipe, with a synthetic substitute.

    Attributes:
        title: The common name of the data set.
        tfds: Its name in TFDS.
        version: A version that TFDS prepares, for messages.
        url: Where to download its files: a tar or zip file.
        megabytes: The size of the download.
        files: What kind of files they are, for messages.
        find_files: A function that finds the folder of the files in or below a folder, and returns
            None if they are not there.
        synthetic: What the substitute consists of.
        sha256: The SHA-256 of the file at `url`. Without it, only TFDS can download the data.

    Example:
        >>> import kerasdist
        >>> clips = kerasdist.PublicData(
        ...     title="Clips",
        ...     tfds="clips",
        ...     version="1.0.0",
        ...     url="https://example.org/clips.zip",
        ...     megabytes=3,
        ...     files="WAV files",
        ...     find_files=lambda folder: folder if list(folder.glob("*.wav")) else None,
        ...     synthetic="sounds",
        ... )
        >>> clips.locate("synthetic", data_dir=None)
        ('synthetic', None)
    """

    title: str
    tfds: str
    version: str
    url: str
    megabytes: int
    files: str
    find_files: Callable[[Path], Path | None]
    synthetic: str
    sha256: str | None = None

    def locate(
        self, source: str, data_dir: str | None, *, warn: bool = True
    ) -> tuple[str, Path | None]:
        """Finds the source and its folder. Warns before it falls back to synthetic data.

        Args:
            source: "files", "tfds", "synthetic", or "auto" for the first of them that is available.
            data_dir: The folder that must hold the data, or None.
            warn: Whether to warn about synthetic data.
        """
        if source not in SOURCES:
            raise KerasdistError(
                f"Received `source` {source!r}. Expected one of {', '.join(SOURCES)}. Set `source` "
                "to one of these, or leave it out."
            )
        if source == "synthetic":
            return "synthetic", None
        if data_dir is not None:
            return self._locate_in(Path(data_dir).expanduser(), source)
        if source == "tfds" and not has_tfds():
            raise KerasdistError(
                "Received `source` 'tfds', but TFDS is not installed. Expected the package "
                f"tensorflow-datasets. Install it with `{INSTALL_TFDS}`, or leave out `source` to "
                "use what is available."
            )
        found, reason = self._find_or_download(source)
        if found is not None:
            return found
        if source == "files":
            raise KerasdistError(
                f"Received `source` 'files' without `data_dir`, but {downloads.cache_folder()} "
                f"does not have {self.title}, and {reason}. Expected the files, or a network to "
                f"download them from. Unpack {self.url} and pass its folder as `data_dir`, or set "
                "`source` to synthetic."
            )
        if source == "tfds":
            raise KerasdistError(
                f"Received `source` 'tfds', but {default_folder()} has no prepared {self.title}, "
                f"and {reason}. Expected a prepared folder or a network to download from. Prepare "
                "the data on a machine with a network and pass that folder as `data_dir`, or set "
                "`source` to synthetic."
            )
        if warn:
            _warn_synthetic(self, str(reason))
        return "synthetic", None

    def _find_or_download(self, source: str) -> tuple[tuple[str, Path] | None, str | None]:
        """The source and its folder, and None; or None and the reason."""
        with_tfds = source != "files" and has_tfds()
        folder = self.find_prepared(default_folder()) if with_tfds else None
        if folder is not None:
            return ("tfds", folder), None
        archive = self.archive()
        if source != "tfds" and archive is not None:
            folder = archive.find(self.find_files)
            if folder is not None:
                return ("files", folder), None
        # A TFDS that misses a package of its own is as good as none.
        with_tfds = with_tfds and (source == "tfds" or _why_no_tfds() is None)
        folder, reason = _download(self, with_tfds)
        if folder is None:
            return None, reason
        return ("tfds" if with_tfds else "files", folder), None

    def archive(self) -> downloads.Archive | None:
        """The archive that kerasdist can download without TFDS; None without a `sha256`."""
        if self.sha256 is None:
            return None
        return downloads.Archive(self.tfds, self.title, self.url, self.megabytes, self.sha256)

    def _locate_in(self, data_dir: Path, source: str) -> tuple[str, Path]:
        if source in ("auto", "files"):
            folder = self.find_files(data_dir)
            if folder is not None:
                return "files", folder
        if source in ("auto", "tfds"):
            folder = self.find_prepared(data_dir)
            if folder is not None:
                return "tfds", folder
        prepared = f"a prepared TFDS folder ({self.tfds}/{self.version} with its dataset_info.json)"
        expected = {
            "files": self.files,
            "tfds": prepared,
            "auto": f"{self.files}, or {prepared}",
        }[source]
        fix = f"Unpack {self.url} there" if source != "tfds" else "Prepare it with TFDS"
        found = f"with no {self.title} in it" if data_dir.is_dir() else "which is not a folder"
        raise KerasdistError(
            f"Received `data_dir` {str(data_dir)!r}, {found}. Expected {expected}. {fix}, or leave "
            "out `data_dir` and `source` to use what is available."
        )

    def find_prepared(self, folder: Path) -> Path | None:
        """The newest prepared version in a TFDS folder; also takes its subfolders themselves."""
        candidates = [folder, *folder.glob("[0-9]*"), *folder.glob(f"{self.tfds}/[0-9]*")]
        prepared = [path for path in candidates if _information(path).get("name") == self.tfds]
        return max(prepared, key=_version, default=None)

    def num_prepared(self, folder: Path, split: str) -> int:
        """The number of examples that dataset_info.json states for a split; 0 if it does not."""
        return sum(
            int(length)
            for found in _information(folder).get("splits", [])
            if found.get("name") == split
            for length in found.get("shardLengths", [])
        )

    def read_prepared(self, folder: Path, split: str, *, whole: bool = True) -> Any:
        """Reads a split: a dict of arrays, or with `whole=False` a list with a dict per example."""
        missing = _why_no_tfds()
        if missing is not None:
            raise KerasdistError(
                f"Received the prepared TFDS folder {str(folder)!r}, but {missing}. Expected the "
                f"package tensorflow-datasets. Install it with `{INSTALL_TFDS}`."
            )
        import tensorflow_datasets as tfds

        try:
            builder = tfds.builder_from_directory(folder)
            dataset = builder.as_dataset(
                split=split, batch_size=-1 if whole else None, shuffle_files=False
            )
            found = tfds.as_numpy(dataset)
            return found if whole else list(found)
        except Exception as error:
            raise KerasdistError(
                f"TFDS cannot read the folder {str(folder)!r} ({named(error)}). Expected all "
                f"files of a prepared {self.title}. Remove the folder and prepare it again."
            ) from error


def has_tfds() -> bool:
    """Whether TFDS is installed. Does not import it."""
    return importlib.util.find_spec("tensorflow_datasets") is not None


def _why_no_tfds() -> str | None:
    """None if TFDS can be imported, else the reason."""
    if not has_tfds():
        return "TFDS is not installed"
    try:
        import tensorflow_datasets  # noqa: F401
    except Exception as error:  # noqa: BLE001 - broken installations fail in many ways
        return f"TFDS cannot be imported ({named(error)})"
    return None


def default_folder() -> Path:
    """The folder where TFDS keeps its data. Does not import TFDS."""
    folder = os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets"
    return Path(folder).expanduser()


def _information(folder: Path) -> dict[str, Any]:
    # If this file exists, the data is complete: TFDS writes it last.
    try:
        return json.loads((folder / "dataset_info.json").read_text())
    except (OSError, ValueError):
        return {}


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name)]


# Tries once per process: training and validation data both ask.
@functools.cache
def _download(data: PublicData, with_tfds: bool) -> tuple[Path | None, str | None]:
    """The folder and None, or None and the reason why the download failed."""
    if with_tfds:
        return _download_with_tfds(data)
    archive = data.archive()
    if archive is None:
        return None, (
            f"{data.title} has no `sha256`, so only TFDS can download it (`{INSTALL_TFDS}`)"
        )
    return downloads.download(archive, data.find_files)


def _download_with_tfds(data: PublicData) -> tuple[Path | None, str | None]:
    reason = _why_unreachable(data.url)
    if reason is not None:
        return None, reason
    try:
        import tensorflow_datasets as tfds

        print(
            f"Downloading {data.title} ({data.megabytes} MB) to {default_folder()}", file=sys.stderr
        )
        builder = tfds.builder(data.tfds, data_dir=default_folder())
        # TFDS prints its progress to the standard output, which belongs to the caller.
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare()
    except Exception as error:  # noqa: BLE001
        # Any failed download means the same to the caller: the data is not available.
        return None, f"the download failed ({named(error)})"
    return Path(builder.data_dir), None


def _why_unreachable(url: str) -> str | None:
    """None if the server answers. Returns within seconds, even if the name lookup hangs."""
    # TFDS downloads with `requests`, too: the same proxies and certificates apply.
    import requests

    outcome: list[str | None] = [f"{url} did not answer in {PROBE_SECONDS:.0f} s"]

    def probe() -> None:
        try:
            requests.head(url, timeout=PROBE_SECONDS, allow_redirects=True).raise_for_status()
            outcome[0] = None
        except Exception as error:  # noqa: BLE001 - any error means: not reachable
            outcome[0] = f"{url} cannot be reached ({type(error).__name__})"

    # The name lookup has no timeout, so it runs in a thread that nobody has to wait for.
    thread = threading.Thread(target=probe, name="kerasdist-probe", daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return outcome[0]


@functools.cache
def _warn_synthetic(data: PublicData, reason: str) -> None:
    lines = (
        f"WARNING: THIS IS NOT {data.title}. Training on SYNTHETIC {data.synthetic}, because",
        f"{reason}.",
        f"The accuracy says nothing about {data.title}. For the real data use --data-dir.",
        "If you want synthetic data, use --source synthetic.",
    )
    bar = "!" * 80
    print(bar, *(f"!! {line}" for line in lines), bar, sep="\n", file=sys.stderr, flush=True)
