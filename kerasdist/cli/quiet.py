"""Hides TensorFlow's start-up messages, and shows kerasdist's warnings without a path."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from kerasdist.devices.start_messages.hiding import LEVEL, ONLY_FATAL, held_back
from kerasdist.errors import CarefulWarning
from kerasdist.phases import displays
from kerasdist.phases.phase import phase
from kerasdist.phases.text import wrapped


@contextlib.contextmanager
def tensorflow_messages(shown: bool) -> Iterator[None]:
    """Hides what is written to file descriptor 2 inside the block, unless `shown`.

    It is shown after all if the block raises, or if a fatal error ends the process in it.
    """
    if shown:
        yield
        return
    os.environ.setdefault(LEVEL, ONLY_FATAL)
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with held_back(everything=True):
        yield


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Shows each `CarefulWarning` as a line `careful: ...` on stderr. Others stay as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", CarefulWarning)
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, CarefulWarning):
                text = f"careful: {message}"
                if displays.can_redraw(sys.stderr):
                    text = wrapped(text, shutil.get_terminal_size().columns)
                print(text, file=sys.stderr, flush=True)
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        yield


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Says that TensorFlow starts, unless it has started already."""
    if "tensorflow" in sys.modules:
        yield
        return
    with phase("starting TensorFlow", at_once=True):
        yield


def start_tensorflow() -> None:
    """Imports TensorFlow and looks for devices, which is when it prints most of its messages."""
    import_module("tensorflow").config.list_physical_devices()
