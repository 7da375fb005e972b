"""The versions of Python, TensorFlow and Keras that kerasdist works with.

kerasdist uses names of TensorFlow and Keras that are not public, and they move between versions.
So it refuses versions that were never tested, instead of failing somewhere inside a training.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

from kerasdist.errors import KerasdistError

# Set to "1", the check below is left out. The tests with newer versions do so (`.ci/canary`).
ANY = "KERASDIST_ANY_VERSION"


@dataclass(frozen=True)
class Window:
    """The tested versions of one package.

    Attributes:
        title: How people call it.
        oldest: The first one.
        newest: The newest minor version: 3.15 stands for every 3.15.x.
        packages: The names under which it can be installed.
    """

    title: str
    oldest: str
    newest: str
    packages: tuple[str, ...]

    def includes(self, version: str) -> bool:
        """Whether a version was tested, or is a newer patch of one that was.

        Example:
            >>> [KERAS.includes(v) for v in ("3.13.1", "3.13.2", "3.15.9", "3.16.0rc1")]
            [False, True, True, False]
        """
        found = number(version)
        return found >= number(self.oldest) and found[:2] <= number(self.newest)


PYTHON = Window("Python", "3.11", "3.13", ())
TENSORFLOW = Window(
    "TensorFlow", "2.19", "2.21", ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly")
)
KERAS = Window("Keras", "3.13.2", "3.15", ("keras", "keras-nightly"))


def installed(window: Window) -> str | None:
    """The installed version of a package, found without importing it; None if it is not found."""
    from importlib import metadata  # It takes a while, and a command's help does not need it.

    for name in window.packages:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def check() -> None:
    """Refuses a system, a Python, a TensorFlow or a Keras that kerasdist was not tested with."""
    check_system(sys.platform)
    if os.environ.get(ANY) != "1":
        refuse_others(".".join(map(str, sys.version_info[:3])), installed)


def check_system(system: str) -> None:
    """Refuses Windows, given `sys.platform`. Comes before modules that need `fcntl`."""
    if system == "win32":
        raise KerasdistError(
            "kerasdist does not run on Windows: it locks the folder of a run with `fcntl`, which "
            "Windows does not have, and TensorFlow has no GPUs there. Use WSL 2 (Linux inside "
            "Windows); kerasdist was never tried there."
        )


def refuse_others(python: str, version_of: Callable[[Window], str | None]) -> None:
    """Raises a KerasdistError that names what does not fit, and what to install.

    Args:
        python: The version of Python.
        version_of: Gives the installed version of TensorFlow and of Keras.
    """
    found = [(PYTHON, python), *((w, version_of(w)) for w in (TENSORFLOW, KERAS))]
    for window, version in found:
        # A package that is not found may be installed in another way: its import says what is
        # wrong.
        if version is not None and not window.includes(version):
            raise KerasdistError(
                f"Received {window.title} {version}. kerasdist works with {window.title} "
                f"{window.oldest} to {window.newest}. {_remedy(window)} To try it as it is, set "
                f"{ANY}=1: nobody has tested that."
            )


def _remedy(window: Window) -> str:
    if not window.packages:
        return "Make an environment with one of them."
    major, minor = number(window.newest)
    wanted = f"{window.packages[0]}>={window.oldest},<{major}.{minor + 1}"
    return f'Install one of them: pip install "{wanted}".'


def number(version: str) -> tuple[int, ...]:
    """(3, 15, 1) of "3.15.1", also of "3.15.1rc0" and "3.15.1.dev3"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
