"""A curve of any length in bounded memory: means and ranges in intervals of equal width."""

from __future__ import annotations

from kerasdist.reports.plots import MOST_POINTS, Point, Range

# When this many intervals are used, neighbours are joined.
_MOST = 2 * MOST_POINTS


class Curve:
    """Values by step. Adding one takes the same time however many there are.

    As long as there are few values, each is kept as it is.

    Example:
        >>> curve = Curve()
        >>> for step in range(100_000):
        ...     curve.add(step, 1.0)
        >>> len(curve.points()[0]) < 1000
        True
    """

    def __init__(self) -> None:
        self._values: list[Point] | None = []
        self._width = 1.0
        # By interval: the number of values, their sum, the lowest and the highest.
        self._bins: dict[int, list[float]] = {}
        self._gaps: set[int] = set()

    def add(self, x: float, y: float | None) -> None:
        """Adds a value; None for one that is not finite."""
        if self._values is None:
            self._put(x, y)
            return
        self._values.append((x, y))
        if len(self._values) > MOST_POINTS:
            values, self._values = self._values, None
            self._width = max(abs(values[-1][0] - values[0][0]) / MOST_POINTS, 1.0)
            for each in values:
                self._put(*each)

    def _put(self, x: float, y: float | None) -> None:
        place = int(x // self._width)
        if y is None:
            self._gaps.add(place)
            return
        found = self._bins.get(place)
        if found is None:
            self._bins[place] = [1, y, y, y]
            if len(self._bins) > _MOST:
                self._join()
            return
        found[0] += 1
        found[1] += y
        found[2] = min(found[2], y)
        found[3] = max(found[3], y)

    def _join(self) -> None:
        """Doubles the width of the intervals."""
        self._width *= 2
        joined: dict[int, list[float]] = {}
        for place, (count, total, low, high) in self._bins.items():
            found = joined.setdefault(place // 2, [0, 0.0, low, high])
            found[0] += count
            found[1] += total
            found[2] = min(found[2], low)
            found[3] = max(found[3], high)
        self._bins = joined
        self._gaps = {place // 2 for place in self._gaps}

    def points(self) -> tuple[list[Point], list[Range]]:
        """The values; or means by interval, and the ranges behind them."""
        if self._values is not None:
            return list(self._values), []
        points: list[Point] = []
        ranges: list[Range] = []
        for place in sorted(self._bins.keys() | self._gaps):
            x = (place + 0.5) * self._width
            found = self._bins.get(place)
            if found is None:
                points.append((x, None))
                continue
            count, total, low, high = found
            points.append((x, total / count))
            ranges.append((x, low, high))
        return points, ranges
