"""Tracebacks with the caller's frames only, as Keras shortens its own.

Left out are frames of kerasdist, Keras, TensorFlow and Python's library.
"""

from __future__ import annotations

import os
import sysconfig
from types import TracebackType

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError, causes

_PACKAGES = tuple(
    os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for file in (os.path.dirname(os.path.dirname(__file__)), keras.__file__, tf.__file__)
)
_PYTHON = os.path.join(sysconfig.get_path("stdlib"), "")


def shortened(error: Exception) -> TracebackType | None:
    """The traceback to show of an error that leaves kerasdist; its causes get theirs, too.

    An error that no code of the caller took part in, and that is not kerasdist's, keeps its frames:
    it is a bug. `keras.config.disable_traceback_filtering()` keeps all frames of all errors.
    """
    if not keras.config.is_traceback_filtering_enabled():
        return error.__traceback__
    own = of_caller(error.__traceback__)
    if own is None and not isinstance(error, KerasdistError):
        return error.__traceback__
    for cause in causes(error):
        cause.__traceback__ = of_caller(cause.__traceback__)
    return own


def of_caller(found: TracebackType | None) -> TracebackType | None:
    """The frames of the caller's code only; None if there are none."""
    frames = []
    while found is not None:
        file = found.tb_frame.f_code.co_filename
        is_python = file.startswith(_PYTHON) and "-packages" not in file
        if not is_python and not file.startswith(_PACKAGES):
            frames.append(found)
        found = found.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
