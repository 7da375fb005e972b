"""Hides what TensorFlow's C++ code prints, unless the user's own setting asks for it.

`TF_CPP_MIN_LOG_LEVEL` hides nearly everything. But some messages come while TensorFlow is imported,
before its code reads the level (seen with `TF_CPP_MIN_LOG_LEVEL=3` on a machine without a GPU):
TensorFlow 2.19 says that it cannot register cuDNN and cuBLAS, and that a "computation placer" is
registered already; 2.21 says that oneDNN is on and that there are no CUDA drivers. They are written
straight to file descriptor 2, so this is what is redirected during the import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from kerasdist.devices.start_messages.filter import FAILED, PASSED

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Information, warnings and errors are hidden; fatal errors are shown.
ONLY_FATAL = "3"
_SECONDS_TO_END = 5.0


def hide_in_programs() -> None:
    """Hides the messages of a TensorFlow that is imported later. Does not import it."""
    if "tensorflow" not in sys.modules and os.environ.setdefault(LEVEL, ONLY_FATAL) == ONLY_FATAL:
        sys.meta_path.insert(0, _QuietImport())


class _QuietImport:
    """Finds nothing itself: it makes the import of TensorFlow hold back messages, once."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            self._make_quiet(spec.loader)
        return spec

    def _make_quiet(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Not earlier: other packages only look whether there is a TensorFlow.
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            del loader.exec_module
            with held_back():
                load(module)

        # Of this loader alone: each module has its own.
        loader.exec_module = exec_module


@contextlib.contextmanager
def held_back(*, everything: bool = False) -> Iterator[None]:
    """Hides TensorFlow's messages on file descriptor 2, or all lines there.

    They are shown after all if the block raises, or if a fatal error ends the process in it.
    """
    import subprocess  # Not while a command's help is waited for.

    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("filter.py"))]
    _flush()
    try:
        kept = os.dup(2)
    except OSError:  # There is no standard error.
        yield
        return
    try:
        process = subprocess.Popen(
            [*command, *(["everything"] if everything else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=kept,
            start_new_session=True,  # Ctrl-C is for the program.
        )
    except OSError:  # No more processes: then the messages are shown.
        os.close(kept)
        yield
        return
    pipe: Any = process.stdin
    os.dup2(pipe.fileno(), 2)
    last = PASSED
    try:
        yield
    except Exception:
        last = FAILED
        raise
    finally:
        _flush()
        os.dup2(kept, 2)
        os.close(kept)
        with contextlib.suppress(OSError), pipe:  # The process was killed.
            pipe.write(last)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # None, or closed.
        sys.stderr.flush()
