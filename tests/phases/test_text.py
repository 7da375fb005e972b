"""Numbers as people read them."""

import math

import numpy as np
import pytest

from kerasdist.cli.commands import predict
from kerasdist.phases.text import decimal, wrapped
from kerasdist.reports.html import text_of
from kerasdist.training.progress.bar import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.123456, "0.1235"),
        (12.3456, "12.35"),
        (999.96, "1,000"),
        (1234.5678, "1,235"),
        (34771.2, "34,771"),
        (1445213.0, "1,445,213"),
        (-895955.3, "-895,955"),
        (123456792.0, "123,456,792"),
        (1e9, "1e+09"),
        (0.0001, "0.0001"),
        (0.00001234, "1.234e-05"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_is_plain_where_that_is_short(value, text):
    assert decimal(value) == text
    assert number(value) == number(np.float32(value)) == text


def test_answers_have_more_digits():
    assert decimal(12.345678, digits=6) == "12.3457"
    assert decimal(1234.5678, digits=6) == "1,234.57"
    assert decimal(1200.0, digits=6) == "1,200"
    assert decimal(895955.3, digits=6) == "895,955"
    assert predict.text_of(np.array([[895955.3], [0.1]], "float32"), None) == "895,955, 0.1"


def test_reports_say_numbers_in_the_same_way():
    assert text_of({"target": 1445213.0, "output": 0.123456}) == "target 1,445,213, output 0.1235"


def test_lines_break_between_words_and_continue_below_themselves():
    text = "final      loss = 0.1234, accuracy = 0.5, val_loss = 0.25, val_accuracy = 0.6822"
    assert wrapped(text, 80) == text
    assert wrapped(text, 60) == (
        "final      loss = 0.1234, accuracy = 0.5, val_loss = 0.25,\n"
        "           val_accuracy = 0.6822"
    )
    assert wrapped("✗ gpu: none was found\n  Install the driver of it", 20) == (
        "✗ gpu: none was\nfound\n  Install the driver\n  of it"
    )


def test_what_is_copied_stays_in_one_piece():
    for text in (
        "continue   kerasdist fit runs/shapes/0001 --run-dir runs/shapes/0001 --epochs 4",
        "evaluate   kerasdist.evaluate('runs/shapes/0001', data)",
        "kerasdist fit shapes --epochs 4 --batch-size 8",
        "    --run-dir runs/shapes/0001 --epochs 4",
    ):
        assert wrapped(text, 20) == text
    assert "/a/very/long/path/of/a/report.html" in wrapped(
        "page  /a/very/long/path/of/a/report.html: a page", 20
    )
