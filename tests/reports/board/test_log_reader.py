"""Reading a log that grows, and curves of any length."""

import doctest
import json
import os
import time

import pytest

from kerasdist.reports.board import curve, log_reader
from kerasdist.reports.board.curve import Curve
from kerasdist.reports.board.log_reader import LogReader
from kerasdist.reports.plots import MOST_POINTS
from kerasdist.runs import metrics_log, reading
from tests import run_folders


def write(folder, lines, mode="w"):
    folder.mkdir(exist_ok=True)
    with open(folder / "metrics.jsonl", mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read_all(log):
    while log.read(1 << 20):
        pass
    return log


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(curve).failed == 0


def test_a_short_log_is_read_as_the_report_reads_it(tmp_path):
    folder = run_folders.finished(tmp_path / "run", num_epochs=5)
    log, run = read_all(LogReader(folder)), reading.read(folder)
    assert log.by_epoch("val_accuracy")[0] == metrics_log.curve(run.epochs, "val_accuracy")
    assert log.by_step("loss")[0] == metrics_log.curve(run.steps, "loss")
    assert log.by_step("nothing") == ([], [])
    assert (log.every, log.num_pending) == (1, 0)
    shown = reading.Run(folder, {}, {}, {}, {}, {}, log.steps, log.epochs, "unfinished")
    assert shown.metric_names == run.metric_names
    assert shown.final == {name: run.epochs[-1][name] for name in run.metric_names}
    for name in run.metric_names:
        assert shown.best(name) == run.best(name)
    assert (shown.num_steps, shown.num_epochs, shown.rate) == (10, 5, 50.0)


def test_each_byte_is_read_once(tmp_path):
    lines = list(run_folders.lines(4))
    write(tmp_path, lines[:5])
    log = LogReader(tmp_path)
    assert log.read(1 << 20) == os.path.getsize(tmp_path / "metrics.jsonl")
    assert log.read(1 << 20) == 0
    write(tmp_path, lines[5:7], "a")
    assert 0 < log.read(1 << 20) < 400
    assert [x for x, _ in log.by_step("loss")[0]] == [1, 2, 3, 4, 5]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    lines = list(run_folders.lines(1))
    write(tmp_path, lines[:1])
    half = json.dumps(lines[1])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(half[:20])
    log = read_all(LogReader(tmp_path))
    assert len(log.by_step("loss")[0]) == 1
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(half[20:] + "\n")
    assert [x for x, _ in read_all(log).by_step("loss")[0]] == [1, 2]


def test_an_epoch_that_trained_nothing_is_not_the_best(tmp_path):
    """As `metrics_log.best` says it: every step of the second epoch was skipped."""
    values = zip((0.5, None, 0.4), (0.4, 0.3, 0.5), strict=True)
    lines = [
        {"kind": "epoch", "step": i, "epoch": i, "loss": loss, "val_loss": val_loss}
        for i, (loss, val_loss) in enumerate(values, start=1)
    ]
    write(tmp_path / "run", lines)
    log = read_all(LogReader(tmp_path / "run"))
    assert metrics_log.best(log.epochs, "val_loss") == metrics_log.best(lines, "val_loss")


@pytest.mark.parametrize(
    "broken", ["{", "[1]", '{"kind": "step"}', '"x"', "[", "1, 2", "\0\0", "[" * 10**5]
)
def test_broken_lines_are_left_out(tmp_path, broken):
    good = [json.dumps(line) for line in run_folders.lines(2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([good[0], broken, *good[1:], broken, ""]))
    log = read_all(LogReader(tmp_path))
    assert [x for x, _ in log.by_step("loss")[0]] == [1, 2, 3, 4]
    assert [x for x, _ in log.by_epoch("loss")[0]] == [2, 4]


def test_values_that_are_not_finite_are_gaps(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "epoch", "step": 1, "epoch": 1, "loss": NaN, "f1": [0.5], "on": true}\n'
        '{"kind": "epoch", "step": 2, "epoch": 2, "loss": 0.5, "note": "x"}\n'
        '{"kind": "epoch", "step": 3, "epoch": 3, "loss": null}\n'
    )
    log = read_all(LogReader(tmp_path))
    assert log.by_epoch("loss")[0] == [(1, None), (2, 0.5), (3, None)]
    assert log.by_epoch("f1") == log.by_epoch("on") == log.by_epoch("note") == ([], [])


@pytest.mark.parametrize("way", ["shorter", "another file", "grown since"])
def test_a_log_that_was_rewritten_is_read_again(tmp_path, way):
    """A resumed run removes the lines that it will log again."""
    write(tmp_path, run_folders.lines(4))
    log = read_all(LogReader(tmp_path))
    path = tmp_path / "metrics.jsonl"
    if way == "shorter":
        write(tmp_path, run_folders.lines(2, loss=7.0))
    elif way == "another file":
        path.rename(tmp_path / "old")
        write(tmp_path, run_folders.lines(6, loss=7.0))
    else:
        content = path.read_bytes()
        os.truncate(path, len(content) // 2)
        write(tmp_path, run_folders.lines(8, loss=7.0))
    read_all(log)
    values = [y for _, y in log.by_step("loss")[0]]
    expected = [line["loss"] for line in metrics_log.read(tmp_path) if line["kind"] == "step"]
    assert values == expected
    assert max(values) >= 1


def test_a_log_that_is_gone_is_empty(tmp_path):
    write(tmp_path, run_folders.lines(2))
    log = read_all(LogReader(tmp_path))
    (tmp_path / "metrics.jsonl").unlink()
    assert log.read(1 << 20) == 0
    assert log.epochs == log.steps == ()
    assert log.by_step("loss") == ([], [])


def test_a_million_lines_are_read_quickly_and_in_little_memory(tmp_path):
    """100 MB of steps, in which one epoch of a thousand is the best."""
    step = '{"kind": "step", "step": %d, "loss": 0.25, "learning_rate": 0.001, "input_wait": 0.1}'
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for epoch in range(1000):
            first = epoch * 1000
            file.write("\n".join([step % i for i in range(first + 1, first + 1001)]) + "\n")
            value = 9.0 if epoch == 617 else 0.5
            file.write(
                f'{{"kind": "epoch", "step": {first + 1000}, "epoch": {epoch + 1}, '
                f'"val_accuracy": {value}}}\n'
            )
    log = LogReader(tmp_path)
    began = time.process_time()
    assert 1 << 20 <= log.read(1 << 20) <= 2 << 20  # A portion at a time.
    assert log.num_pending > 0
    read_all(log)
    assert time.process_time() - began < 3
    assert log.every > 10
    run = reading.Run(tmp_path, {}, {}, {}, {}, {}, log.steps, log.epochs, "running")
    assert (run.num_steps, run.num_epochs) == (1_000_000, 1000)
    assert vars(run.best("val_accuracy")) == {"value": 9.0, "epoch": 618}
    points, ranges = log.by_step("loss")
    assert MOST_POINTS / 2 <= len(points) == len(ranges) <= 2 * MOST_POINTS
    assert all(y == 0.25 for _, y in points)
    assert len(log.by_epoch("val_accuracy")[0]) <= 2 * MOST_POINTS
    assert max(high for _, _, high in log.by_epoch("val_accuracy")[1]) == 9.0


def test_a_curve_keeps_means_and_extremes():
    found = Curve()
    for step in range(20_000):
        found.add(step, 1.0 + step % 2 if step != 777 else 50.0)
    points, ranges = found.points()
    assert len(points) <= 2 * MOST_POINTS
    assert max(high for _, _, high in ranges) == 50
    assert min(low for _, low, _ in ranges) == 1
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    later = [y for x, y in points if x > 2000]
    assert all(1.3 < y < 1.7 for y in later)


def test_gaps_of_a_long_curve_stay_gaps():
    found = Curve()
    for step in range(4000):
        found.add(step, None if 1000 <= step < 2000 else 1.0)
    points, _ = found.points()
    gaps = [x for x, y in points if y is None]
    assert gaps
    assert all(990 < x < 2010 for x in gaps)


def test_the_reader_keeps_few_epochs(tmp_path):
    write(tmp_path, run_folders.lines(3000, steps_per_epoch=1))
    log = read_all(LogReader(tmp_path))
    assert len(log.epochs) <= 6
    assert log_reader.NOT_METRICS.isdisjoint(
        reading.Run(tmp_path, {}, {}, {}, {}, {}, (), log.epochs, "").metric_names
    )
