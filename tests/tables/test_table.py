import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError, Table
from kerasdist.tables.reading import raw as raws
from kerasdist.tables.schema import Schema


def write(path, header, rows):
    lines = [",".join(header), *(",".join(str(value) for value in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def people(tmp_path):
    """40 rows: the age is missing in every fourth, the town is rare in one."""
    rows = [
        [i, "" if i % 4 == 0 else i, "rare" if i == 7 else ["Bern", "Genf"][i % 2], "mf"[i % 2]]
        for i in range(40)
    ]
    return write(tmp_path / "people.csv", ["id", "age", "town", "class"], rows)


def test_missing_numbers_become_the_median_and_an_indicator(people):
    table = Table(people, validation_split=0)
    x, y = table.train
    (age, _) = table.schema.columns
    ages = [i for i in range(40) if i % 4]
    assert age.centers == (np.median(ages),)
    assert age.has_missing
    assert x["numbers"].shape == (40, 2)
    np.testing.assert_array_equal(x["numbers"][0], [0, 1])
    assert x["numbers"][1, 1] == 0
    assert table.class_names == ("f", "m")
    assert y.tolist() == [1, 0] * 20
    assert table.validation is None


def test_large_numbers_are_bent_and_small_ones_are_not(tmp_path):
    values = [*np.linspace(-1, 1, 99), 1e6]
    path = write(tmp_path / "t.csv", ["x", "y"], [[v, "ab"[i % 2]] for i, v in enumerate(values)])
    numbers = Table(path, validation_split=0).train[0]["numbers"][:, 0]
    assert 2.9 < numbers[-1] <= 3
    assert 1.0 < numbers[98] < 1.5


def test_rare_new_and_missing_values_have_their_own_numbers(people, tmp_path):
    table = Table(people, validation_split=0)
    column = table.schema.columns[1]
    assert column.values == ("Bern", "Genf")
    assert table.train[0]["categories"][7].tolist() == [1]
    other = write(tmp_path / "new.csv", ["town", "age"], [["Paris", 5], ["Genf", 6], ["?", 7]])
    assert table.read(other)["categories"].tolist() == [[1], [3], [0]]


def test_only_training_rows_are_learnt_from(tmp_path):
    path = write(
        tmp_path / "t.csv",
        ["x", "note", "y"],
        [[i + 0.5, f"word{i} word{i} and more words", "ab"[i % 2]] for i in range(100)],
    )
    table = Table(path, texts=["note"])
    chosen = np.flatnonzero(table._is_validation)
    train = [i for i in range(100) if i not in chosen]
    assert table.schema.columns[0].centers == (np.median(train) + 0.5,)
    assert not {f"word{i}" for i in chosen} & set(table.schema.vocabulary)
    assert {f"word{i}" for i in train} < set(table.schema.vocabulary)
    assert table.num_train == 80


def test_validation_and_training_rows_are_all_rows(people):
    table = Table(people)
    parts = [part[0]["numbers"] for part in (table.train, table.validation)]
    together = np.concatenate(parts)
    assert sorted(map(tuple, together)) == sorted(map(tuple, table.all[0]["numbers"]))
    assert table.test is None


def test_a_table_with_a_schema_learns_nothing(people, monkeypatch):
    table = Table(people)
    monkeypatch.setattr("kerasdist.tables.table.survey", lambda source: 1 / 0)
    monkeypatch.setattr(raws, "_last", None)
    again = Table(people, schema=table.schema.to_json())
    assert again.schema == table.schema == Schema.from_json(table.schema.to_json())
    for one, two in zip(table.train, again.train, strict=True):
        assert str(one) == str(two)
    assert again.describe() == table.describe()


def test_an_unchanged_file_is_read_once(people, monkeypatch):
    table = Table(people)
    monkeypatch.setattr(raws, "read", lambda *args, **options: 1 / 0)
    assert Table(people, schema=table.schema).num_train == 32
    people.write_text(people.read_text() + "40,40,Bern,m\n")
    with pytest.raises(ZeroDivisionError):
        _ = Table(people, schema=table.schema).num_train


def test_another_file_may_have_another_order_and_no_target(people, tmp_path):
    table = Table(people, validation_split=0)
    rows = [["x", "Genf" if i % 2 else "Bern", "" if i % 4 == 0 else i] for i in range(40)]
    other = write(tmp_path / "new.csv", ["more", "town", "age"], rows)
    found = table.read(other)
    np.testing.assert_array_equal(found["numbers"], table.train[0]["numbers"])


def test_a_missing_column_is_named(people, tmp_path):
    other = write(tmp_path / "new.csv", ["town", "Age"], [["Bern", 1]])
    with pytest.raises(KerasdistError, match=r"no column 'age'.*'age', 'town'.*mean 'Age'"):
        Table(people).read(other)


def test_several_missing_columns_are_named(people, tmp_path):
    other = write(tmp_path / "new.csv", ["other", "more"], [["Bern", 1]])
    with pytest.raises(KerasdistError, match=r"no columns 'age', 'town', which .* Add them\."):
        Table(people).read(other)


def test_a_missing_target_is_not_a_column_that_the_model_reads(people, tmp_path):
    other = write(tmp_path / "new.csv", ["town", "age"], [["Bern", 1]])
    told = "no column 'class', which the model predicts.*answers.*`kerasdist predict`"
    with pytest.raises(KerasdistError, match=told):
        _ = Table(other, schema=Table(people).schema).all


def test_examples_are_described_as_they_are_in_the_file(tmp_path):
    """By the number of their line, whatever else was left out before them."""
    header = [*"abcdefghij", "class"]
    rows = [[f"{i % 7}{letter}" for letter in "abcdefghij"] + ["yn"[i % 2]] for i in range(40)]
    rows[2][-1] = ""  # No target.
    for i, row in enumerate(rows):
        row[0] = i + 0.5
    rows[5][1] = "long " * 40
    path = write(tmp_path / "t.csv", header, rows)
    path.write_text(path.read_text().replace("\n", "\n\n", 1))  # A blank line.
    table = Table(path, target="class", validation_split=0)
    found = table.describe_examples("train", [4, 0, 4])
    assert found[0] == found[2]
    first = {"line": "3", "a": "0.5", **{letter: f"0{letter}" for letter in "bcdefgh"}}
    assert found[1] == first  # The first eight columns.
    assert found[0]["line"] == "8"
    assert found[0]["b"] == ("long " * 40)[:79] + "…"
    parted = Table(path, target="class", schema=Table(path, target="class").schema)
    found = parted.describe_examples("validation", [3])
    assert parted.class_names[parted.validation[1][3]] == "yn"[int(float(found[0]["a"])) % 2]
    assert parted.describe_examples("validation", []) == []


def test_rows_without_a_target_are_left_out_and_counted(people):
    people.write_text(people.read_text() + "40,40,Bern,\n41,41,Bern,?\n")
    table = Table(people)
    assert len(table.all[1]) == 40
    assert "2 rows without a target left out: 1 empty, 1 '?'" in table.describe()["table"]


def test_a_new_class_is_named_with_its_line(people, tmp_path):
    table = Table(people)
    other = tmp_path / "other.csv"
    other.write_text("age,town,class\n1,Bern,m\n2,Bern,x\n")
    with pytest.raises(KerasdistError, match=r"'class' is 'x' in line 3.*'f', 'm'"):
        _ = Table(other, schema=table.schema).all


def test_regression_keeps_the_units_of_the_target(tmp_path):
    path = write(
        tmp_path / "t.csv", ["x", "price"], [[i + 0.5, 1000 + 0.5 * i * i] for i in range(50)]
    )
    table = Table(path, target="price", validation_split=0)
    assert table.task == "regression"
    assert table.class_names == ()
    assert table.train[1].shape == (50, 1)
    assert table.train[1][3, 0] == 1004.5
    assert table.schema.target.center == pytest.approx(table.train[1].mean())
    assert table.schema.target.scale == pytest.approx(table.train[1].std())


def test_decimal_commas_and_thousands(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{i},5;1.{i:03};{'ab'[i % 2]}" for i in range(100, 150)]
    path.write_text("\n".join(["x;big;y", "1.234,5;1.000,5;a", *lines]))
    table = Table(path)
    assert [column.style for column in table.schema.columns] == ["comma", "comma"]
    path.write_text("\n".join(["x,y", *(f'"1,{i:03}.5",{"ab"[i % 2]}' for i in range(50))]))
    table = Table(path, validation_split=0)
    assert table.schema.columns[0].style == "thousands"
    assert 1000 < table.schema.columns[0].centers[0] < 1100


def test_dates_become_numbers(tmp_path):
    days = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(60)]
    path = write(tmp_path / "t.csv", ["day", "y"], [[d, "ab"[i % 2]] for i, d in enumerate(days)])
    assert Table(path).train[0]["numbers"].shape[1] == 5


def test_it_says_what_was_found(people):
    people.write_text(people.read_text() + "1,2\n")
    with pytest.raises(KerasdistError, match="Line 42"):
        Table(people)
    lines = Table(people, skip_bad=True).describe()
    lines.pop("careful", None)
    assert lines == {
        "table": "40 rows, 4 columns (1 bad line left out)",
        "target": "class, 2 classes: f (20), m (20)",
        "numbers": "age (10 missing)",
        "categories": "town (2 values that come twice or more)",
        "left out": "id (another number in each row)",
        "split": "32 rows to train on, 8 to validate",
    }


def test_a_column_that_tells_the_target_is_told(tmp_path):
    rows = [[i * i % 7, ["no", "yes"][i % 2], i % 2] for i in range(50)]
    path = write(tmp_path / "t.csv", ["x", "alive", "survived"], rows)
    assert "alive tells survived exactly" in Table(path).describe()["careful"]
    rows = [[i * i % 7, 2.54 * i + 1.27, i + 0.5] for i in range(50)]
    path = write(tmp_path / "t.csv", ["x", "cm", "inches"], rows)
    assert "cm tells inches" in Table(path, target="inches").describe()["careful"]


def test_a_rare_class_is_told(tmp_path):
    rows = [[i * i % 13, "yes" if i < 3 else "no"] for i in range(100)]
    path = write(tmp_path / "t.csv", ["x", "y"], rows)
    careful = Table(path).describe()["careful"]
    assert careful == "'yes' is rare (3 of 100); always answering 'no' would be right in 97.0%"


def test_a_table_without_rows_is_refused(tmp_path):
    path = write(tmp_path / "t.csv", ["x", "y"], [])
    with pytest.raises(KerasdistError, match="no rows"):
        Table(path)


def test_names_that_come_again_as_values_are_no_names(tmp_path):
    rows = [["red", "round"], ["green", "long"]] * 10
    path = write(tmp_path / "t.csv", ["red", "round"], rows)
    with pytest.raises(KerasdistError, match=r"'red', 'round' come again in their columns"):
        Table(path)
    assert Table(path, header=False, target="column_2").class_names == ("long", "round")


def joined(path, names="age,town,class"):
    """Three files, one after another."""
    part = "".join(f"{i},{['Bern', 'Genf'][i % 2]},{'mf'[i // 2 % 2]}\n" for i in range(20))
    path.write_text(f"{names}\n{part}" * 3)
    return path


def test_a_header_that_comes_again_is_left_out(tmp_path):
    path = joined(tmp_path / "t.csv")
    table = Table(path, target="class", validation_split=0)
    told = "60 rows, 3 columns (2 lines that repeat the header left out)"
    assert table.describe()["table"] == told
    assert table.schema.columns[0].kind == "number"
    assert table.schema.notes == ()
    assert Table(path, schema=table.schema).describe()["table"] == told
    assert Table(path).class_names == ("f", "m")
    assert table.describe_examples("train", [59])[0]["line"] == "63"
    path = joined(tmp_path / "u.csv", ",town,class")
    assert Table(path, categories=["unnamed"]).describe()["table"] == told


def test_a_header_among_rows_gets_no_answer(tmp_path):
    """And the answers of other rows do not shift."""
    path = joined(tmp_path / "t.csv")
    with pytest.raises(KerasdistError, match=r"Line 22 of .*t.csv' holds the names of the col"):
        Table(path, target="class").read(path)
    table = Table(path, target="class", skip_bad=True)
    with pytest.warns(UserWarning, match=r"2 bad lines of .* left out, without an answer"):
        assert len(table.read(path)["numbers"]) == 60
    numbers = table.row_numbers(path)
    assert (numbers[19], numbers[20], numbers[-1]) == (20, 22, 62)


def test_a_table_to_predict_needs_rows(people, tmp_path):
    other = write(tmp_path / "new.csv", ["age", "town"], [])
    with pytest.raises(KerasdistError, match=r"new.csv' has names of columns, but no rows"):
        Table(people).read(other)
    moved = write(tmp_path / "o.csv", ["id", "age", "town", "class"], [])
    with pytest.raises(KerasdistError, match=r"o.csv' has names of columns, but no rows"):
        _ = Table(moved, schema=Table(people).schema).all


def test_a_wrong_share_is_refused(people):
    with pytest.raises(KerasdistError, match=r"`validation_split=1\.5`"):
        Table(people, validation_split=1.5)


def test_looking_imports_no_tensorflow(people):
    script = (
        f"import sys, kerasdist; table = kerasdist.Table({str(people)!r}); table.train; "
        "print(table); assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(kerasdist.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert "target: class, 2 classes" in done.stdout


def numbers_in(tmp_path, name, lines):
    path = tmp_path / name
    path.write_text("\n".join(lines))
    return path


def commas(values, other=("3,25", "7,75")):
    rows = [f"{value};{other[i % 2]};{'ab'[i % 2]}" for i, value in enumerate(values)]
    return ["x;z;y", *rows]


@pytest.mark.parametrize("z", [("3.25", "7.75"), ("3,25", "7,75")])
def test_numbers_are_read_as_their_own_file_writes_them(tmp_path, z):
    """The style belongs to the file: another file may have decimal points."""
    values = np.arange(40) + 0.5
    table = Table(numbers_in(tmp_path, "t.csv", commas(str(v).replace(".", ",") for v in values)))
    expected = table.read(table.path)["numbers"]
    mark = z[0][1]
    lines = [f"{str(v).replace('.', mark)};{z[i % 2]}" for i, v in enumerate(values)]
    found = table.read(numbers_in(tmp_path, "new.csv", ["x;z", *lines]))["numbers"]
    np.testing.assert_array_equal(found, expected)
    if mark == ".":
        lines = [line.replace(";", ",") for line in ["x;z", *lines]]
        found = table.read(numbers_in(tmp_path, "new.csv", lines))["numbers"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["x;z", "1.234;3,25"], 1234.0),  # As in training: z has a decimal comma.
        (["x;z", "1.234;3.25"], 1.234),  # z has a decimal point.
        (["x;z", "1.234;4"], 1234.0),  # Nothing tells: as in training.
        (["x,z", "1.234,4"], 1.234),  # Another format: a point between commas.
        (["x;z", "1.234,5;3,25"], 1234.5),
        (["x;z", "1,5;3.25", "2,5;3.25", "1.5;3.25"], 1.5),  # Each column by itself.
    ],
)
def test_a_number_that_fits_two_styles_is_read_as_the_rest_of_the_file(tmp_path, lines, first):
    values = [*(f"1.{i:03},5" for i in range(100, 138)), "1.200", "1.300"]
    table = Table(numbers_in(tmp_path, "t.csv", commas(values)), numbers=["x"])
    assert table.schema.columns[0].style == "comma"
    raw = raws.read(
        table._open(numbers_in(tmp_path, "new.csv", lines)),
        table.schema.columns,
        None,
        commas=table.schema.decimal_commas,
    )
    assert raw.columns["x"][0] == np.float32(first)


def test_a_value_in_another_style_counts_as_missing_as_is_told(tmp_path):
    values = [*(f"{i},5" for i in range(195)), *["50.5"] * 5]
    table = Table(numbers_in(tmp_path, "t.csv", commas(values)), validation_split=0)
    assert table.schema.notes == ("x: 5 values that are not numbers count as missing",)
    assert np.isnan(table._raw.columns["x"]).sum() == 5


def test_a_target_is_read_as_its_own_file_writes_it(tmp_path):
    lines = [f"{i * i};{i},5" for i in range(40)]
    table = Table(numbers_in(tmp_path, "t.csv", ["x;y", *lines]), target="y")
    other = numbers_in(tmp_path, "o.csv", ["x,y", *(f"{i * i},{i}.5" for i in range(40))])
    moved = Table(other, schema=table.schema)
    assert sorted(moved.all[1][:, 0]) == sorted(table.all[1][:, 0])
    (found,) = moved.describe_examples("train", [0])
    assert found["x"] in {line.split(";")[0] for line in lines}


@pytest.mark.parametrize(
    ("classes", "written"),
    [
        (("5%", "10%"), ("5 %", "10")),
        (("$5", "$10"), ("5.0", "10")),
        (('"1,000"', '"2,000"'), ("1000", "2000.0")),
        (("True", "False"), ("true", "FALSE")),
        (("None", "Apnea"), ("None", "Apnea")),
        (("+", "-"), ("+", "-")),
    ],
)
def test_classes_are_read_however_they_are_written(tmp_path, classes, written):
    rows = [[i * i % 17, classes[i % 2]] for i in range(40)]
    table = Table(write(tmp_path / "t.csv", ["x", "label"], rows))
    rows = [[i * i % 17, written[i % 2]] for i in range(40)]
    other = write(tmp_path / "o.csv", ["x", "label"], rows)
    np.testing.assert_array_equal(Table(other, schema=table.schema).all[1], table.all[1])


def test_rows_that_a_regression_leaves_out_are_told(tmp_path):
    rows = [[i * i, i + 0.5] for i in range(100)] + [[1, "unknown"], [2, "-"], [2, "-"]]
    path = write(tmp_path / "t.csv", ["x", "price"], rows)
    told = Table(path, target="price", task="regression").describe()["table"]
    assert told.endswith("(3 rows without a target left out: 2 '-', 1 'unknown')")


def test_a_file_without_names_and_target_does_not_shift(tmp_path):
    rows = [["ab"[i % 2], i * i, i % 7 + 0.5, "same"] for i in range(40)]
    lines = [",".join(map(str, row)) for row in rows]
    path = numbers_in(tmp_path, "t.csv", lines)
    table = Table(path, target="column_1", header=False, validation_split=0)
    assert "column_4" in table.schema.left_out
    lines = [line.partition(",")[2] for line in lines]
    other = numbers_in(tmp_path, "new.csv", lines)
    expected = table.read(path)["numbers"]
    np.testing.assert_array_equal(table.read(other)["numbers"], expected)
    again = Table(other, header=False, schema=table.schema.to_json())
    np.testing.assert_array_equal(again.read(other)["numbers"], expected)
    with pytest.raises(KerasdistError, match="no column 'column_1'"):
        _ = again.all


def test_a_text_column_alone_is_enough_to_predict(tmp_path):
    rows = [[f"a text of words {i % 9}", "ab"[i % 2]] for i in range(40)]
    table = Table(write(tmp_path / "t.csv", ["text", "label"], rows), texts=["text"])
    other = numbers_in(tmp_path, "new.csv", ["text", *(row[0] for row in rows)])
    np.testing.assert_array_equal(table.read(other)["words"], table.read(table.path)["words"])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_table_that_has_grown_keeps_its_training_rows_apart(tmp_path, task):
    """Or `evaluate` would count rows that were trained on."""
    rows = [[i, i * i % 1009 + 0.5, f"word{i % 50}", i % 2] for i in range(1001)]
    header = ["n", "x", "word", "y"]
    path = write(tmp_path / "t.csv", header, rows[:1000])
    table = Table(path, target="y", task=task, ignore=["n"])
    assert table._is_validation.sum() == 200
    path.write_text("\n".join([",".join(header), *(",".join(map(str, r)) for r in rows[::-1])]))
    grown = Table(path, schema=table.schema.to_json())
    np.testing.assert_array_equal(grown._is_validation[::-1][:1000], table._is_validation)


def test_another_share_is_found_anew(people):
    table = Table(people)
    assert Table(people, schema=table.schema, validation_split=0.5).num_train == 20


@pytest.fixture
def owners(tmp_path):
    rows = [
        [["True", "False"][i % 2], ["1001.0", "1002.0"][i % 2], i * i, f"a{i % 3}", "xy"[i % 2]]
        for i in range(60)
    ]
    header = ["owns", "zip", "n", "code", "y"]
    return Table(write(tmp_path / "t.csv", header, rows), categories=["zip"], validation_split=0)


def test_booleans_and_whole_categories_in_another_form(owners, tmp_path):
    rows = [[["true", "FALSE"][i % 2], 1001 + i % 2, i * i, f"a{i % 3}"] for i in range(60)]
    other = write(tmp_path / "new.csv", ["owns", "zip", "n", "code"], rows)
    expected = owners.read(owners.path)["categories"]
    np.testing.assert_array_equal(owners.read(other)["categories"], expected)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ["yes", 1001, 5, "a1"],
            "9 of 10 values of the column 'owns' in '.*new.csv' are unknown to the "
            r"model \(new, or only once in the training rows\)",
        ),
        (["true", "Bern", 5, "a1"], "'zip' .* as 'Bern'.*Expected values such as '1001', '1002'"),
        (
            ["true", 1001, "5 m", "a1"],
            "'n' .* cannot be read as numbers, such as '5 m'",
        ),
    ],
)
def test_a_column_that_is_mostly_unknown_is_told(owners, tmp_path, row, message):
    rows = [["true", 1001, 5, "a1"], *[row] * 9]
    other = write(tmp_path / "new.csv", ["owns", "zip", "n", "code"], rows)
    with pytest.warns(UserWarning, match=message) as caught:
        owners.read(other)
    assert caught[0].filename == __file__
    moved = write(tmp_path / "o.csv", ["owns", "zip", "n", "code", "y"], [[*r, "x"] for r in rows])
    with pytest.warns(UserWarning, match=message.replace("new.csv", "o.csv")) as caught:
        _ = Table(moved, schema=owners.schema).all
    assert caught[0].filename == __file__


