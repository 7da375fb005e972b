"""Scatter plots, histograms and calibration."""

import re

from kerasdist.reports import charts


def test_a_scatter_plot_has_equal_scales_and_its_diagonal():
    drawn = charts.scatter([(0, 0), (10, 10), (0, 10)], label="x", x_label="true")
    places = re.findall(r'<circle[^>]* cx="(.*?)" cy="(.*?)"', drawn)
    (left, low), (right, high), corner = places
    assert corner == (left, high)
    ends = re.search(r'class="ideal" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', drawn)
    x0, y0, x1, y1 = (float(number) for number in ends.groups())
    for x, y in ((left, low), (right, high)):  # Both lie on the diagonal.
        share = (float(x) - x0) / (x1 - x0)
        assert abs(y0 + share * (y1 - y0) - float(y)) < 0.2
    assert "<title>0: 10</title>" in drawn


def test_values_over_many_powers_of_ten_stay_linear():
    assert "logarithmic" not in charts.scatter([(1e-3, 1e3), (1, 1)], label="x", x_label="true")


def test_a_histogram_has_a_bar_for_each_interval():
    drawn = charts.histogram([-1, 0, 1, 2], [1, 4, 0], label="x", x_label="error")
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"><title>', drawn)]
    assert len(heights) == 3
    assert abs(heights[1] / heights[0] - 4) < 0.05
    assert heights[2] == 0
    assert "0 to 1: 4" in drawn
    assert drawn.count('class="ideal"') == 1  # Zero is marked.


def test_calibration_shows_only_intervals_with_examples():
    bins = [(0.0, 0.5, 0.25, 8), (0.5, 1.0, 0.0, 0)]
    drawn = charts.calibration(bins, label="x")
    assert drawn.count("<rect") == 1
    assert "probability 0 to 0.5: 25.0% of 8 examples" in drawn


def test_without_values_there_is_no_plot():
    assert charts.scatter([], label="x", x_label="y") == ""
    assert charts.histogram([0, 1], [0], label="x", x_label="y") == ""
    assert charts.calibration([(0.0, 1.0, 0.0, 0)], label="x") == ""
