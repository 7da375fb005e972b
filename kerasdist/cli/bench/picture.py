"""Draws the results of `kerasdist bench` as an SVG file."""

from __future__ import annotations

from html import escape

from kerasdist.cli.bench.results import Bench
from kerasdist.reports import plots

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #5f5e5a; }
.title { font-weight: 600; fill: #1d1d1b; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: #dddcd6; } .axis, .tick { stroke: #5f5e5a; fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; } .dot { fill: currentColor; }
.c0 { color: #2360d8; } .c1 { color: #0c7f57; } .c2 { color: #c8500a; }
"""
# Each line of the plot has its name in a line of its own, so that no font makes them touch.
_FIRST_NAME, _LINE = 38, 16


def svg(bench: Bench) -> str:
    """Draws examples per second over the number of devices; "" if there is nothing to draw."""
    first = bench.strong[0]
    weak = [first, *bench.weak] if bench.weak else []
    kinds = (
        ("the same batch", bench.strong),
        ("the same batch per device", weak),
        ("Keras fit", bench.others),
    )
    series = [
        plots.Series(name, [(float(m.devices), m.rate) for m in measurements], colour=colour)
        for colour, (name, measurements) in enumerate(kinds)
        if measurements
    ]
    title = f"{bench.name}: examples per second"
    # From 0: otherwise a difference within the noise looks like a collapse.
    highest = max((m.rate for _, each in kinds for m in each), default=0.0)
    drawn = plots.plot(series, label=title, x_label="devices", y_range=(0.0, 1.05 * highest or 1.0))
    if not drawn:
        return ""
    names = "".join(
        f'<g class="c{each.colour}"><path class="line" d="M12 {y - 4}h18"/>'
        f'<text x="35" y="{y}">{each.name}</text></g>'
        for y, each in zip(range(_FIRST_NAME, plots.HEIGHT, _LINE), series, strict=False)
    )
    top = _FIRST_NAME + _LINE * len(series) - 8
    _, _, inside = drawn.partition(">")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {plots.WIDTH} {plots.HEIGHT + top}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="title" x="12" y="18">{escape(title)}</text>{names}'
        f'<g transform="translate(0 {top})">{inside.removesuffix("</svg>")}</g></svg>\n'
    )
