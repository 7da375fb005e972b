import pytest

from kerasdist import KerasdistError
from kerasdist.tables.reading.column_styles import find_styles
from kerasdist.tables.reading.styles import Written
from kerasdist.tables.survey import ColumnSurvey, Survey
from kerasdist.tables.target import find_target, understand_target


def column(name, values):
    found = ColumnSurvey(name)
    found.add([str(value) for value in values])
    found.finish()
    return found


def table(**columns):
    return Survey(20, 0, {name: column(name, values) for name, values in columns.items()})


NUMBERS = [i / 7 for i in range(20)]
WORDS = ["a", "b"] * 10


def understood(values, task=None):
    found = column("y", values)
    return understand_target(found, task, find_styles({"y": found}, commas=False, points=True)["y"])


def test_the_named_target_is_taken():
    assert find_target(table(x=NUMBERS, label=WORDS), "x", "t.csv") == "x"


@pytest.mark.parametrize("name", ["label", "Target", "SURVIVED", "y"])
def test_an_evident_name_is_the_target(name):
    assert find_target(table(**{name: WORDS, "other": WORDS}), None, "t.csv") == name


def test_the_only_strings_in_the_last_column_are_the_target():
    assert find_target(table(a=NUMBERS, b=NUMBERS, kind=WORDS), None, "t.csv") == "kind"


def test_it_is_asked_for_with_the_columns():
    told = r"not evident.*'a', 'b'\. Add it.*`target='b'` \(`--target b`\)"
    with pytest.raises(KerasdistError, match=told):
        find_target(table(a=NUMBERS, b=NUMBERS), None, "t.csv")
    with pytest.raises(KerasdistError, match=r"\(`--target 'Sale Price'`\)"):
        find_target(table(**{"a": NUMBERS, "Sale Price": NUMBERS}), None, "t.csv")
    with pytest.raises(KerasdistError, match=r"label and class both could be it"):
        find_target(table(**{"label": WORDS, "class": WORDS}), None, "t.csv")
    with pytest.raises(KerasdistError, match=r"'Surived'.*Did you mean 'Survived'"):
        find_target(table(Survived=WORDS), "Surived", "t.csv")


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["b", "a"] * 10, ("a", "b")),
        (["yes", "no", ""] * 10, ("no", "yes")),
        ([1, 0] * 10, ("0", "1")),
        (["1.0", "0.0", ""] * 10, ("0", "1")),
        ([10, 9, 2] * 10, ("2", "9", "10")),
        (["10%", "20%", "5%"] * 10, ("5%", "10%", "20%")),
        (["$5", "$10"] * 10, ("$5", "$10")),
        (["1,000", "2,000", "1000", "500"] * 10 + ["1,000"], ("500", "1,000", "2,000")),
        (["True", "False", "true"] * 10, ("False", "True")),
        (["None", "Insomnia", "Apnea", "", "NA"] * 10, ("Apnea", "Insomnia", "None")),
        (["+", "-"] * 10, ("+", "-")),
        (["1", "0", "-", "None"] * 10, ("0", "1")),
        (["yes", "no", "?", "nan"] * 10, ("no", "yes")),
        (["007", "1.0", "x"] * 10, ("007", "1.0", "x")),
    ],
)
def test_few_values_are_classes(values, classes):
    target = understood(values)
    assert (target.task, target.classes) == ("classification", classes)


@pytest.mark.parametrize("values", [NUMBERS, range(50), [0.5, 1.5] * 10])
def test_other_numbers_are_regression(values):
    assert understood(values).task == "regression"


def test_the_task_can_be_chosen():
    assert understood([1, 2, 3] * 10, "regression").task == "regression"
    assert understood([1.5, 2.5] * 10, "classification").classes == ("1.5", "2.5")


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([""] * 5, None, "has no value in any row"),
        (["a"] * 5, None, "has one class only, 'a'"),
        ([f"k{i}" for i in range(9)], None, "has another value in each row"),
        ([f"k{i}" for i in range(1500)] * 2, None, "more than 1,000 different values"),
        (
            ["1", "2", "many"],
            "regression",
            "has 1 value that is not a number, such as 'many'.*numbers, for regr",
        ),
        (
            [*range(500), "unknown"],
            None,
            r"has 1 value.* such as 'unknown'.*Correct.*--task regression.*leaves out",
        ),
        ([*range(500), "a", "b"], None, "has 2 values that are not numbers, such as 'a'"),
        (["long " * 99, "text " * 99] * 9, None, "has texts of more than 200 characters"),
        (["a", "b", *["1"] * 10], "regression", "has 2 values.* such as 'a'"),
        ([1.5] * 5, "regression", "has the same value in all rows"),
    ],
)
def test_what_cannot_be_predicted_is_refused(values, task, message):
    with pytest.raises(KerasdistError, match=message):
        understood(values, task)


def test_a_regression_leaves_out_a_few_values_that_are_no_numbers():
    target = understood([*range(500), "unknown"], "regression")
    assert target.task == "regression"


def test_few_numbers_and_another_class_are_classes():
    assert understood([1, 0] * 100 + ["unknown"]).classes == ("0", "1", "unknown")


def test_more_different_values_than_are_kept(monkeypatch):
    monkeypatch.setattr("kerasdist.tables.survey.MOST_VALUES", 10)
    with pytest.raises(KerasdistError, match="has 5 values that are not numbers, such as 'odd'"):
        understood([*range(20), *["odd"] * 5], "regression")
    assert understood([*range(500), "odd"], "regression").task == "regression"


def test_the_last_column_may_have_a_class_called_none():
    found = table(a=NUMBERS, b=NUMBERS, kind=["None", "x"] * 10)
    assert find_target(found, None, "t.csv") == "kind"


def test_grouped_numbers_are_not_taken_for_decimals():
    found = understand_target(column("y", ["1.000", "2.500,0"] * 10), None, Written("comma"))
    assert found.classes == ("1.000", "2.500,0")
