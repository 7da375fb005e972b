"""Hides TensorFlow's start-up messages."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from importlib import import_module

from kerasdist.devices.start_messages.hiding import LEVEL, ONLY_FATAL, held_back
from kerasdist.phases.phase import phase


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
