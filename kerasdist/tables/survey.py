"""Looks at every value of a table once, and remembers little: what kinds of values a column has."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerasdist.tables.files.source import Source
from kerasdist.tables.values import (
    BLANKS,
    BOOLEANS,
    Style,
    days,
    is_missing,
    is_unclear_date,
    number,
    styles_of,
)

# Of more different values, no column keeps a list.
MOST_VALUES = 100_000
# Of a longer value, only its beginning and a hash are kept.
LONGEST = 200
_BEGINNING = 60


@dataclass
class ColumnSurvey:
    """What is known about a column after its rows were seen.

    Attributes:
        name: The column.
        present: How many rows have a value.
        missing: How many have none.
        values: The different values and how often they come; cleared when there are too many. Of
            a long one, the beginning and a hash.
        has_long: Whether some values are longer than `LONGEST`.
        unsaid: The texts that stand for missing values and how often they come.
        odd: The first value that is not a number.
        is_many: Whether there are more different values than `MOST_VALUES`.
        num_repeats: How many rows have a value that an earlier row has. If there are too many
            values to keep, only rows near each other are compared.
        numbers: How many values are numbers, in each style.
        separated: How many numbers have a point or a comma.
        small: How many numbers without one are below 1000.
        large: How many numbers without one are not.
        whole: How many values are whole numbers, in each style.
        dates: How many are ISO dates.
        unclear_dates: How many are dates in another form.
        words: The number of words in all values.
        lowest: The lowest number.
        highest: The highest number.
    """

    name: str
    present: int = 0
    missing: int = 0
    values: Counter[str] = field(default_factory=Counter)
    has_long: bool = False
    unsaid: Counter[str] = field(default_factory=Counter)
    odd: str | None = None
    is_many: bool = False
    num_repeats: int = 0
    numbers: Counter[Style] = field(default_factory=Counter)
    separated: int = 0
    small: int = 0
    large: int = 0
    whole: Counter[Style] = field(default_factory=Counter)
    dates: int = 0
    unclear_dates: int = 0
    words: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    _long: Counter[str] = field(default_factory=Counter)

    @property
    def num_values(self) -> int:
        """The number of different values, up to `MOST_VALUES`."""
        return len(self.values)

    def add(self, values: Sequence[str]) -> None:
        """Sees more rows."""
        if max(map(len, values), default=0) > LONGEST:
            values = [value.strip(BLANKS) for value in values]
            for value in values:
                if len(value) > LONGEST:
                    self.words += len(value.split())
                    self._long[_shortened(value)] += 1
            values = [value for value in values if len(value) <= LONGEST]
        self.values.update(values)
        if len(self.values) + len(self._long) > MOST_VALUES:
            self._analyse()
            self.values.clear()
            self._long.clear()
            self.is_many = True

    def finish(self) -> None:
        """Must be called after the last row."""
        self._analyse()
        for value in [value for value in self.values if is_missing(value)]:
            del self.values[value]
        stripped: Counter[str] = Counter()
        for value, count in self.values.items():
            stripped[value.strip(BLANKS)] += count
        stripped.update(self._long)
        self.values = stripped

    def _analyse(self) -> None:
        """Each different value once: most columns have few."""
        there: dict[str, int] = {}
        for value, count in self.values.items():
            if is_missing(value):
                self.missing += count
                self.unsaid[value.strip(BLANKS)] += count
            else:
                there[value] = count
        num_long = sum(self._long.values())
        self.has_long |= num_long > 0
        self.odd = next(iter(self._long), None) if self.odd is None else self.odd
        self.present += sum(there.values()) + num_long
        self.num_repeats += sum(there.values()) + num_long - len(there) - len(self._long)
        if not self._see_plain_numbers(there):
            for value, count in there.items():
                self._see(value, count)

    def _see_plain_numbers(self, values: Mapping[str, int]) -> bool:
        """Sees values that are all like 12 or 1.5, much faster; False if they are not."""
        try:
            found = list(map(float, values))
        except ValueError:
            return False
        if not values or any("_" in value for value in values):  # Python takes 1_0 for 10.
            return False
        total = sum(values.values())
        self.words += total
        commas, whole, whole_commas = 0, 0, 0
        for text, value, count in zip(values, found, values.values(), strict=True):
            is_whole = value.is_integer()
            whole += count if is_whole else 0
            if "." not in text:
                self._see_unseparated(value, count)
                commas += count
                whole_commas += count if is_whole else 0
            else:
                self.separated += count
                if text[-4:-3] == "." and "comma" in styles_of(text):  # 1.234 may be either.
                    commas += count
                    whole_commas += count
        self.numbers.update({"point": total, "thousands": total, "comma": commas})
        self.whole.update({"point": whole, "thousands": whole, "comma": whole_commas})
        finite = [value for value in found if math.isfinite(value)]
        self.lowest = min(self.lowest, *finite, math.inf)
        self.highest = max(self.highest, *finite, -math.inf)
        return True

    def _see(self, value: str, count: int) -> None:
        self.words += count * len(value.split())
        styles = styles_of(value)
        self.numbers.update(dict.fromkeys(styles, count))
        if styles:
            meanings = {style: number(value, style) for style in styles}
            self.whole.update({s: count for s, found in meanings.items() if found.is_integer()})
            found = meanings[min(styles, key=_PREFERRED.index)]
            if "." in value or "," in value:
                self.separated += count
            else:
                self._see_unseparated(found, count)
            if math.isfinite(found):
                self.lowest, self.highest = min(self.lowest, found), max(self.highest, found)
            return
        self.odd = value.strip(BLANKS) if self.odd is None else self.odd
        if not math.isnan(days(value)):
            self.dates += count
        elif is_unclear_date(value):
            self.unclear_dates += count

    def _see_unseparated(self, value: float, count: int) -> None:
        if abs(value) < 1000:
            self.small += count
        else:
            self.large += count

    def is_boolean(self) -> bool:
        found = {value.lower() for value in self.values}
        return not self.is_many and len(found) == 2 and found in BOOLEANS


def _shortened(value: str) -> str:
    digest = hashlib.blake2b(value.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return f"{value[:_BEGINNING]}… {digest}"


_PREFERRED: tuple[Style, ...] = ("point", "comma", "thousands")


@dataclass(frozen=True)
class Survey:
    """A table after one look: its rows, what its columns hold, and which are an index."""

    rows: int
    skipped: int
    columns: dict[str, ColumnSurvey]
    indexes: tuple[str, ...] = ()


def survey(source: Source) -> Survey:
    """Reads a table once."""
    columns = {name: ColumnSurvey(name) for name in source.names}
    rows = 0
    for block in source.blocks():
        rows += len(block)
        for column, values in zip(columns.values(), block.columns, strict=True):
            column.add(values)
    for column in columns.values():
        column.finish()
    return Survey(rows, source.num_skipped, columns, source.indexes)
