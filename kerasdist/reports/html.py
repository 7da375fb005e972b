"""The HTML of a page: style, tables and lists. Text from users is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from kerasdist.reports.plots import NUM_COLOURS, NUM_DASHES, Series, plot

# Marks a file as written by kerasdist, which may overwrite it.
GENERATOR = '<meta name="generator" content="kerasdist">'
# The browser runs no script and sends no request, whatever the page contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root { color-scheme: light dark;
  --ground: #f6f6f4; --card: #fff; --ink: #1d1d1b; --soft: #5f5e5a; --line: #dddcd6;
  --good: #14713f; --bad: #b3261e; --busy: #1d56c0; --note: #fff4d6; --heat: 37, 99, 190;
  --c0: #2360d8; --c1: #c8500a; --c2: #0c7f57; --c3: #8a35d6; --c4: #96690b; --c5: #0b6f8a;
  --c6: #b8195c; --c7: #57534e; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #161614; --card: #20201e; --ink: #ecebe6; --soft: #a5a39b; --line: #3a3935;
  --good: #5fcf92; --bad: #ff8a80; --busy: #8ab4ff; --note: #3b3115; --heat: 96, 150, 240;
  --c0: #7fabff; --c1: #ff9d5c; --c2: #4fd1a1; --c3: #c792ff; --c4: #e5b95c; --c5: #4cc9de;
  --c6: #ff85b8; --c7: #b8b2ab; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 32px 0 10px; }
h3 { font-size: .95rem; margin: 16px 0 6px; }
p { margin: 6px 0; }
.soft { color: var(--soft); }
.path, code, pre { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
header { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: center; }
header p { flex-basis: 100%; }
.badge { border: 1px solid; border-radius: 99px; padding: 1px 10px; font-size: .85rem; }
.finished { color: var(--good); } .running { color: var(--busy); }
.failed, .diverged { color: var(--bad); } .interrupted, .unfinished { color: var(--soft); }
.note { background: var(--note); border-radius: 8px; padding: 10px 14px; margin: 14px 0;
  overflow-wrap: anywhere; }
.tiles, .plots, .facts, .examples { display: grid; gap: 12px; }
.tiles { grid-template-columns: repeat(auto-fill, minmax(min(100%, 150px), 1fr)); margin: 16px 0; }
.tile, figure, pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 10px 14px; min-width: 0; }
.tile span { display: block; color: var(--soft); font-size: .82rem; }
.tile b { display: block; font-size: 1.2rem; font-weight: 600; overflow-wrap: anywhere; }
.plots { grid-template-columns: repeat(auto-fill, minmax(min(100%, 350px), 1fr)); }
figure { margin: 0; padding: 12px 12px 8px; min-width: 0; }
figcaption { font-weight: 600; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 0;
  margin: 2px 0 6px; font-size: .82rem; color: var(--soft); }
.legend li { overflow-wrap: anywhere; }
.legend svg { width: 22px; height: 8px; margin-right: 5px; vertical-align: middle; }
.plot { width: 100%; height: auto; display: block; }
.plot text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.plot .end { text-anchor: end; } .plot .middle { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; } .axis, .tick { stroke: var(--soft); fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.faint { stroke-width: 1; opacity: .45; } .range { fill: currentColor; opacity: .15; }
.dot { fill: currentColor; } .d1 { stroke-dasharray: 6 3; } .d2 { stroke-dasharray: 2 3; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; background: var(--card); font-size: .88rem; }
td, th { border: 1px solid var(--line); padding: 3px 9px; text-align: right;
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
td:first-child, th:first-child, .words th, .words td { text-align: left; }
td.best { font-weight: 700; color: var(--good); }
td.text, .words td { text-align: left; min-width: 7em; overflow-wrap: anywhere; }
.matrix td, .matrix th { padding: 3px 5px; min-width: 30px; text-align: center; }
.matrix thead th:not(:first-child) span { writing-mode: vertical-rl; rotate: 180deg; }
.matrix thead th { vertical-align: bottom; } .matrix tbody th { text-align: left; }
.matrix td { background: rgba(var(--heat), var(--share, 0)); }
@media (max-width: 500px) { .matrix { font-size: .78rem; }
  .matrix td, .matrix th { min-width: 22px; padding: 3px 2px; } }
.heat { width: min(100%, 560px); height: auto; display: block; background: var(--card);
  border: 1px solid var(--line); }
.heat rect { fill: rgb(var(--heat)); }
.facts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 270px), 1fr)); gap: 0 24px;
  margin: 0; font-size: .9rem; }
.facts div { display: flex; justify-content: space-between; gap: 12px; min-width: 0;
  border-bottom: 1px solid var(--line); padding: 3px 0; }
.facts dt { color: var(--soft); } .facts dd { margin: 0; text-align: right; min-width: 0;
  overflow-wrap: anywhere; }
.examples { grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); }
.examples figure { font-size: .82rem; padding: 8px; }
.examples img { width: 100%; height: 110px; object-fit: contain; image-rendering: pixelated;
  display: block; margin-bottom: 4px; }
.examples b { overflow-wrap: anywhere; }
.wrong { color: var(--bad); } .right { color: var(--good); }
pre { padding: 10px 14px; margin: 6px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--soft); }
footer { margin-top: 40px; color: var(--soft); font-size: .85rem; }
""" + "".join(f".c{i} {{ color: var(--c{i}); }}\n" for i in range(NUM_COLOURS))


def page(title: str, body: Iterable[str]) -> str:
    """A whole page. `body` is already HTML, `title` is plain text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{GENERATOR}\n<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
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
        return f"{value:.4g}"
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
    title: str, series: Sequence[Series], x_label: str = "step", *, is_x_log: bool = False
) -> str:
    """A plot with its title and legend; "" if no line has a value."""
    series = [each for each in series if any(y is not None for _, y in each.points)]
    if not series:
        return ""
    drawn = plot(series, label=f"{title} by {x_label}", x_label=x_label, is_x_log=is_x_log)
    names = "".join(
        f'<li><svg viewBox="0 0 22 8" class="c{each.colour % NUM_COLOURS}" aria-hidden="true">'
        f'<path class="{_line_class(each)}" d="M0 4H22"/></svg>{escape(each.name)}</li>'
        for each in series
        if each.name != title
    )
    legend = f'<ul class="legend">{names}</ul>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{drawn}</figure>"


def _line_class(series: Series) -> str:
    dash = f"line d{series.colour // NUM_COLOURS % NUM_DASHES}"
    return f"{dash} faint" if series.is_faint else dash


def grid(figures: Iterable[str]) -> str:
    """Figures side by side; "" if there are none."""
    content = "\n".join(figure for figure in figures if figure)
    return f'<div class="plots">\n{content}\n</div>' if content else ""
