import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.tables.raw_inputs import RawInputs, words_of
from kerasdist.tables.table import Table
from kerasdist.tables.words import words_of as words_in_python

TEXTS = [
    "Don't panic: it's 42!",
    "",
    "  two   blanks\tand\ttabs\r\nlines ",
    "ÄÖÜ äöü Straße ΣΊΣΥΦΟΣ İstanbul",
    "日本語のテキスト, 漢字 and kana",
    "हिन्दी में लिखा",
    "a_b-c.d/e@f#g",
    "emoji 😀 and ½ ² Ⅷ",
    "‘quoted’ “words”…",
    "x" * 50,
]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_cut_into_words_as_in_python(text):
    found = [word.decode() for word in words_of(tf.constant([text]))[0].numpy().tolist()]
    assert found == words_in_python(text)


HEADER = ["size in m²", "rooms", "sex", "married", "sold", "note", "town", "zip", "label"]
TOWNS = ["Bern", "Zürich", "Genève", "?", ""]


def row(i, random):
    day = f"20{random.integers(10, 30)}-{random.integers(1, 13):02}-{random.integers(1, 29):02}"
    sold = [day, f"{day} 12:30", f"{day}T23:59:01.5", ""][random.integers(0, 4)]
    text = " ".join(random.choice(TEXTS, 3)).replace("\r\n", " ")
    return [
        ["", "n/a", f"{random.normal(100, 40):.2f}", "1e3"][random.integers(0, 4)],
        ["", *"12345"][random.integers(0, 6)],
        [" f", "m ", "m", "x"][random.integers(0, 4)],
        ["yes", "no", "YES", " No"][random.integers(0, 4)],
        sold,
        text,
        TOWNS[random.integers(0, 5)],
        ["1001", "1001.0", "-7.00", "-7", "007", "1.5", "x.0", ""][random.integers(0, 8)],
        ["a", "b"][i % 2],
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "mixed.csv"
    random = np.random.default_rng(0)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(row(i, random) for i in range(300))
        writer.writerow(["1e9", "2", "f", "no", "never", "", "?", "1001.0.0", "b"])
        writer.writerow(
            ["77", "99", "new", "no", "2024-02-30", "unseen words", "Nowhere", "1.0", "a"]
        )
    return Table(path, target="label", texts=["note"], categories=["zip"], numbers=["size in m²"])


def raw_values(table, inputs):
    """What a client of the exported model sends: strings as they are in the file, and floats."""
    with open(table.path, newline="") as file:
        rows = list(csv.DictReader(file))
    sent = {}
    for name, column in inputs.columns.items():
        values = [row[column.name] for row in rows]
        if inputs.inputs[name].dtype == tf.string:
            sent[name] = tf.constant(values)
        else:
            numbers = [float(v) if v not in ("", "n/a") else np.nan for v in values]
            sent[name] = tf.constant(numbers, inputs.inputs[name].dtype)
    return sent


def test_all_kinds_of_columns_become_the_arrays_of_numpy(table):
    kinds = {column.name: column.kind for column in table.schema.columns}
    assert kinds == {
        "size in m²": "number",
        "rooms": "integer",
        "sex": "category",
        "married": "boolean",
        "sold": "date",
        "note": "text",
        "town": "category",
        "zip": "category",
    }
    inputs = RawInputs(table.schema)
    found = tf.function(inputs)(**raw_values(table, inputs))
    expected = table.read(table.path)
    assert set(found) == set(expected) == {"numbers", "categories", "words"}
    np.testing.assert_array_equal(found["categories"], expected["categories"])
    np.testing.assert_array_equal(found["words"], expected["words"])
    np.testing.assert_allclose(found["numbers"], expected["numbers"], atol=1e-5)


def test_categories_are_the_same_however_they_are_written(table):
    values = {column.name: column.values for column in table.schema.columns}
    assert values["married"] == ("no", "yes")
    assert values["zip"] == ("-7", "007", "1.5", "1001", "x.0")


def test_inputs_have_names_that_signatures_allow(table):
    assert next(iter(RawInputs(table.schema).inputs)) == "size_in_m_"


def test_large_numbers_stay_apart(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{20_240_101 + i % 50},{i * i},{'ab'[i % 2]}" for i in range(100)]
    path.write_text("\n".join(["day,n,label", *lines]))
    table = Table(path)
    inputs = RawInputs(table.schema)
    assert [spec.dtype for spec in inputs.inputs.values()] == [tf.float64, tf.float32]
    found = tf.function(inputs)(**raw_values(table, inputs))["numbers"]
    np.testing.assert_allclose(found, table.read(path)["numbers"], atol=1e-5)
    assert len(np.unique(found[:, 0])) == 50


def test_columns_with_any_names_can_be_served(tmp_path):
    """TensorFlow refuses Python's words as names of inputs, and `age` beside `Age`."""
    names = ["class", "is", "from", "self", "Self", "age", "Age", "AGE", "age_2", "None", "x y"]
    lines = [",".join(str((i * i + j) % 37 + 0.5) for j in range(len(names))) for i in range(60)]
    path = tmp_path / "t.csv"
    rows = [f"{line},{'ab'[i % 2]}" for i, line in enumerate(lines)]
    path.write_text("\n".join([",".join([*names, "kind"]), *rows]))
    table = Table(path, target="kind")
    inputs = RawInputs(table.schema)
    assert len({name.lower() for name in inputs.inputs}) == len(names)
    assert list(inputs.inputs)[:5] == ["class_", "is_", "from_", "self_", "Self__2"]
    archive = keras.export.ExportArchive()
    archive.track(inputs)
    specs = list(inputs.inputs.values())

    def arrays(*tensors):
        return inputs(**dict(zip(inputs.inputs, tensors, strict=True)))

    archive.add_endpoint("rows", arrays, input_signature=specs)
    archive.write_out(str(tmp_path / "served"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["rows"]
    found = served(**raw_values(table, inputs))["numbers"]
    np.testing.assert_allclose(found, table.read(path)["numbers"], atol=1e-5)
