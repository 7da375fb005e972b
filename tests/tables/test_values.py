import math

import pytest

from kerasdist.tables.values import MISSING, days, is_missing, number, numbers, styles_of


@pytest.mark.parametrize("value", [*MISSING, " NA ", "NaN", "NULL", "\t"])
def test_missing_values(value):
    assert is_missing(value)


@pytest.mark.parametrize("value", ["0", "no", "-1", "unknown", "."])
def test_values_that_are_there(value):
    assert not is_missing(value)


@pytest.mark.parametrize(
    ("value", "style", "expected"),
    [
        ("12", "point", 12),
        (" -1.5e3 ", "point", -1500),
        ("$12.50", "point", 12.5),
        ("45 %", "point", 45),
        ("1,5", "comma", 1.5),
        ("1.234,5", "comma", 1234.5),
        ("1,234,567.8", "thousands", 1234567.8),
        ("-1.234,5e2", "comma", -123450),
        ("1e3", "comma", 1000),
        (",5", "comma", 0.5),
        ("-$5.50", "point", -5.5),
        ("$-5.50", "point", -5.5),
        ("($5.50)", "point", -5.5),
        ("\u2212 1,5 %", "comma", -1.5),
    ],
)
def test_numbers(value, style, expected):
    assert number(value, style) == expected
    assert style in styles_of(value)


@pytest.mark.parametrize(
    ("value", "style"),
    [
        ("1.5", "comma"),
        ("50.5", "comma"),
        ("0.125", "comma"),
        ("1,5", "thousands"),
        ("0,125", "thousands"),
        ("1234,567", "thousands"),
        ("1,5", "point"),
        ("(-5)", "point"),
        ("-(5)", "point"),
        ("-$-5", "point"),
    ],
)
def test_a_number_in_another_style_is_not_read_as_another_number(value, style):
    assert math.isnan(number(value, style))
    assert style not in styles_of(value)


@pytest.mark.parametrize("value", ["1_000", "twelve", "1,2,3", "0x10", "1.2.3", "12 apples", "--1"])
def test_what_is_not_a_number(value):
    assert styles_of(value) == frozenset() or math.isnan(number(value, "point"))
    assert math.isnan(numbers([value], "point")[0])


def test_many_numbers_are_as_single_ones():
    values = ["1", "", "x", "2.5", "1_0", "nan", "1e400"]
    found = numbers(values, "point")
    assert found[0] == 1
    assert found[3] == 2.5
    assert all(math.isnan(found[i]) for i in (1, 2, 4, 5))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1970-01-01", 0),
        ("2000-03-01", 11017),
        ("1969-12-31T12:00:00Z", -0.5),
        ("2024-02-29 06:00", 19782.25),
    ],
)
def test_dates(value, expected):
    assert days(value) == expected


@pytest.mark.parametrize("value", ["2024-02-30", "2024-13-01", "24-01-01", "01/02/2024", ""])
def test_what_is_not_a_date(value):
    assert math.isnan(days(value))
