"""Times and bars as text, for every display."""

from __future__ import annotations

GAP = "  "


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


def shortened(text: str, width: int, *, ascii_only: bool = False) -> str:
    """A text of at most `width` characters; what is left out is replaced by an ellipsis."""
    if len(text) <= width:
        return text
    end = "..." if ascii_only else "…"
    return text[: max(width - len(end), 0)] + end