def test_a_count_of_values_says_that_rare_ones_are_not_in_it(tmp_path):
    rows = [[f"only{i}" if i % 5 else "often", i * i, "ab"[i % 2]] for i in range(100)]
    table = Table(write(tmp_path / "t.csv", ["k", "n", "y"], rows), categories=["k"])
    assert table.describe()["categories"] == "k (1 value that comes twice or more)"


def test_a_target_whose_classes_hardly_come_again_is_told(tmp_path):
    rows = [[i * i % 37, f"name {i % 55}"] for i in range(100)]
    table = Table(write(tmp_path / "t.csv", ["x", "name"], rows), target="name")
    told = "the target name has 55 classes for 100 rows, 10 of them with one row only: check"
    assert table.describe()["careful"].startswith(told)


def test_rare_values_as_in_training_are_not_told(tmp_path):
    """The table of the training itself has them."""
    rows = [[f"only{i}" if i % 5 else "often", i * i, "ab"[i % 2]] for i in range(100)]
    table = Table(write(tmp_path / "t.csv", ["k", "n", "y"], rows), categories=["k"])
    assert table.schema.columns[0].unknown == 0.8
    assert len(Table(table.path, schema=table.schema).read(table.path)["categories"]) == 100


def test_rows_have_the_numbers_of_the_file(people, tmp_path):
    table = Table(people, skip_bad=True)
    other = tmp_path / "new.csv"
    other.write_text("age,town\n1,Bern\n2\n3,Genf\n4,Bern,5\n")
    assert table.row_numbers(other).tolist() == [1, 3]
    with pytest.warns(UserWarning, match=r"2 bad lines of .*new.csv' left out, without"):
        assert len(table.read(other)["numbers"]) == 2
    assert Table(people).row_numbers(people) is None


