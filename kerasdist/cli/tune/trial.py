"""The process of one trial of `kerasdist tune`: `kerasdist fit`, which asks after each epoch.

It reads its arguments from the standard input. After each epoch it writes one line of JSON with the
metrics, and reads one that says whether to stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

# Before TensorFlow is imported: nobody reads its messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from kerasdist.cli.commands.fit import fit
from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.errors import DivergedError, KerasdistError, OutOfMemoryError, RunFailedError
from kerasdist.runs.metrics_log import finite
from kerasdist.training.epochs.signals import Terminated

Say = Callable[[dict[str, Any]], None]
_PR_SET_PDEATHSIG = 1


class Asking(keras.callbacks.Callback):
    """Tells the study the metrics of each epoch, and stops if it says so."""

    def __init__(self, source: TextIO, say: Say, *, hears_of_parent: bool):
        super().__init__()
        self._source, self._say = source, say
        self._hears_of_parent = hears_of_parent

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        values = {name: finite(value) for name, value in (logs or {}).items()}
        self._say({"epoch": epoch + 1, "logs": values})
        line = self._source.readline()
        if not line:  # Nobody listens any more: the run is saved, and continued by another start.
            # A second signal would end the process at once, without saving.
            if not self._hears_of_parent:
                os.kill(os.getpid(), signal.SIGTERM)
        elif json.loads(line)["stop"]:
            self.model.stop_training = True


def end_with(parent: int) -> bool:
    """Lets this process save and end if its parent is killed. Returns whether that works here."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    except (AttributeError, OSError):
        return False  # It is noticed after the epoch.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
    return True


def serve(source: TextIO, say: Say) -> int:
    """Trains, and says how that ended."""
    request = json.loads(source.readline())
    asking = Asking(source, say, hears_of_parent=end_with(request["parent"]))
    try:
        code = fit(parse_fit(request["argv"]), callbacks=[asking])
    except DivergedError as error:
        say({"end": "diverged", "error": str(error)})
        return 3
    except OutOfMemoryError as error:
        say({"end": "out of memory", "error": str(error)})
        return 1
    except KerasdistError as error:
        say(
            {"end": "failed" if isinstance(error, RunFailedError) else "usage", "error": str(error)}
        )
        return 1
    except (KeyboardInterrupt, Terminated):
        say({"end": "interrupted"})
        return 143
    say({"end": "finished"})
    return code


def main() -> int:
    """Answers on the standard output, and sends everything else to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(content: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # The study's process was killed.
            print(json.dumps(content), file=answers, flush=True)

    return serve(sys.stdin, say)


if __name__ == "__main__":
    sys.exit(main())
