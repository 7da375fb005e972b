"""Runs a Python script as `python SCRIPT.py` would."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from kerasdist.errors import DivergedError, KerasdistError
from kerasdist.training.keras_arguments.tracebacks import of_caller

FAILED, DIVERGED, INTERRUPTED = 1, 3, 130
_PACKAGE = str(Path(__file__).resolve().parents[1])


def run_script(path: Path, arguments: Sequence[str] = (), *, debug: bool = False) -> int:
    """Runs a script as `__main__`, and returns the exit code that Python would return.

    Args:
        path: The script.
        arguments: What it finds in `sys.argv` after its name.
        debug: Whether an error of kerasdist shows where in kerasdist it was raised.

    Returns:
        The exit code: 1 after an exception, 3 if a fit diverged, 130 after Ctrl-C.
    """
    name = str(path.absolute())
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=name, __builtins__=builtins, __loader__=SourceFileLoader("__main__", name)
    )
    # They stay until the process ends: what the script leaves behind may look for them.
    sys.modules["__main__"] = main
    sys.argv[:] = [str(path), *arguments]
    sys.path[0] = str(path.resolve().parent)
    try:
        with io.open_code(name) as file:
            code = compile(file.read(), name, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is shown as Python shows it
        _show(error, name, debug=debug)
        if isinstance(error, DivergedError):
            return DIVERGED
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    return 0


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return FAILED


def _show(error: BaseException, script: str, *, debug: bool) -> None:
    """Prints the traceback from the script on. An error of kerasdist ends at the script's call.

    Ctrl-C in a call of kerasdist shows no frames of kerasdist, Keras and TensorFlow.
    """
    frames: list[TracebackType] = []
    found = error.__traceback__
    while found is not None:
        frames.append(found)
        found = found.tb_next
    names = [frame.tb_frame.f_code.co_filename for frame in frames]
    frames = frames[names.index(script) :] if script in names else []
    if isinstance(error, KerasdistError) and not debug:
        inside = (i for i, f in enumerate(frames) if _is_ours(f.tb_frame.f_code.co_filename))
        frames = frames[: next(inside, len(frames))]
    shown: TracebackType | None = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    is_inside = any(_is_ours(frame.tb_frame.f_code.co_filename) for frame in frames)
    if isinstance(error, KeyboardInterrupt) and is_inside and not debug:
        shown = of_caller(shown)
    sys.stdout.flush()
    sys.excepthook(type(error), error.with_traceback(shown), shown)


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)
