"""Finds out how a file writes the numbers of columns that a model learnt from another file."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kerasdist.tables.values import Style, styles_of

# Digits are alike for a style; but a group of thousands does not begin with 0.
_DIGITS = str.maketrans("0123456789\0", "1" * 10 + "0")
# No number is longer.
_LONGEST = 40


@dataclass(frozen=True)
class Written:
    """How a column writes its numbers, and whether nothing in the file proves that."""

    style: Style
    is_guess: bool = False


@dataclass
class StyleCount:
    """In which styles the values of a column are numbers; those with a mark, as all others fit.

    Attributes:
        fits: How many values are numbers in each style.
    """

    fits: Counter[Style] = field(default_factory=Counter)

    def add(self, values: Sequence[str]) -> None:
        """Sees more values."""
        text = "\n" + "\n".join(values)  # All at once, which is much faster.
        if "." not in text and "," not in text:
            return
        text = text.replace("\n0", "\n\0").replace("\n-0", "\n-\0").translate(_DIGITS)
        for shape, count in Counter(text.split("\n")).items():
            if ("." in shape or "," in shape) and len(shape) <= _LONGEST:
                self.fits.update(dict.fromkeys(_styles_of(shape), count))

    def best(self, *, commas: bool) -> list[Style]:
        """The styles that most values fit, the likeliest first; empty if no value has a mark."""
        most = max(self.fits.values(), default=0)
        return [style for style in in_order(commas) if most and self.fits[style] == most]


_styles_of = functools.lru_cache(maxsize=4096)(styles_of)


def in_order(commas: bool) -> tuple[Style, ...]:
    """The styles, the likeliest first. A lone comma hardly is a decimal one between commas."""
    return ("point", "comma", "thousands") if commas else ("point", "thousands", "comma")


def own_styles(
    learnt: Mapping[str, Style],
    counts: Mapping[str, StyleCount],
    *,
    commas: bool,
    is_like_it: bool,
    guessed: Collection[str] = (),
) -> dict[str, Style]:
    """The style of each column in a file.

    A value like 1.234 fits several styles. Then the other columns decide, else the file's format.

    Args:
        learnt: The style of each column in the training's file.
        counts: What the columns hold in this file.
        commas: Whether a lone comma in this file is a decimal comma.
        is_like_it: Whether that is so in the training's file, too.
        guessed: The columns whose style was a guess. They keep it: else the meaning of a value
            would change with the other values of its file.
    """
    best = {name: counts[name].best(commas=commas) for name in learnt}
    marks = {name: {mark(style) for style in styles} for name, styles in best.items()}
    sure = [name for name in learnt if len(marks[name]) == 1]
    same = [name for name in sure if mark(learnt[name]) in marks[name]]
    found = {}
    for name, style in learnt.items():
        candidates = best[name] or [style]
        if name in guessed:
            found[name] = style
        elif len(marks[name]) > 1 and not same and sure:
            # The file has another decimal mark where that is sure.
            found[name] = next(s for s in candidates if mark(s) != mark(style))
        elif style in candidates and (len(marks[name]) < 2 or same or is_like_it):
            found[name] = style
        else:
            found[name] = candidates[0]
    return found


def mark(style: Style) -> str:
    """The decimal mark of a style."""
    return "," if style == "comma" else "."