def test_large_whole_numbers_that_repeat_are_categories(tmp_path):
    rows = [[1_000_000_001 + i % 6, 20240101 + i % 20, "ab"[i % 2]] for i in range(120)]
    table = Table(write(tmp_path / "t.csv", ["shop", "day", "y"], rows), validation_split=0)
    shop, day = table.schema.columns
    assert (shop.kind, shop.values) == ("category", tuple(str(1_000_000_001 + i) for i in range(6)))
    assert (day.kind, len(day.values)) == ("category", 20)
    ids = table.train[0]["categories"]
    assert len(np.unique(ids[:, 0])) == 6


@pytest.mark.parametrize("first", [1_000_000_001, -1_000_000_001, 20_240_101])
def test_large_numbers_stay_apart(tmp_path, first):
    """float32 has seven digits."""
    rows = [[first + i, "ab"[i % 2]] for i in range(40)] * 3
    table = Table(write(tmp_path / "t.csv", ["x", "y"], rows), numbers=["x"], validation_split=0)
    small = [[i, "ab"[i % 2]] for i in range(40)] * 3
    other = Table(write(tmp_path / "s.csv", ["x", "y"], small), numbers=["x"], validation_split=0)
    numbers = table.train[0]["numbers"]
    assert numbers.dtype == np.float32
    np.testing.assert_allclose(numbers, other.train[0]["numbers"], atol=1e-6)
    new = write(tmp_path / "new.csv", ["x", "z"], [[first, 0], [first + 1, 0]])
    np.testing.assert_array_equal(table.read(new)["numbers"], numbers[:2])


