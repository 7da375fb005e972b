"""Draws line plots as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

# In units of the drawing, which are about pixels on a phone and on a desktop.
WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 10, 34
# With more points, their mean and range are drawn: nobody could see more.
MOST_POINTS = 400
# With more points, dots are left out: they would hide the line.
_MOST_DOTS = 60
# If highest ÷ lowest is more than this, the scale is logarithmic.
_WIDE = 1000.0
NUM_COLOURS, NUM_DASHES = 8, 3

Point = tuple[float, float | None]
Range = tuple[float, float, float]


@dataclass(frozen=True)
class Series:
    """One line of a plot.

    Attributes:
        points: `(x, y)`, sorted by x. A y of None is a gap.
        colour: The number of a colour. From `NUM_COLOURS` on, colours repeat with other dashes.
        is_faint: Whether it is drawn faintly and without dots, behind another line.
        ranges: `(x, lowest, highest)` behind the points, if the points are means already.
        is_dots: Whether it is drawn as dots without a line.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0
    is_faint: bool = False
    ranges: Sequence[Range] = ()
    is_dots: bool = False


@dataclass(frozen=True)
class Axis:
    """Converts values to units of the drawing."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The place of a value in the drawing.

        Example:
            >>> Axis(0, 10, begin=50, end=150).at(5)
            100.0
        """
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def ticks(self, count: int) -> list[float]:
        """Round values within the axis, at most about `count` of them."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last > first:
                every = max(1, math.ceil((last - first + 1) / count))
                return [10.0**power for power in range(first, last + 1, every)]
            powers = [10.0**power for power in range(first - 1, last + 2)]
            finer = [power * factor for power in powers for factor in (1, 2, 5)]
            if len(found := [tick for tick in finer if self.low <= tick <= self.high]) > 2:
                return found
        raw = (self.high - self.low) / count
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def plot(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str = "step",
    y_range: tuple[float, float] | None = None,
    is_x_log: bool = False,
) -> str:
    """The SVG of some lines; "" if there is no finite value.

    Args:
        series: The lines. Later ones are drawn over earlier ones.
        label: What the plot shows, for screen readers.
        x_label: The name of the x axis.
        y_range: The lowest and the highest y to show; by default those of the lines.
        is_x_log: Whether the x axis is logarithmic. Then every x must be above 0.
    """
    finite = [(x, y) for each in series for x, y in each.points if y is not None]
    if not finite:
        return ""
    across = axis([x for x, _ in finite], LEFT, WIDTH - RIGHT, margin=0.0)
    if is_x_log and across.low > 0:
        across = replace(across, is_log=True)
    if y_range is None:
        up = axis([y for _, y in finite], HEIGHT - BOTTOM, TOP, margin=0.05)
    else:
        up = Axis(*y_range, HEIGHT - BOTTOM, TOP)
    # For the script that shows values under the pointer.
    places = "" if across.is_log else f' data-across="{_numbers(across)}" data-up="{_numbers(up)}"'
    content = "".join(part for each in series for part in _draw(each, across, up))
    is_whole = all(x == int(x) for x, _ in finite)
    return frame(
        across, up, content, label=label, x_label=x_label, attributes=places, is_whole=is_whole
    )


def frame(
    across: Axis,
    up: Axis,
    content: str,
    *,
    label: str,
    x_label: str,
    attributes: str = "",
    is_whole: bool = False,
) -> str:
    """The SVG of a plot: its axes around what is drawn in it.

    `is_whole`: the x axis counts something, such as devices, and has ticks at whole numbers only.
    """
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}"{attributes}>'
    ]
    for value in up.ticks(6):
        y = up.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{short(value)}</text>')
    is_whole = (is_whole or across.high >= 10) and not across.is_log
    x_ticks = [value for value in across.ticks(6) if value == int(value) or not is_whole]
    for value in x_ticks:
        x = across.at(value)
        parts.append(f'<path class="tick" d="M{x:.1f} {HEIGHT - BOTTOM}v4"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" class="middle">{short(value)}</text>'
        )
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" class="end name">{escape(x_label)}'
        f"{' · logarithmic' if across.is_log else ''}</text>"
    )
    if up.is_log:  # Below the axes, where no line is drawn.
        parts.append(f'<text x="0" y="{HEIGHT - 3}" class="name">y axis · logarithmic</text>')
    return "".join([*parts, content, "</svg>"])


def _numbers(axis: Axis) -> str:
    scale = "log" if axis.is_log else "linear"
    return f"{axis.low:.9g} {axis.high:.9g} {axis.begin:g} {axis.end:g} {scale}"


def axis(values: Sequence[float], begin: float, end: float, margin: float) -> Axis:
    """The axis that shows all values; logarithmic if they span several powers of ten."""
    low, high = min(values), max(values)
    if low > 0 and high / low > _WIDE and margin:
        return Axis(low / 1.2, high * 1.2, begin, end, is_log=True)
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high)):  # A single value is drawn in the middle.
        span = abs(low) or 1.0
        return Axis(low - span / 2, high + span / 2, begin, end)
    return Axis(low - margin * span, high + margin * span, begin, end)


def _thinned(series: Series) -> tuple[list[Point], list[Range]]:
    """The points to draw, and the ranges behind them."""
    if series.is_dots or series.ranges:
        return list(series.points), list(series.ranges)
    return thin(series.points)


def _draw(series: Series, across: Axis, up: Axis) -> Iterable[str]:
    points, ranges = _thinned(series)
    colour = f"c{series.colour % NUM_COLOURS}"
    dash = f" d{series.colour // NUM_COLOURS % NUM_DASHES}"
    kind = f"{colour}{dash}{' faint' if series.is_faint else ''}"
    if ranges:
        there = [(across.at(x), up.at(low), up.at(high)) for x, low, high in ranges]
        edge = [f"{x:.1f} {high:.1f}" for x, _, high in there]
        edge += [f"{x:.1f} {low:.1f}" for x, low, _ in reversed(there)]
        yield f'<path class="range {colour}" d="M{"L".join(edge)}Z"/>'
    if not series.is_dots:
        values = " ".join(f"{x:.9g}:{y:.5g}" for x, y in points if y is not None)
        yield (
            f'<path class="line {kind}" d="{_path(points, across, up)}" '
            f'data-name="{escape(series.name)}" data-values="{values}"/>'
        )
    finite = [(x, y) for x, y in points if y is not None]
    if series.is_faint and len(finite) > 1:
        return
    # A single value has no line, only a dot.
    if series.is_dots or len(finite) <= _MOST_DOTS:
        for x, y in finite:
            title = f"{series.name}: {y:.5g} at {x:g}"
            yield (
                f'<circle class="dot {colour}" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="2.6">'
                f"<title>{escape(title)}</title></circle>"
            )


def _path(points: Sequence[Point], across: Axis, up: Axis) -> str:
    """`M…L…`, with a new start after each gap."""
    text, is_on = "", False
    for x, y in points:
        if y is not None:
            text += f"{'L' if is_on else 'M'}{across.at(x):.1f} {up.at(y):.1f}"
        is_on = y is not None
    return text


def thin(points: Sequence[Point]) -> tuple[list[Point], list[Range]]:
    """At most `MOST_POINTS` means, and the range `(x, lowest, highest)` behind each of them.

    If there are few points, they stay as they are, without ranges.
    """
    if len(points) <= MOST_POINTS:
        return list(points), []
    thinned: list[Point] = []
    ranges: list[Range] = []
    for index in range(MOST_POINTS):
        first, last = (len(points) * i // MOST_POINTS for i in (index, index + 1))
        part = points[first:last]
        x = part[len(part) // 2][0]
        values = [y for _, y in part if y is not None]
        thinned.append((x, sum(values) / len(values) if values else None))
        if values:
            ranges.append((x, min(values), max(values)))
    return thinned, ranges


def short(value: float) -> str:
    """A number in the short form that an axis needs.

    Example:
        >>> short(0.1 + 0.2), short(12000), short(2.5e6), short(1e-5)
        ('0.3', '12k', '2.5M', '1e-5')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    text = f"{value:.4g}" if abs(value) >= 1e-4 or not value else f"{value:.2e}"
    mantissa, _, power = text.partition("e")
    if not power:
        return text
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}"
