import numpy as np
import pytest

from kerasdist import KerasdistError
from kerasdist.tables import survey as surveys
from kerasdist.tables.files.opening import open_table
from kerasdist.tables.kinds import Choice, find_kinds
from kerasdist.tables.reading.column_styles import find_styles
from kerasdist.tables.survey import survey

RANDOM = np.random.default_rng(0)
N = 200


def kinds_of(tmp_path, columns, choice=None, name="table.csv", delimiter=","):
    """The kinds, what is left out, and the notes, for columns of `N` values each."""
    path = tmp_path / name
    lines = [delimiter.join([*columns, "label"])]
    lines += [
        delimiter.join(f'"{values[i]}"' for values in [*columns.values(), ["a", "b"] * N])
        for i in range(N)
    ]
    path.write_text("\n".join(lines))
    source = open_table(path)
    seen = survey(source)
    styles = find_styles(seen.columns, commas=source.decimal_commas, points=source.decimal_points)
    found = find_kinds(seen, "label", choice or Choice(), styles)
    return {column.name: column.kind for column in found.columns}, found.left_out, found.notes


def one(tmp_path, values, name="x", **options):
    """The kind of one column, or why it is left out."""
    columns = {name: list(values), "other": RANDOM.normal(size=N)}
    kinds, left_out, _ = kinds_of(tmp_path, columns, **options)
    return kinds.get(name) or left_out[name]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RANDOM.normal(size=N), "number"),
        ([f"{v:.2f}%" for v in RANDOM.normal(size=N)], "number"),
        (["", *RANDOM.normal(size=N - 1)], "number"),
        (RANDOM.integers(0, 1000, N), "number"),
        (RANDOM.integers(0, 2, N), "number"),
        (RANDOM.integers(1, 6, N), "integer"),
        ([f"{v}.0" for v in RANDOM.integers(1, 6, N)], "integer"),
        (RANDOM.choice(["yes", "no"], N), "boolean"),
        (RANDOM.choice(["True", "FALSE", ""], N), "boolean"),
        (RANDOM.choice(["red", "green", "blue"], N), "category"),
        (RANDOM.choice(["x", ""], N), "category"),
        ([f"2024-01-{1 + i % 28:02}" for i in range(N)], "date"),
        ([f"a text with words and a number {i}" for i in range(N)], "text"),
        ([""] * N, "empty"),
        (["same"] * N, "always same"),
        (range(N), "another number in each row"),
        ([f"code{i}" for i in range(N)], "another value in nearly each row"),
        ([f"{1 + i % 28:02}/03/2024" for i in range(N)], "dates that are not written like"),
    ],
)
def test_the_kind_of_a_column(tmp_path, values, expected):
    assert one(tmp_path, values).startswith(expected)


def test_unique_numbers_are_identifiers_by_their_name_only(tmp_path):
    values = RANDOM.permutation(10 * N)[:N]
    assert one(tmp_path, values, name="customer_id") == "another number in each row"
    assert one(tmp_path, values, name="population") == "number"
    assert one(tmp_path, RANDOM.normal(size=N), name="id") == "number"


@pytest.mark.parametrize(
    "name",
    ["id", "ID", "Id", "user id", "user_id", "USER-ID", "userId", "PassengerID", "Unnamed: 0"],
)
def test_a_name_that_means_an_identifier(tmp_path, name):
    values = RANDOM.permutation(10 * N)[:N]
    assert one(tmp_path, values, name=name) == "another number in each row"


@pytest.mark.parametrize("name", ["id", "number of the row"])
@pytest.mark.parametrize(
    "values",
    [
        [*range(N - 1), "Sum"],
        [*range(N - 1), N - 2],
        [*range(N - 2), N - 3, "Sum"],
        [7, 7, *range(1, N - 1)],
    ],
    ids=["a footer", "a row twice", "both", "a row twice, in the middle"],
)
def test_one_odd_row_does_not_make_a_feature_of_an_identifier(tmp_path, values, name):
    assert one(tmp_path, values, name=name) == "another number in nearly each row"


@pytest.mark.parametrize("name", ["id", "rank"])
def test_numbers_that_repeat_now_and_then_are_no_identifier(tmp_path, name):
    assert one(tmp_path, [*range(N - 5), 1, 2, 3, 4, 5], name=name) == "number"


