"""Times, numbers and bars as text, for every display."""

from __future__ import annotations

import math
import re
import textwrap

GAP = "  "
_NO_BREAK = "\x00"
# The beginning of a line up to where its text begins: `data       1,437 examples`.
_TITLE = re.compile(r"(?:\S+(?: \S+)?)?  +")
# A line that a shell or Python is to run, after its title; or the rest of one.
_COMMAND = re.compile(r"(?:\S+(?: \S+)?  +)?kerasdist(?:\.\w+\(| (?:fit|evaluate) )|\s*--")
# Numbers up to here are written without an exponent, from the second on with commas.
_MOST_PLAIN, _FIRST_COMMA = 1e9, 1000


def duration(seconds: float) -> str:
    """`0:05`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def decimal(value: float, digits: int = 4) -> str:
    """A number with as many significant digits, but with its whole part in full below 1e9.

    Example:
        >>> decimal(0.123456), decimal(34771.2), decimal(1234.567, digits=6), decimal(2e-5)
        ('0.1235', '34,771', '1,234.57', '2e-05')
    """
    rounded = float(f"{value:.{digits}g}")
    if not _FIRST_COMMA <= abs(rounded) < _MOST_PLAIN:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def bar(width: int, share: float, *, ascii_only: bool = False) -> tuple[str, str]:
    """The done part of a bar and its rest."""
    # Two characters, so that the bar is visible without colours.
    done = int(share * width)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    return full * done, empty * (width - done)


def wrapped(text: str, width: int) -> str:
    """A text on several lines, broken between words.

    Code in backticks and lines with a command to copy stay in one piece. What follows a title and
    two spaces continues below itself.
    """
    code = re.sub(r"`[^`\n]+`|\w+ = \S+", lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = [line if _COMMAND.match(line) else _filled(line, width) for line in code.split("\n")]
    return "\n".join(lines).replace(_NO_BREAK, " ")


def _filled(line: str, width: int) -> str:
    title = _TITLE.match(line)
    indent = len(title[0]) if title is not None else 0
    if indent > width // 2:
        indent = 0
    return textwrap.fill(
        line,
        width,
        break_long_words=False,
        break_on_hyphens=False,
        subsequent_indent=" " * indent,
    )


def shortened(text: str, width: int, *, ascii_only: bool = False) -> str:
    """A text of at most `width` characters; what is left out is replaced by an ellipsis."""
    if len(text) <= width:
        return text
    end = "..." if ascii_only else "…"
    return text[: max(width - len(end), 0)] + end
