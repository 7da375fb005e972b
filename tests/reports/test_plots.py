"""Line plots: points, axes and ticks are where they belong."""

import re

import pytest

from kerasdist.reports import plots


def dots(svg):
    found = re.findall(r'<circle class="dot c(\d)" cx="([\d.]+)" cy="([\d.]+)"', svg)
    return [(int(colour), float(x), float(y)) for colour, x, y in found]


def test_points_are_drawn_where_they_belong():
    svg = plots.plot([plots.Series("a", [(0, 0.0), (5, 50.0), (10, 100.0)])], label="a")
    # 400 by 230 with 50, 12, 10 and 34 around; 5 % of the values' range above and below.
    assert dots(svg) == [(0, 50.0, 187.5), (0, 219.0, 103.0), (0, 388.0, 18.5)]
    assert 'class="line c0 d0" d="M50.0 187.5L219.0 103.0L388.0 18.5"' in svg


def test_two_lines_share_their_axes():
    series = [plots.Series("a", [(0, 0.0)]), plots.Series("b", [(10, 100.0)], colour=1)]
    assert dots(plots.plot(series, label="ab")) == [(0, 50.0, 187.5), (1, 388.0, 18.5)]


def test_ticks_are_round_and_at_their_values():
    axis = plots.Axis(0.13, 0.97, begin=0, end=84)
    assert axis.ticks(6) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert axis.at(0.55) == pytest.approx(42)
    svg = plots.plot([plots.Series("a", [(0, 0.0), (10, 100.0)])], label="a")
    # 40 of -5 to 105 is 45 / 110 of 186 above 196; letters are 4 lower.
    assert '<text x="44" y="123.9" class="end">40</text>' in svg


def test_a_wide_range_has_a_logarithmic_scale():
    svg = plots.plot([plots.Series("a", [(0, 1.0), (1, 100.0), (2, 10000.0)])], label="a")
    (_, _, low), (_, _, middle), (_, _, high) = dots(svg)
    assert middle == pytest.approx((low + high) / 2, abs=0.1)
    assert "logarithmic" in svg
    assert ">100<" in svg
    assert "logarithmic" not in plots.plot([plots.Series("a", [(0, 1.0), (1, 9.0)])], label="a")


def labels(svg):
    """What is written at the x axis, and what at the y axis besides its ticks."""
    found = dict(re.findall(r'class="(end name|name)">([^<]*)<', svg))
    return found.get("end name"), found.get("name")


def test_the_axis_that_is_logarithmic_says_so():
    steep = [(1, 1.0), (2, 100.0), (2000, 10000.0)]
    flat = [(1, 1.0), (2, 2.0), (2000, 3.0)]
    drawn = {
        (points is steep, is_x_log): labels(
            plots.plot([plots.Series("a", points)], label="a", is_x_log=is_x_log)
        )
        for points in (steep, flat)
        for is_x_log in (True, False)
    }
    assert drawn == {
        (True, False): ("step", "y axis · logarithmic"),
        (False, True): ("step · logarithmic", None),
        (True, True): ("step · logarithmic", "y axis · logarithmic"),
        (False, False): ("step", None),
    }


def test_no_line_is_drawn_over_the_word_logarithmic():
    svg = plots.plot([plots.Series("a", [(0, 1e-6), (1, 1.0), (2, 1e-6)])], label="a")
    (place,) = re.findall(r'y="([\d.]+)" class="name">y axis', svg)
    letters = 12
    assert float(place) - letters > plots.HEIGHT - plots.BOTTOM


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1e-4, 1e-1, [1e-4, 1e-3, 1e-2, 1e-1]),
        (0.03, 0.7, [0.05, 0.1, 0.2, 0.5]),
        (0.021, 0.048, [0.025, 0.03, 0.035, 0.04, 0.045]),
    ],
)
def test_a_logarithmic_axis_has_ticks_also_between_powers_of_ten(low, high, ticks):
    assert plots.Axis(low, high, begin=0, end=1, is_log=True).ticks(6) == pytest.approx(ticks)


def test_a_value_that_is_not_finite_is_a_gap():
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 2.0), (4, 1.0)]
    svg = plots.plot([plots.Series("a", points)], label="a")
    (line,) = re.findall(r'class="line[^"]*" d="([^"]*)"', svg)
    assert [part.count("L") for part in line.split("M")] == [0, 1, 1]
    assert len(dots(svg)) == 4


@pytest.mark.parametrize("points", [[], [(1, None)], [(1, None), (2, None)]])
def test_nothing_is_drawn_of_nothing(points):
    assert plots.plot([plots.Series("a", points)], label="a") == ""


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0, 1e-30, 1e30])
def test_a_single_value_is_a_dot_in_the_middle(value):
    svg = plots.plot([plots.Series("a", [(7, value)])], label="a")
    assert dots(svg) == [(0, 219.0, 103.0)]


def test_many_points_become_their_mean_and_their_range():
    points = [(float(i), float(i % 2)) for i in range(4000)]
    points[2005] = (2005.0, 9.0)
    thinned, ranges = plots.thin(points)
    assert len(thinned) == len(ranges) == plots.MOST_POINTS
    assert thinned[0] == (5.0, 0.5)
    assert ranges[0] == (5.0, 0.0, 1.0)
    assert ranges[200][2] == 9.0  # No spike is lost.
    assert thinned[200][1] == pytest.approx((5 - 1 + 9) / 10)
    assert 'class="range c0"' in plots.plot([plots.Series("a", points)], label="a")
