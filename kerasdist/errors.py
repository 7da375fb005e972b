"""The exceptions that kerasdist raises on purpose, and the pieces of their messages."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Iterator

# Lines that Keras and TensorFlow put around the message of a layer, and of a compiled function.
_GRAPH = "Graph execution error"
_FRAME = (
    "Exception encountered when",
    "in user code:",
    "File ",
    "Arguments received",
    _GRAPH,
    "Detected at node",
    "<stack traces unavailable>",
)


class KerasdistError(Exception):
    """An error that the caller can fix. The message says what happened and what to do.

    Example:
        >>> from kerasdist import KerasdistError
        >>> issubclass(KerasdistError, Exception)
        True
    """


class KerasArgumentError(KerasdistError, ValueError):
    """An argument that Keras refuses, too. Programs that catch Keras's `ValueError` catch this.

    Example:
        >>> from kerasdist.errors import KerasArgumentError
        >>> issubclass(KerasArgumentError, ValueError)
        True
    """


class UnknownArgumentError(KerasdistError, TypeError):
    """A call with an argument that the function does not have.

    Example:
        >>> from kerasdist.errors import UnknownArgumentError
        >>> issubclass(UnknownArgumentError, TypeError)
        True
    """


class DivergedError(KerasdistError):
    """A loss, gradient or state became NaN or infinite. Nothing of that step was written."""

    def __init__(self, message: str, *, step: int, names: tuple[str, ...]):
        super().__init__(message)
        self.step = step
        self.names = names


class InexactLossError(KerasdistError):
    """The loss depends on how a batch is split, and the batch would be split into shards.

    Example:
        >>> from kerasdist import InexactLossError, KerasdistError
        >>> issubclass(InexactLossError, KerasdistError)
        True
    """


class InexactStateError(KerasdistError):
    """A model's state depends on how a batch is split, and the batch would be split into shards.

    Example:
        >>> from kerasdist.errors import InexactStateError, KerasdistError
        >>> issubclass(InexactStateError, KerasdistError)
        True
    """


class RunFailedError(KerasdistError):
    """A run started and could not continue. Everything it saved is kept.

    Example:
        >>> from kerasdist.errors import KerasdistError, RunFailedError
        >>> issubclass(RunFailedError, KerasdistError)
        True
    """


class OtherRunError(KerasdistError):
    """A checkpoint is of a run with another model, other data or other settings.

    Example:
        >>> from kerasdist.errors import KerasdistError, OtherRunError
        >>> issubclass(OtherRunError, KerasdistError)
        True
    """

    def __init__(self, message: str, *, differences: tuple[str, ...]):
        super().__init__(message)
        self.differences = differences


class OutOfMemoryError(RunFailedError):
    """The memory of a device did not suffice.

    Example:
        >>> from kerasdist.errors import OutOfMemoryError, RunFailedError
        >>> issubclass(OutOfMemoryError, RunFailedError)
        True
    """


class CarefulWarning(UserWarning):
    """Something that a user should look at. On the command line it is a line, without a path.

    Example:
        >>> from kerasdist.errors import CarefulWarning
        >>> issubclass(CarefulWarning, UserWarning)
        True
    """


def warn(text: str) -> None:
    """Gives a `CarefulWarning` at the line of the user's program that called kerasdist."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_inside(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, CarefulWarning, stacklevel=level)


def _is_inside(module: str) -> bool:
    """Whether a frame is kerasdist's, or that of a cached property of it."""
    return module.partition(".")[0] in ("kerasdist", "functools")


def causes(error: BaseException) -> Iterator[BaseException]:
    """The errors that an error was raised from, each once: they may form a circle."""
    seen, cause = {id(error)}, error.__cause__
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the error's type if it has no message.

    Of an error in a compiled function of TensorFlow, this is the line that says what is wrong.

    Example:
        >>> first_line(ValueError("bad shape\\nwith a long story")), first_line(ValueError())
        ('bad shape', 'ValueError')
    """
    lines = str(error).strip().splitlines()
    if lines and lines[0].startswith(_GRAPH):
        return keras_reason(error) or type(error).__name__
    return lines[0] if lines else type(error).__name__


def keras_reason(error: BaseException) -> str:
    """Returns the line of an error from Keras that says what is wrong, or "" without a message.

    Leaves out what Keras and TensorFlow add: frames, colors and names of nodes.

    Example:
        >>> keras_reason(ValueError("Exception encountered when calling A.call().\\n\\nbad shape"))
        'bad shape'
    """
    text = re.sub(r"\x1b\[[0-9;]*m|{{.*?}}", "", str(error)).split("Error encountered:")[-1]
    # Several errors of one call come as a list: "2 root error(s) found. (0) INTERNAL: ...".
    text = re.sub(r"(?m)^\d+ root error\(s\) found\.|^\s*\(\d+\) [A-Z_]+:", "", text)
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line and not line.startswith(_FRAME)), "")


def closest(name: object, known: Iterable[object]) -> str:
    """Returns ` Did you mean 'x'?` if a known name is similar, else an empty string.

    Example:
        >>> closest("lable", ["image", "label"])
        " Did you mean 'label'?"
    """
    wanted = _letters(name)
    found = [(_distance(wanted, _letters(k)), str(k)) for k in known]
    near = [(typos, k) for typos, k in found if typos <= _most_typos(wanted, _letters(k))]
    # Of equally near names, the first one.
    return f" Did you mean {min(near, key=lambda n: n[0])[1]!r}?" if near else ""


def _letters(name: object) -> str:
    """What of a name is compared: `--batch-size` is `batch_size`."""
    return str(name).lower().lstrip("-").replace("_", "-")


def _most_typos(name: str, known: str) -> int:
    """How much a name may differ from a known one: one in five letters, or missing last words."""
    longer, shorter = (known, name) if len(known) > len(name) else (name, known)
    if len(shorter) > 2 and re.match(rf"{re.escape(shorter)}[-/.:\d]", longer):
        return len(longer)
    return 1 + len(longer) // 5


def _distance(a: str, b: str) -> int:
    """How many letters must be added, removed, replaced or swapped with their neighbour."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        row = [i]
        for j in range(1, len(b) + 1):
            typo = a[i - 1] != b[j - 1]
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + typo))
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
