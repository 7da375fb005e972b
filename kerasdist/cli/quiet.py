"""Hides TensorFlow's start-up messages."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module


@contextlib.contextmanager
def tensorflow_messages(shown: bool) -> Iterator[None]:
    """Hides what TensorFlow prints inside the block, unless `shown` or the block raises.

    TensorFlow's C++ code writes its first messages straight to file descriptor 2, before it reads
    its log level. So the descriptor itself is redirected.
    """
    if shown:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink:
        kept = os.dup(2)
        os.dup2(sink.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(kept, 2)
            sink.seek(0)
            sys.stderr.write(sink.read().decode(errors="replace"))
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def start_tensorflow() -> None:
    """Imports TensorFlow and looks for devices, which is when it prints most of its messages."""
    import_module("tensorflow").config.list_physical_devices()
