"""The pieces of messages: the line that says what is wrong, and the name that was meant."""

import doctest

import pytest

from kerasdist import errors


def test_the_examples_run():
    assert doctest.testmod(errors).failed == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("bad shape", "bad shape"),
        (
            "Exception encountered when calling Own.call().\n\n\x1b[1mbad shape\x1b[0m\n",
            "bad shape",
        ),
        ('in user code:\n\n    File "a.py", line 3, in call\n    bad shape', "bad shape"),
        ("{{function_node __wrapped__MatMul}} bad shape [Op:MatMul]", "bad shape [Op:MatMul]"),
        ("Could not do it.\n\nError encountered:\n\nbad shape\nmore", "bad shape"),
        (
            "Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
            "<stack traces unavailable>\n2 root error(s) found.\n  (0) INTERNAL:  bad shape\n"
            "\t [[{{node a/b}}]]\n  (1) INTERNAL:  bad shape",
            "bad shape",
        ),
        ("", ""),
    ],
)
def test_the_reason_is_without_the_frame_of_keras(message, expected):
    assert errors.keras_reason(ValueError(message)) == expected


def test_nothing_is_guessed_when_no_name_is_near():
    assert errors.closest("weight", ["image", "label"]) == ""
    # Many letters are the same, but not in this order.
    assert errors.closest("--label-smoothing", ["--memory-growth", "--deterministic"]) == ""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--lerning_rate", "--learning-rate"),
        ("--epoch", "--epochs"),
        ("--batch", "--batch-size"),
        ("--data", "--data-dir"),
        ("--Devices", "--devices"),
        ("cifar", "cifar10"),
        ("teh", "the"),
    ],
)
def test_the_nearest_name_is_guessed(name, meant):
    known = ["--devices", "--decay-rate", "--batch-size", "--learning-rate", "--epochs", "the"]
    known += ["--data-dir", "cifar10", "--seed"]
    assert errors.closest(name, known) == f" Did you mean {meant!r}?"


def test_the_first_line_of_a_compiled_function_says_what_is_wrong():
    text = "Graph execution error:\n\nDetected at node a/b:\nbad shape\n\t [[{{node a/b}}]]"
    assert errors.first_line(ValueError(text)) == "bad shape"
    assert errors.first_line(ValueError("Graph execution error:")) == "ValueError"
