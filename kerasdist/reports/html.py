"""The HTML of a page: style, tables and lists. Text from users is escaped here."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kerasdist.phases.text import decimal
from kerasdist.reports.plots import NUM_COLOURS, NUM_DASHES, Series, plot

# Marks a file as written by kerasdist, which may overwrite it.
GENERATOR = '<meta name="generator" content="kerasdist">'
# Of a longer setting, only the beginning is shown.
MOST_SHOWN = 500
_ASSETS = Path(__file__).parent / "assets"


@functools.cache
def asset(name: str) -> str:
    """The text of a file in reports/assets."""
    return (_ASSETS / name).read_text()


@functools.cache
def style() -> str:
    """The CSS of all pages."""
    return asset("style.css") + "".join(
        f".c{i} {{ color: var(--c{i}); }}\n" for i in range(NUM_COLOURS)
    )


def policy(*scripts: str) -> str:
    """The Content-Security-Policy of a page: it sends no request, and runs these scripts only."""
    sources = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
        f"script-src {sources}"
    )


def page(title: str, body: Iterable[str]) -> str:
    """A whole page. `body` is already HTML, `title` is plain text.

    It runs kerasdist's script for hover values, which its policy names by its hash, and no other,
    whatever it contains.
    """
    script = asset("hover.js")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{GENERATOR}\n<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>{style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def text_of(value: Any) -> str:
    """A value as people read it. It is not escaped yet.

    Example:
        >>> text_of(None), text_of(12345), text_of(0.123456), text_of([1, "a"])
        ('–', '12,345', '0.1235', '1, a')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text_of(item)}" for name, item in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(item) for item in value) or "–"
    return str(value)


def section(title: str, *parts: str) -> str:
    """A part of the page with a heading; "" if it has no content."""
    content = "\n".join(part for part in parts if part)
    name = "".join(c if c.isalnum() else "-" for c in title.lower())
    return f'<section id="{escape(name)}">\n<h2>{escape(title)}</h2>\n{content}\n</section>' * bool(
        content
    )


def tiles(values: Mapping[str, Any]) -> str:
    """Values in large print, each with its name."""
    each = (
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(text_of(value))}</b></div>'
        for name, value in values.items()
    )
    return f'<div class="tiles">{"".join(each)}</div>'


def facts(values: Mapping[str, Any]) -> str:
    """Names and values, in as many columns as fit."""
    if not values:
        return ""
    each = (
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(text_of(value))}</dd></div>"
        for name, value in values.items()
    )
    return f'<dl class="facts">{"".join(each)}</dl>'


def settings(values: Mapping[str, Any]) -> str:
    """Settings and their values. Of a very long one, the beginning."""
    return facts({name: beginning(value) for name, value in values.items()})


def beginning(value: Any, most: int = MOST_SHOWN) -> Any:
    """A value, or the beginning of a long one: what is learnt from texts holds thousands of words.

    Example:
        >>> beginning(8), beginning("abcdef", most=3)
        (8, 'abc... (the rest is in config.json)')
    """
    text = str(value)
    return value if len(text) <= most else f"{text[:most]}... (the rest is in config.json)"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    """A table, which scrolls if it is too wide. Cells are HTML, column names are plain text.

    `kind` is "numbers" (aligned right) or "words" (aligned left).
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def cell(value: Any, kind: str = "") -> str:
    """A cell of a table, with a CSS class if given."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<td{attribute}>{escape(text_of(value))}</td>"


def row_name(value: str) -> str:
    """The first cell of a row."""
    return f"<th>{escape(value)}</th>"


def details(title: str, content: str) -> str:
    """Content that opens with a click on its title; "" if there is none."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>" * bool(content)


def commands(lines: Mapping[str, str]) -> str:
    """Commands, each with its purpose above it."""
    return "\n".join(
        f"<p>{escape(purpose)}</p><pre>{escape(line)}</pre>" for purpose, line in lines.items()
    )


def curves(
    title: str,
    series: Sequence[Series],
    x_label: str = "step",
    y_range: tuple[float, float] | None = None,
    *,
    is_x_log: bool = False,
) -> str:
    """A plot with its title and legend; "" if no line has a value."""
    series = [each for each in series if any(y is not None for _, y in each.points)]
    if not series:
        return ""
    name = f"{title} by {x_label}"
    drawn = plot(series, label=name, x_label=x_label, y_range=y_range, is_x_log=is_x_log)
    names = "".join(
        f'<li><svg viewBox="0 0 22 8" class="c{each.colour % NUM_COLOURS}" aria-hidden="true">'
        f'<path class="{_line_class(each)}" d="M0 4H22"/></svg>{escape(each.name)}</li>'
        for each in series
        if each.name != title
    )
    return figure(title, drawn, f'<ul class="legend">{names}</ul>')


def figure(title: str, drawn: str, about: str = "") -> str:
    """Something drawn, with its title and a line of HTML about it; "" if nothing is drawn."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{about}{drawn}</figure>" * bool(drawn)


def _line_class(series: Series) -> str:
    dash = f"line d{series.colour // NUM_COLOURS % NUM_DASHES}"
    return f"{dash} faint" if series.is_faint else dash


def grid(figures: Iterable[str]) -> str:
    """Figures side by side; "" if there are none."""
    content = "\n".join(figure for figure in figures if figure)
    return f'<div class="plots">\n{content}\n</div>' if content else ""
