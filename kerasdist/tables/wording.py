"""Says in a few lines what was found in a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.source import Source
from kerasdist.tables.kinds import MOST
from kerasdist.tables.reading.builders import NO_CODE, Names
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import Column, Kind, Schema
from kerasdist.tables.survey import ColumnSurvey, Survey

_TITLES: dict[Kind, str] = {
    "number": "numbers",
    "integer": "few numbers",
    "boolean": "yes or no",
    "category": "categories",
    "date": "dates",
    "text": "texts",
}
_MOST_NAMED = 12
_MOST_CLASSES = 6
_MOST_VALUES = 8


def check_header(source: Source, found: Survey) -> None:
    """Refuses a first line whose names come as values of their own columns: it is a row.

    Lines that repeat it in a table with numbers or dates are headers of files that were joined.
    """
    among = [name for name, column in found.columns.items() if column.values.get(name, 0) > 0]
    if source.repeats and not any(_differs_from_names(column) for column in found.columns.values()):
        among = list(source.names)
    if len(among) >= 2 and 2 * len(among) >= len(source.names):
        raise KerasdistError(
            f"The first line of {str(source.path)!r} holds values "
            f"({', '.join(repr(name) for name in among[:4])} come again in their columns), not "
            "names. Expected the name of each column there. Add such a line, or use "
            "`--no-header` (`header=False`): the columns are then called column_1, column_2 and "
            "so on. If these are names, use `--header` (`header=True`)."
        )


def _differs_from_names(column: ColumnSurvey) -> bool:
    most = max(column.dates, *column.numbers.values(), 0)
    return 0 < MOST * column.present <= most


def of_table(source: Source, schema: Schema, raw: Raw) -> dict[str, str]:
    """The lines about the file, the target and the columns, by title."""
    lines = {"table": _of_file(source, raw), "target": _of_target(schema, raw)}
    for kind, title in _TITLES.items():
        if schema.of_kind(kind):
            lines[title] = _named([_of_column(column, raw) for column in schema.of_kind(kind)])
    if schema.num_words:
        lines["words"] = (
            f"{len(schema.vocabulary):,} that come twice or more; the first {schema.num_words} of "
            "a text are read"
        )
    if schema.left_out:
        reasons: dict[str, list[str]] = {}
        for name, why in schema.left_out.items():
            reasons.setdefault(why, []).append(name)
        lines["left out"] = "; ".join(f"{_named(names)} ({why})" for why, names in reasons.items())
    if schema.notes:
        lines["notes"] = "; ".join(schema.notes)
    return lines


def of_row(source: Source, schema: Schema, place: int, values: Sequence[str]) -> dict[str, str]:
    """A row's place, and its first values by column, without the target."""
    pairs = zip(source.names, values, strict=True)
    hidden = (schema.target.name, source.unit)
    shown = [(name, shortened(value, 80)) for name, value in pairs if name not in hidden]
    return {source.unit: str(place), **dict(shown[:_MOST_VALUES])}


def shortened(text: str, most: int) -> str:
    """The beginning of a text, on one line.

    Example:
        >>> shortened("once upon\\na time", 12)
        'once upon a…'
    """
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _of_file(source: Source, raw: Raw) -> str:
    text = f"{raw.rows:,} rows, {len(source.names)} columns"
    more = list(source.notes)
    if raw.skipped:
        more.append(f"{raw.skipped:,} bad line{'s' * (raw.skipped > 1)} left out")
    if raw.repeats:
        lines = "a line that repeats" if len(raw.repeats) == 1 else None
        more.append(f"{lines or f'{len(raw.repeats):,} lines that repeat'} the header left out")
    if raw.without_target:
        more.append(_without_target(raw))
    return f"{text} ({'; '.join(more)})" if more else text


def _without_target(raw: Raw) -> str:
    """How many rows were left out, and what is written in place of their target."""
    counts = sorted(raw.without_target.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {repr(text) if text else 'empty'}" for text, count in counts]
    total = sum(raw.without_target.values())
    rows = "1 row" if total == 1 else f"{total:,} rows"
    return f"{rows} without a target left out: {_named(shown, _MOST_CLASSES)}"


def _of_target(schema: Schema, raw: Raw) -> str:
    target = schema.target
    if raw.target is None or not len(raw.target):
        return target.name
    if target.task == "regression":
        low, middle, high = (float(q) for q in np.quantile(raw.target, (0, 0.5, 1)))
        return f"{target.name}, a number from {low:.6g} to {high:.6g}, median {middle:.6g}"
    counts = np.bincount(raw.target, minlength=len(target.classes))
    pairs = list(zip(target.classes, counts.tolist(), strict=True))
    shown = ", ".join(f"{name} ({count:,})" for name, count in pairs[:_MOST_CLASSES])
    more = f" and {len(pairs) - _MOST_CLASSES} more" if len(pairs) > _MOST_CLASSES else ""
    return f"{target.name}, {len(pairs)} classes: {shown}{more}"


def _of_column(column: Column, raw: Raw) -> str:
    values, details = raw.columns.get(column.name), []
    if column.kind == "category":
        details.append(_known(column, values))
    if values is not None:
        is_missing = values.codes == NO_CODE if isinstance(values, Names) else np.isnan(values)
        details += [f"{is_missing.sum():,} missing"] if is_missing.any() else []
    return f"{column.name} ({', '.join(details)})" if details else column.name


def _known(column: Column, values: Names | None) -> str:
    """How many values the model knows, which are not always all that there are."""
    count = len(column.values)
    known = "1 value" if count == 1 else f"{count:,} values"
    num_all = 0 if values is None else len(np.unique(values.codes[values.codes != NO_CODE]))
    if num_all <= count:
        return known
    return f"{known} that {'comes' if count == 1 else 'come'} twice or more"


def _named(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
