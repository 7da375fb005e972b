"""Single values of a table: what is missing, and how text becomes numbers and dates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date
from typing import Literal

# Compared in lower case, without blanks around them.
MISSING = ("", "na", "n/a", "#n/a", "nan", "<na>", "null", "none", "nil", "?", "-", "--")
_MISSING = frozenset(MISSING)
# Of these, a target that is a string may mean a class: None beside Insomnia, or - beside +.
MAY_BE_CLASSES = frozenset({"none", "nil", "-", "--"})
# What surrounds a value without being part of it. `tf.strings.strip` removes the same.
BLANKS = " \t\n\v\f\r"

# Above this, float32 does not hold all whole numbers.
LARGEST_EXACT = 2**24

# The pairs of strings that mean no and yes, in lower case.
BOOLEANS = ({"true", "false"}, {"yes", "no"}, {"t", "f"}, {"y", "n"})

# A category that is a whole number is the same with zeros after the point.
WHOLE = r"^([-+]?[0-9]+)\.0+$"
_WHOLE = re.compile(WHOLE)

# How numbers are written: 1234.5, 1234,5 (or 1.234,5), or 1,234.5.
Style = Literal["point", "comma", "thousands"]
_UNITS = "$€£¥%"
_EXPONENT = r"(e[-+]?\d+)?|[-+]?inf(inity)?"
# A group of thousands never begins with 0: 0.125 has a decimal point.
_PATTERNS: dict[Style, re.Pattern[str]] = {
    "point": re.compile(rf"[-+]?(\d+\.?\d*|\.\d+){_EXPONENT}", re.IGNORECASE),
    "comma": re.compile(
        rf"[-+]?((\d+|[1-9]\d{{0,2}}(\.\d{{3}})+)(,\d+)?|,\d+){_EXPONENT}", re.IGNORECASE
    ),
    "thousands": re.compile(
        rf"[-+]?((\d+|[1-9]\d{{0,2}}(,\d{{3}})+)(\.\d*)?|\.\d+){_EXPONENT}", re.IGNORECASE
    ),
}

# Dates are ISO only: nobody can tell whether 03/04/2024 is in March.
DATE = r"(\d{4})-(\d\d)-(\d\d)([ T](\d\d):(\d\d)(:(\d\d)(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?"
_DATE = re.compile(DATE)
_EPOCH = date(1970, 1, 1).toordinal()


def is_missing(value: str) -> bool:
    """Whether a value says that there is none.

    Example:
        >>> [is_missing(value) for value in (" ", "NA", "?", "0", "nano")]
        [True, True, True, False, False]
    """
    return value.strip(BLANKS).lower() in _MISSING


def styles_of(value: str) -> frozenset[Style]:
    """The ways of writing numbers in which a value is a number; empty if it is not one.

    Example:
        >>> sorted(styles_of("1,5")), sorted(styles_of("1,500")), sorted(styles_of("12%"))
        (['comma'], ['comma', 'thousands'], ['comma', 'point', 'thousands'])
        >>> sorted(styles_of("1.5")), sorted(styles_of("twelve"))
        (['point', 'thousands'], [])
    """
    text = _bare(value)
    return frozenset(style for style, pattern in _PATTERNS.items() if pattern.fullmatch(text))


def number(value: str, style: Style) -> float:
    """A value as a number; NaN if it is missing, not a number, or written in another style.

    Example:
        >>> number("1,5", "comma"), number("$1,500", "thousands"), number("1.5", "comma")
        (1.5, 1500.0, nan)
    """
    text = _bare(value)
    if not _PATTERNS[style].fullmatch(text):
        return math.nan
    if style == "comma":
        text = text.replace(".", "").replace(",", ".")
    elif style == "thousands":
        text = text.replace(",", "")
    return float(text)


def numbers(values: Iterable[str], style: Style) -> list[float]:
    """Many values as numbers: the plain way first, which is faster."""
    values = list(values)
    if style == "point":
        try:
            found = [math.nan if is_missing(value) else float(value) for value in values]
        except ValueError:
            pass
        else:
            if not any("_" in value for value in values):  # Python takes 1_000 for 1000.
                return found
    known: dict[str, float] = {}
    return [known[v] if v in known else known.setdefault(v, number(v, style)) for v in values]


def category(value: str, *, is_boolean: bool = False) -> str:
    """The category that a value means: 1001.0 is 1001, and of booleans, TRUE is true.

    Example:
        >>> category(" 1001.0"), category("1.5"), category("Yes"), category("Yes", is_boolean=True)
        ('1001', '1.5', 'Yes', 'yes')
    """
    text = value.strip(BLANKS)
    return text.lower() if is_boolean else _WHOLE.sub(r"\1", text)


def days(value: str) -> float:
    """A date as days since 1970, with the time of the day as a part; NaN if it is not one.

    Time zones are read over: a table hardly mixes them.

    Example:
        >>> days("1970-01-02"), days("1970-01-01 18:00"), days("yesterday")
        (1.0, 0.75, nan)
    """
    match = _DATE.fullmatch(value.strip(BLANKS))
    if match is None:
        return math.nan
    try:
        whole = date(int(match[1]), int(match[2]), int(match[3])).toordinal() - _EPOCH
    except ValueError:
        return math.nan
    hour, minute, second = (int(match[i] or 0) for i in (5, 6, 8))
    return whole + (hour * 3600 + minute * 60 + second) / 86400


def is_unclear_date(value: str) -> bool:
    """Whether a value is written like a date in a way that does not say which number the month is.

    Example:
        >>> is_unclear_date("03/04/2024"), is_unclear_date("2024-03-04")
        (True, False)
    """
    return _OTHER_DATE.fullmatch(value.strip(BLANKS)) is not None


_OTHER_DATE = re.compile(
    r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d\d)([ T]\d{1,2}:\d\d.*)?|\d{4}/\d{1,2}/\d{1,2}.*"
)


def _bare(value: str) -> str:
    """A value without units, with its sign in front: ($5.50) is -5.50."""
    text = value.strip(BLANKS).replace("\N{MINUS SIGN}", "-")
    sign = ""
    if text[:1] in ("-", "+"):
        sign, text = text[0], text[1:]
    elif text[:1] == "(" and text[-1:] == ")" and text[1:2] not in ("-", "+"):
        sign, text = "-", text[1:-1]
    return sign + text.strip(BLANKS).strip(_UNITS).strip(BLANKS)
