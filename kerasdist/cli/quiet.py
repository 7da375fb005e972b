"""TensorFlow's own messages: kept off the screen, unless they are asked for."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any


@contextlib.contextmanager
def tensorflow_messages(shown: bool) -> Iterator[None]:
    """Keeps TensorFlow's own messages off the screen, unless they are asked for.

    Those of its start are written by C++ code before it reads its own log level, straight to file
    descriptor 2. They are shown if the block raises.
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


def load_command(module: str, verbose: bool) -> Any:
    """Imports a command and starts TensorFlow, without its messages unless `verbose`."""
    with tensorflow_messages(verbose):
        loaded = import_module(f"kerasdist.cli.{module}")
        # Here, not at its first use: what TensorFlow says about devices is still held back.
        import_module("tensorflow").config.list_physical_devices()
    return loaded
