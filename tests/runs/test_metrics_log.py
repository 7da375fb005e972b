"""metrics.jsonl: appended to, rewound, read and interpreted in one place."""

import json

import pytest

from kerasdist.runs import metrics_log
from kerasdist.runs.metrics_log import Best

LINES = [
    {"kind": "step", "step": 5, "loss": 3.0},
    {"kind": "epoch", "step": 7, "epoch": 1, "loss": 2.5, "val_loss": 2.0, "accuracy": 0.5},
    {"kind": "step", "step": 10, "loss": 2.0, "learning_rate": 0.1},
    {"kind": "epoch", "step": 14, "epoch": 2, "loss": 1.5, "val_loss": 2.0, "accuracy": 0.75},
    {"kind": "step", "step": 15, "loss": None},
]


@pytest.fixture
def run(tmp_path):
    for line in LINES:
        metrics_log.append(tmp_path, line)
    return tmp_path


def test_what_was_appended_is_read(run):
    assert metrics_log.read(run) == LINES
    assert metrics_log.last_step(run) == 15
    assert [line["step"] for line in metrics_log.of_kind(LINES, metrics_log.EPOCH)] == [7, 14]


def test_nan_is_written_as_null(tmp_path):
    metrics_log.append(tmp_path, {"kind": "step", "step": 1, "loss": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "step", "step": 1, "loss": null}\n'


def test_there_may_be_no_log(tmp_path):
    metrics_log.rewind(tmp_path, 3, 1)
    assert metrics_log.read(tmp_path) == []
    assert metrics_log.last_step(tmp_path) == 0
    assert metrics_log.best_epoch(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_half_a_line_and_other_things_are_left_out(run):
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'[1]\n"text"\n\xff\n{"kind": "step"}\n{"step": true}\n{"kind": "step", "st')
    assert metrics_log.read(run) == LINES
    metrics_log.rewind(run, 15, 2)
    assert (run / "metrics.jsonl").read_bytes().count(b"\n") == len(LINES)


def test_of_many_steps_the_last_are_read_and_all_epochs(tmp_path):
    lines = [{"kind": "step", "step": step} for step in range(1, 41)]
    lines.insert(10, {"kind": "epoch", "step": 10, "epoch": 1})
    for line in lines:
        metrics_log.append(tmp_path, line)
    assert metrics_log.read(tmp_path, last_steps=3) == [lines[10], *lines[-3:]]


@pytest.mark.parametrize(
    ("step", "epoch", "kept"),
    [(0, 0, []), (7, 0, [0]), (7, 1, [0, 1]), (10, 1, [0, 1, 2]), (15, 2, [0, 1, 2, 3, 4])],
)
def test_rewinding_removes_what_will_be_logged_again(run, step, epoch, kept):
    metrics_log.rewind(run, step, epoch)
    assert metrics_log.read(run) == [LINES[i] for i in kept]


def test_lines_in_another_order_are_rewound_as_well(run):
    """Then the file cannot just be cut off."""
    lines = [LINES[4], LINES[0], LINES[1]]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    metrics_log.rewind(run, 10, 1)
    assert metrics_log.read(run) == [LINES[0], LINES[1]]
    assert [path.name for path in run.iterdir()] == ["metrics.jsonl"]


def test_the_best_epoch_is_the_first_of_equal_ones(run):
    assert metrics_log.best_epoch(run) == ("val_loss", Best(2.0, 1))
    assert metrics_log.best_epoch(run, "loss") == ("loss", Best(1.5, 2))
    assert metrics_log.best_epoch(run, "accuracy") == ("accuracy", Best(0.75, 2))
    assert metrics_log.best_epoch(run, "unknown") is None


def test_metrics_are_told_from_other_numbers():
    line = {"kind": "epoch", "step": 1, "epoch": 1, "learning_rate": 0.1, "loss": 1, "nan": None}
    assert metrics_log.metrics_of({**line, "matrix": [1, 2], "text": "x"}) == {
        "loss": 1,
        "nan": None,
    }


def test_a_curve_has_gaps_where_a_value_was_not_finite():
    assert metrics_log.curve(LINES, "loss")[-2:] == [(14.0, 1.5), (15.0, None)]
    assert metrics_log.curve(LINES, "learning_rate") == [(10.0, 0.1)]
