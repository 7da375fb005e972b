"""The exceptions that kerasdist raises on purpose."""


class KerasdistError(Exception):
    """Something the caller can fix: the message says what was received, expected, and to do.

    Example:
        >>> from kerasdist import KerasdistError
        >>> issubclass(KerasdistError, Exception)
        True
    """


class DivergedError(KerasdistError):
    """A loss, gradient or state became NaN or infinite; nothing of that step was written."""

    def __init__(self, message: str, *, step: int, names: tuple[str, ...]):
        super().__init__(message)
        self.step = step
        self.names = names


class InexactLossError(KerasdistError):
    """A loss that depends on how a batch is cut, where it would be cut.

    Example:
        >>> from kerasdist import InexactLossError, KerasdistError
        >>> issubclass(InexactLossError, KerasdistError)
        True
    """


class RunFailedError(KerasdistError):
    """A run that had started could not continue; what it had saved is kept.

    Example:
        >>> from kerasdist.errors import KerasdistError, RunFailedError
        >>> issubclass(RunFailedError, KerasdistError)
        True
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none.

    Example:
        >>> first_line(ValueError("bad shape\\nwith a long story")), first_line(ValueError())
        ('bad shape', 'ValueError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def closest(name: str, known) -> str:
    """` Did you mean 'x'?` when a known name is near, else nothing."""
    from difflib import get_close_matches

    near = get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
