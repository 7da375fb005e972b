"""Where a recipe's data comes from: its own files, TFDS, or a synthetic set."""

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

SOURCES = ("auto", "files", "tfds", "synthetic")
PROBE_SECONDS = 3.0


@dataclass(frozen=True)
class PublicData:
    """A public data set that a recipe is for, and its substitute where there is none.

    Attributes:
        title: What people call it.
        tfds: Its name in TFDS.
        version: One that TFDS prepares, for messages.
        url: Where its files are.
        megabytes: How large the download is.
        files: What the files are, for messages.
        find_files: The folder of the files at or below a folder; None if they are not there.
        synthetic: What the substitute consists of.

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

    def locate(
        self, source: str, data_dir: str | None, *, warn: bool = True
    ) -> tuple[str, Path | None]:
        """The source and its folder; warns if it is synthetic and nobody asked for that.

        Args:
            source: "files", "tfds", "synthetic", or "auto" for the first of them that there is.
            data_dir: A folder in which the data must be, or None.
            warn: False for a mere look.
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
        if source == "files":
            raise KerasdistError(
                "Received `source` 'files' without `data_dir`. Expected the folder of "
                f"{self.title}'s files. Unpack {self.url} and give its folder as `data_dir`."
            )
        folder, reason = self.find_prepared(default_folder()), None
        if folder is None:
            folder, reason = _download(self)
        if folder is not None:
            return "tfds", folder
        if source == "tfds":
            raise KerasdistError(
                f"Received `source` 'tfds', and {default_folder()} holds no prepared {self.title} "
                f"and {reason}. Expected a prepared folder or a network to download from. Prepare "
                "it where there is a network and give that folder as `data_dir`, or set `source` "
                "to synthetic."
            )
        if warn:
            _warn_synthetic(self, str(reason))
        return "synthetic", None

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
        found = f"no {self.title} in it" if data_dir.is_dir() else "which is not a folder"
        raise KerasdistError(
            f"Received `data_dir` {str(data_dir)!r}, {found}. Expected {expected}. {fix}, or leave "
            "`data_dir` and `source` out to take what there is."
        )

    def find_prepared(self, folder: Path) -> Path | None:
        """The newest prepared one in a TFDS folder, in its own folder, or the version itself."""
        candidates = [folder, *folder.glob("[0-9]*"), *folder.glob(f"{self.tfds}/[0-9]*")]
        prepared = [path for path in candidates if _information(path).get("name") == self.tfds]
        return max(prepared, key=_version, default=None)

    def num_prepared(self, folder: Path, split: str) -> int:
        """How many examples the description of a prepared folder counts; 0 if it does not."""
        return sum(
            int(length)
            for found in _information(folder).get("splits", [])
            if found.get("name") == split
            for length in found.get("shardLengths", [])
        )

    def read_prepared(self, folder: Path, split: str, *, whole: bool = True) -> Any:
        """A split of a prepared folder: a dict of arrays, or of `whole=False` a list of dicts."""
        try:
            import tensorflow_datasets as tfds
        except ImportError as error:
            raise KerasdistError(
                f"Received the prepared TFDS folder {str(folder)!r}, and TFDS is not installed. "
                "Expected the package tensorflow-datasets. Install it with `pip install "
                "tensorflow-datasets`."
            ) from error
        try:
            builder = tfds.builder_from_directory(folder)
            dataset = builder.as_dataset(
                split=split, batch_size=-1 if whole else None, shuffle_files=False
            )
            found = tfds.as_numpy(dataset)
            return found if whole else list(found)
        except Exception as error:
            raise KerasdistError(
                f"Received the folder {str(folder)!r}, which TFDS cannot read "
                f"({_first_line(error)}). Expected all files of a prepared {self.title}. Remove "
                "the folder and prepare it again."
            ) from error


def default_folder() -> Path:
    """Where TFDS keeps its data, found without importing it."""
    folder = os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets"
    return Path(folder).expanduser()


def _information(folder: Path) -> dict[str, Any]:
    # TFDS writes this file last, into a folder that it then renames.
    try:
        return json.loads((folder / "dataset_info.json").read_text())
    except (OSError, ValueError):
        return {}


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name)]


# One try a process: training and validation ask separately.
@functools.cache
def _download(data: PublicData) -> tuple[Path | None, str | None]:
    """The folder that TFDS downloaded to and None, or None and why there is none."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        return None, "the package tensorflow-datasets is not installed"
    reason = _why_unreachable(data.url)
    if reason is not None:
        return None, reason
    try:
        import tensorflow_datasets as tfds

        print(
            f"Downloading {data.title} ({data.megabytes} MB) to {default_folder()}", file=sys.stderr
        )
        builder = tfds.builder(data.tfds, data_dir=default_folder())
        # TFDS prints its progress, and the standard output is the caller's.
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare()
    except Exception as error:  # noqa: BLE001
        # Whatever goes wrong in a download is the same to the caller: there is no such data.
        return None, f"the download failed ({_first_line(error)})"
    return Path(builder.data_dir), None


def _why_unreachable(url: str) -> str | None:
    """None if a server answers, within seconds also where the resolver never does."""
    # What TFDS downloads with, so that proxies and certificates are those of the download.
    import requests

    outcome: list[str | None] = [f"{url} did not answer in {PROBE_SECONDS:.0f} s"]

    def probe() -> None:
        try:
            requests.head(url, timeout=PROBE_SECONDS, allow_redirects=True).raise_for_status()
            outcome[0] = None
        except Exception as error:  # noqa: BLE001 - an answer is asked for, not a reason
            outcome[0] = f"{url} cannot be reached ({type(error).__name__})"

    # The name lookup has no timeout of its own, so it happens where nobody waits for its end.
    thread = threading.Thread(target=probe, name="kerasdist-probe", daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return outcome[0]


@functools.cache
def _warn_synthetic(data: PublicData, reason: str) -> None:
    lines = (
        f"WARNING: THIS IS NOT {data.title}. Training on SYNTHETIC {data.synthetic}, because",
        f"{reason}.",
        f"The accuracy says nothing about {data.title}. For the real data give --data-dir,",
        "or say --source synthetic if this is what you want.",
    )
    bar = "!" * 80
    print(bar, *(f"!! {line}" for line in lines), bar, sep="\n", file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
