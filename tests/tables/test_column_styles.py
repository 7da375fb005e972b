import numpy as np
import pytest

from kerasdist import Table
from kerasdist.tables.reading.column_styles import find_styles
from kerasdist.tables.reading.raw import read
from kerasdist.tables.survey import ColumnSurvey

GERMAN = ["850", "558", "2.329"]
US = ["17,711", "74,706", "371"]


def styles(commas=False, points=False, **columns):
    found = {}
    for name, values in columns.items():
        found[name] = ColumnSurvey(name)
        found[name].add(values)
        found[name].finish()
    styles = find_styles(found, commas=commas, points=points)
    return {name: (written.style, written.is_guess) for name, written in styles.items()}


@pytest.mark.parametrize(
    ("values", "other", "expected"),
    [
        (GERMAN, ["5,12", "2,30"], "comma"),
        (["2.329", "1.100"], ["5,12", "2,30"], "comma"),
        (GERMAN, ["5.12", "2.30"], "point"),
        (GERMAN, ["1.234.567", "1"], "comma"),
        (US, ["3.58", "6.47"], "thousands"),
        ([f"${value}" for value in US], ["3.58", "6.47"], "thousands"),
        (["7,612", "47,524"], ["47.80", "4.58"], "thousands"),
        (US, ["5,12", "2,30"], "comma"),
    ],
)
@pytest.mark.parametrize("format", [{"commas": True}, {}, {"points": True}])
def test_other_columns_tell_what_separators_mean(values, other, expected, format):
    assert styles(x=values, z=other, **format)["x"] == (expected, False)


@pytest.mark.parametrize("format", [{"commas": True}, {}])
@pytest.mark.parametrize(("values", "expected"), [(GERMAN, "comma"), (US, "thousands")])
def test_groups_of_three_digits_are_thousands_if_small_numbers_have_none(format, values, expected):
    assert styles(x=values, n=["1", "2000"], **format)["x"] == (expected, False)


@pytest.mark.parametrize(
    ("format", "values", "expected"),
    [
        ({"commas": True}, ["2.329", "1.100"], ("point", True)),
        ({"commas": True}, ["2,329", "1,100"], ("comma", True)),
        ({}, ["2,329", "1,100"], ("thousands", True)),
        ({}, ["2,329", "5", "1100"], ("comma", True)),
        ({}, ["2.329", "5", "1100"], ("point", True)),
        ({"points": True}, ["2.329", "1.100"], ("point", False)),
        ({"points": True}, ["2,329", "1,100"], ("thousands", False)),
        ({"points": True}, GERMAN, ("point", True)),
        ({"commas": True}, ["0.125", "1.100"], ("point", False)),
        ({"commas": True}, ["5", "1100"], ("point", False)),
    ],
)
def test_what_nothing_tells_is_a_guess(format, values, expected):
    assert styles(x=values, **format)["x"] == expected


def test_columns_that_disagree_tell_nothing():
    found = styles(commas=True, x=["2.329", "1.100"], a=["5,12"], b=["5.12"])
    assert found["x"] == ("point", True)
    assert styles(commas=True, x=["2.329", "1.100"], a=["5,12", "x", "y"])["x"][1]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def numbers(table, path):
    schema = table.schema
    source = table._open(path)
    return read(source, schema.columns, None, commas=schema.decimal_commas).columns


def test_rents_in_a_german_file(tmp_path):
    rows = [f"{100 + i};{i % 7},1{i % 9};{550 + i}" for i in range(60)]
    rows += [f"{300 + i};6,8{i % 9};2.{329 + i}" for i in range(20)]
    table = Table(write(tmp_path / "t.csv", "size;weight;rent", *rows), target="rent")
    assert table.describe()["target"].startswith("rent, a number from 550 to 2348")
    assert "careful" not in table.describe()


def test_whole_thousands_are_whole_numbers(tmp_path):
    rows = [f"{1 + i % 3},000\t{'xy'[i % 2]}" for i in range(60)] + ["500\tx"] * 10
    table = Table(write(tmp_path / "t.tsv", "price\tlabel", *rows))
    (column,) = table.schema.columns
    assert (column.kind, column.values) == ("integer", (500, 1000, 2000, 3000))


def test_a_guess_is_told_and_does_not_change_with_the_rows_of_another_file(tmp_path):
    rows = [f"{1 + i % 9}.{100 + i};{'xy'[i % 2]}" for i in range(60)]
    table = Table(write(tmp_path / "t.csv", "price;label", *rows))
    told = "a number like 1.234 in price is read as 1.234, but may mean 1234"
    assert table.describe()["careful"].startswith(told)
    again = Table(table.path, schema=table.schema.to_json())
    assert again.describe() == table.describe()
    path = write(tmp_path / "new.csv", "price;label", "1.250;x", "1.250.000;x")
    np.testing.assert_array_equal(numbers(again, path)["price"], np.float32([1.25, np.nan]))


def test_a_target_that_is_a_guess_is_told(tmp_path):
    rows = [f"{i * i % 61}\t{1 + i % 9},{100 + i}" for i in range(60)]
    table = Table(write(tmp_path / "t.tsv", "x\tprice", *rows), target="price")
    assert table.describe()["target"].startswith("price, a number from 1100 to 9153")
    assert "1,234 in price is read as 1234" in table.describe()["careful"]


def test_a_value_means_the_same_beside_other_rows(tmp_path):
    rows = [f"{437 + i};5,1{i % 9};a" for i in range(40)]
    rows += [f"2.{600 + i};6,8{i % 9};b" for i in range(40)]
    table = Table(write(tmp_path / "t.csv", "price;weight;label", *rows))
    for more in ([], ["1.250.000;2,5"]):
        path = write(tmp_path / "new.csv", "price;weight", "1.250;2,5", *more, "900;1,1")
        assert numbers(table, path)["price"][0] == 1250