def test_rows_with_large_numbers_keep_their_part_in_any_order(tmp_path):
    rows = [[20_240_101 + i // 2, i % 10 + 0.1] for i in range(200)]
    path = write(tmp_path / "t.csv", ["x", "y"], rows)
    table = Table(path, target="y")
    assert table._is_validation.sum() == 40
    write(path, ["x", "y"], rows[::-1])
    again = Table(path, schema=table.schema)
    np.testing.assert_array_equal(again._is_validation[::-1], table._is_validation)


def test_small_numbers_mean_the_same_beside_large_ones(tmp_path):
    rows = [[f"{i}.1", i % 7 + 0.1] for i in range(200)]
    path = write(tmp_path / "t.csv", ["x", "y"], rows)
    table = Table(path, target="y")
    assert table._is_validation.sum() == 40
    write(path, ["x", "y"], [*rows, [1_000_000_001, 0.5]])
    grown = Table(path, schema=table.schema)
    assert grown._raw.columns["x"].dtype == np.float64
    np.testing.assert_array_equal(grown._is_validation[:200], table._is_validation)


def test_large_targets_are_float32(tmp_path):
    rows = [[i * i, 1_000_000_001 + i] for i in range(40)]
    table = Table(write(tmp_path / "t.csv", ["x", "y"], rows), target="y", task="regression")
    assert table.train[1].dtype == np.float32
    told = "y has numbers so large that answers are multiples of 64: subtract"
    assert told in table.describe()["careful"]
    rows = [[i * i, 20_240_101 + 100 * i] for i in range(40)]
    table = Table(write(tmp_path / "t.csv", ["x", "y"], rows), target="y", task="regression")
    assert "careful" not in table.describe() or "large" not in table.describe()["careful"]
