"""What `kerasdist predict --output` writes."""

import csv

import ml_dtypes
import numpy as np
import pytest

from kerasdist.evaluation import answers_csv
from kerasdist.evaluation.classes import Guess


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (np.array([2**53 + 1, -3]), ["9007199254740993", "-3"]),
        (np.array([True, False]), ["1", "0"]),
        (np.array([1 / 3, 0.1, np.nan]), ["0.3333333333333333", "0.1", "nan"]),
        (np.array([1 / 3, 16_777_215], "float32"), ["0.333333343", "16777215"]),
        (np.array([0.5], ml_dtypes.bfloat16), ["0.5"]),
    ],
)
def test_values_keep_all_their_digits(tmp_path, values, texts):
    answers_csv.write(tmp_path / "answers.csv", [({"file": "a"}, values, None)])
    assert rows_of(tmp_path / "answers.csv")[1] == ["a", *texts]


def test_names_of_files_and_classes_may_hold_anything(tmp_path):
    name = 'a, "b"\n<i>é</i>'
    guess = Guess(name, 1, 0.25, is_probability=True)
    answers_csv.write(tmp_path / "answers.csv", [({"file": name}, np.zeros(2), [guess])] * 2)
    expected = [["file", "class", "probability"], *[[name, name, "0.25"]] * 2]
    assert rows_of(tmp_path / "answers.csv") == expected
