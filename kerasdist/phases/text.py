"""Times and bars as text, for every display."""

from __future__ import annotations

import re
import textwrap

GAP = "  "
_NO_BREAK = "\x00"


def duration(seconds: float) -> str:
    """`0:05`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def bar(width: int, share: float, *, ascii_only: bool = False) -> tuple[str, str]:
    """The done part of a bar and its rest."""
    # Two characters, so that the bar is visible without colours.
    done = int(share * width)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    return full * done, empty * (width - done)


def wrapped(text: str, width: int) -> str:
    """A text on several lines, broken between words. Code in backticks stays in one piece."""
    code = re.sub(r"`[^`\n]+`", lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = [
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in code.split("\n")
    ]
    return "\n".join(lines).replace(_NO_BREAK, " ")


def shortened(text: str, width: int, *, ascii_only: bool = False) -> str:
    """A text of at most `width` characters; what is left out is replaced by an ellipsis."""
    if len(text) <= width:
        return text
    end = "..." if ascii_only else "…"
    return text[: max(width - len(end), 0)] + end