def test_a_small_table_has_no_room_for_exceptions(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.N", 12)
    assert one(tmp_path, [*range(11), 10], name="age") == "number"


def test_a_row_that_comes_twice_far_apart_is_an_exception(tmp_path, monkeypatch):
    monkeypatch.setattr(surveys, "MOST_VALUES", 50)
    monkeypatch.setattr("kerasdist.tables.files.csv_file.ROWS_OF_A_BLOCK", 25)
    values = [*range(N - 1), 0]
    assert one(tmp_path, values, name="n").startswith("another number")


@pytest.mark.parametrize("name", ["paid", "bid", "humid", "PAID", "monkey", "Android", "solid"])
def test_a_name_that_only_ends_like_one(tmp_path, name):
    values = RANDOM.permutation(10 * N)[:N]
    assert one(tmp_path, values, name=name) == "number"


def test_few_values_that_are_no_numbers_count_as_missing_and_are_told(tmp_path):
    values = [*RANDOM.normal(size=N - 2), "about 3", "unknown"]
    kinds, _, notes = kinds_of(tmp_path, {"x": values})
    assert kinds == {"x": "number"}
    assert notes == ("x: 2 values that are not numbers count as missing",)
    kinds, _, notes = kinds_of(tmp_path, {"x": [*RANDOM.normal(size=N - 1), "unknown"]})
    assert notes == ("x: 1 value that is not a number counts as missing",)
    dates = [f"2024-01-{1 + i % 28:02}" for i in range(N - 1)]
    _, _, notes = kinds_of(tmp_path, {"x": [*dates, "unknown"]})
    assert notes == ("x: 1 value that is not a date counts as missing",)


def test_many_columns_of_small_numbers_are_measurements(tmp_path):
    columns = {f"pixel{i}": RANDOM.integers(0, 16, N) for i in range(30)}
    kinds, _, _ = kinds_of(tmp_path, columns)
    assert set(kinds.values()) == {"number"}


def test_the_user_decides(tmp_path):
    columns = {"a": RANDOM.integers(0, 9, N), "b": [f"k{i}" for i in range(N)], "c": ["x y"] * N}
    choice = Choice(ignore=("c",), numbers=("a",), categories=("b",))
    kinds, left_out, _ = kinds_of(tmp_path, columns, choice)
    assert kinds == {"a": "number", "b": "category"}
    assert left_out == {"c": "ignored"}
    assert kinds_of(tmp_path, columns, Choice(texts=("c",)))[0]["c"] == "text"


def test_more_values_than_are_kept_are_understood(tmp_path, monkeypatch):
    monkeypatch.setattr(surveys, "MOST_VALUES", 10)
    monkeypatch.setattr("kerasdist.tables.files.csv_file.ROWS_OF_A_BLOCK", 25)
    columns = {
        "x": RANDOM.normal(size=N),
        "n": RANDOM.integers(0, 100, N),
        "id": range(N),
        "code": [f"c{i}" for i in range(N)],
        "note": [f"this is text {i}" for i in range(N)],
        "few": RANDOM.integers(1, 5, N),
    }
    kinds, left_out, _ = kinds_of(tmp_path, columns)
    assert kinds == {"x": "number", "n": "number", "note": "text", "few": "integer"}
    assert set(left_out) == {"id", "code"}


def test_wrong_choices_are_refused():
    with pytest.raises(KerasdistError, match=r"`ignore` with 'agee'.*Did you mean 'age'"):
        Choice(ignore=("agee",)).check(["age", "sex"], "sex")
    with pytest.raises(KerasdistError, match="'sex' in both `target` and `numbers`"):
        Choice(numbers=("sex",)).check(["age", "sex"], "sex")


def test_a_table_without_usable_columns_is_refused(tmp_path):
    with pytest.raises(KerasdistError, match=r"no column to learn from.*x: always 1"):
        kinds_of(tmp_path, {"x": [1] * N})


def test_long_texts_are_not_kept(tmp_path):
    """They would need gigabytes. How often they come is known without them."""
    text = "many words of a long text " * 40
    found = surveys.ColumnSurvey("x")
    found.add([text, text + "!", "short", text, ""])
    found.finish()
    assert (found.present, found.missing, found.num_values) == (4, 1, 3)
    assert found.words == 3 * 240 + 2  # "!" is a word, and "short".
    assert found.num_repeats == 1
    assert max(map(len, found.values)) < 300
    assert sorted(found.values.values()) == [1, 1, 2]
    assert not found.numbers


def test_long_texts_are_texts(tmp_path):
    values = [f"{'a long text with many words ' * 20}{i}" for i in range(N)]
    assert one(tmp_path, values) == "text"
    assert one(tmp_path, ["always the same long text " * 20] * N).startswith("always always the")


def test_more_long_texts_than_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(surveys, "MOST_VALUES", 10)
    monkeypatch.setattr("kerasdist.tables.files.csv_file.ROWS_OF_A_BLOCK", 25)
    values = [f"{'a long text with many words ' * 20}{i}" for i in range(N)]
    assert one(tmp_path, values) == "text"
