"""The live display: what a terminal and a notebook show, and what it costs."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import types
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasdist.runs import metrics_log
from kerasdist.training.progress import announcements
from kerasdist.training.progress.bar import Progress, duration
from kerasdist.training.progress.meter import Meter, Reading
from kerasdist.training.progress.reporter import Reporter, mode_of
from kerasdist.training.progress.screens import (
    LEAST_SECONDS,
    SHARE,
    Budget,
    Display,
    Notebook,
    Terminal,
)
from tests import classifier_recipe

LOGS = {"loss": 1.23456, "accuracy": 0.4567}
CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\r\n|\r|\n|[^\x1b\r\n]+")


def screen(output):
    """The lines that a terminal shows after some output: enough of one for what rich writes."""
    lines, row, column = [""], 0, 0
    for found in CONTROL.finditer(output):
        text, (number, kind) = found[0], found.groups()
        if kind == "A":
            row -= int(number or 1)
        elif kind == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif kind is not None:
            assert kind in "mhl", f"unknown control sequence {text!r}"
        elif text.endswith("\n"):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text == "\r":
            column = 0
        else:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


def shown(output):
    return [line for line in screen(output) if line]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def reading(steps, seconds=0.5, examples=32, waited=0.1):
    """Of steps of half a second."""
    return Reading(steps * seconds, steps, steps * examples, waited * steps * seconds)


@pytest.fixture
def clock():
    return Clock()


def at_work(clock, epochs=4, **plan):
    """In the second epoch of four, after 120 of 400 steps of half a second each."""
    progress = Progress(epochs, plan.get("steps"), plan.get("epoch_steps", 400), clock=clock)
    progress.begin_epoch(0, 0, 0)
    clock.now += 200
    progress.advance(400, 400, reading(400))
    clock.now += 7
    progress.end_epoch()
    progress.begin_epoch(1, 400, 0)
    clock.now += 60
    progress.advance(520, 120, reading(520))
    progress.logs = LOGS
    return progress


# What is said.


def test_two_lines_tell_how_far_it_is_and_what_was_measured(clock):
    first, second = at_work(clock).text(80).split("\n")
    left = 280 * 0.5
    whole = left + 2 * 400 * 0.5 + 3 * 7  # Each epoch ends with a pause like the first one.
    assert re.fullmatch(
        rf"epoch 2/4  step 120/400  ━+─+   30%  {duration(left)} left, run {duration(whole)} left",
        first,
    )
    bar = re.search("━+─+", first)[0]
    assert bar.count("━") / len(bar) == pytest.approx(0.3, abs=0.05)
    assert second == "loss 1.235  accuracy 0.4567  64 examples/s  input wait 10%"


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 140])
def test_lines_fit_and_begin_with_what_matters_most(clock, width):
    progress = at_work(clock)
    progress.logs = LOGS | {f"a_metric_with_a_long_name_{i}": 0.5 for i in range(5)}
    first, second = progress.text(width).split("\n")
    assert len(first) <= max(width, len("epoch 2/4  step 120/400"))
    assert len(second) <= width
    assert first.startswith("epoch 2/4  step 120/400")
    assert second.startswith("loss 1.235")
    assert ("run 4:" in first or "run 9:" in first) == (width >= 60)
    assert ("examples/s" in second) == (width > 20)


def test_metrics_without_room_are_counted(clock):
    progress = at_work(clock)
    progress.logs = LOGS | {"precision": 0.25, "recall": 0.5, "top_5_accuracy": 0.75}
    assert progress.text(79).split("\n")[1] == (
        "loss 1.235  accuracy 0.4567  +3 more  64 examples/s  input wait 10%"
    )
    wide = progress.text(139).split("\n")[1]
    assert "  recall 0.5  top_5_accuracy 0.75  64 examples/s  input wait 10%" in wide


def test_input_wait_is_left_out_where_nobody_measured_it(clock):
    progress = at_work(clock)
    progress.advance(521, 121, reading(521, waited=float("nan")))
    assert progress.text(80).endswith("64 examples/s")


def test_validation_is_shown_in_the_same_place(clock):
    progress = at_work(clock)
    progress.validate(5, 20)
    first, second = progress.text(80).split("\n")
    assert first.startswith("epoch 2/4  validation 5/20  ━━━━")
    assert "  25%  run " in first
    assert second.startswith("loss 1.235")


def test_the_end_of_a_run_of_steps_is_told(clock):
    progress = at_work(clock, steps=1000)
    first = progress.text(100).split("\n")[0]
    assert first.startswith("epoch 2/3  step 120/400")
    # 480 steps, and the ends of two epochs.
    assert first.endswith(f"run {duration(480 * 0.5 + 2 * 7)} left")
    progress.begin_epoch(2, 800, 0)
    assert "step 0/200 " in progress.text(100)  # The last one is cut short.


def test_an_epoch_of_unknown_length_has_no_bar_and_the_next_one_has(clock):
    progress = Progress(3, None, None, clock=clock)
    progress.begin_epoch(0, 0, 0)
    progress.advance(10, 10, reading(10))
    progress.logs = LOGS
    assert progress.text(80).split("\n")[0] == "epoch 1/3  step 10"
    progress.end_epoch()
    progress.begin_epoch(1, 10, 0)
    progress.advance(15, 5, reading(15))
    assert re.match("epoch 2/3  step 5/10  ━+─+   50%  0:02 left, run 0:08", progress.text(80))
    progress.advance(22, 12, reading(22))  # Longer than the first one: no total is claimed.
    assert progress.text(80).startswith("epoch 2/3  step 12\n")


def test_rates_are_of_the_last_seconds(clock):
    progress = Progress(1, None, 10_000, clock=clock)
    progress.begin_epoch(0, 0, 0)
    progress.logs = LOGS
    for step in range(1, 101):
        progress.advance(step, step, Reading(step * 1.0, step, step * 10, 0.0))
    for step in range(1, 41):
        new = Reading(100 + step / 2, 100 + step, 1000 + step * 50, 0.0)
        progress.advance(100 + step, 100 + step, new)
    assert "  100 examples/s" in progress.text(80)


def test_a_summary_has_every_value_on_as_many_lines_as_it_takes(clock):
    progress = at_work(clock)
    logs = LOGS | {"per_class": [0.5, 0.25], "val_loss": 2.0, "val_accuracy": 0.5}
    wide = ["".join(p.text for p in line) for line in progress.summary(logs, 139)]
    assert wide == [
        "epoch 2/4  loss 1.235  accuracy 0.4567  per_class [0.5, 0.25]  val_loss 2  "
        "val_accuracy 0.5  1:00  64 examples/s"
    ]
    narrow = ["".join(p.text for p in line) for line in progress.summary(logs, 51)]
    assert narrow == [
        "epoch 2/4  loss 1.235  accuracy 0.4567",
        "           per_class [0.5, 0.25]  val_loss 2",
        "           val_accuracy 0.5  1:00  64 examples/s",
    ]
    # The speed gets no line of its own.
    (line,) = progress.summary(LOGS, 46)
    assert "".join(p.text for p in line) == "epoch 2/4  loss 1.235  accuracy 0.4567  1:00"


def test_durations():
    assert [duration(s) for s in (0.4, 59.6, 754, 3723)] == ["0:00", "1:00", "12:34", "1:02:03"]


# On a terminal.


def terminal(width, **options):
    stream = io.StringIO()
    return Terminal(stream, force_terminal=True, width=width, **options), stream


def displayed(clock, width, **options):
    on, stream = terminal(width, **options)
    return Display(on, at_work(clock), lambda: LOGS, clock=clock), stream


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_shows_the_newest_lines_below_what_stays(clock, width):
    display, stream = displayed(clock, width)
    for step in (530, 540):
        clock.now += 5
        display.advance(step, step - 400, reading(step))
    bar, values = shown(stream.getvalue())
    assert bar.startswith("epoch 2/4  step 140/400")
    assert values.startswith("loss 1.235  accuracy 0.4567  64 examples/s")
    display.print("a warning", "warning")
    clock.now += 5
    display.end_epoch(LOGS | {"val_loss": 3.5})
    clock.now += 5
    display.begin_epoch(2, 800, 0)
    lines = shown(stream.getvalue())
    summary = "epoch 2/4  loss 1.235  accuracy 0.4567  val_loss 3.5  1:15  64 examples/s"
    assert lines[:2] == ["a warning", summary]
    assert lines[2].startswith("epoch 3/4  step 0/400")
    assert max(map(len, lines)) < width
    display.stop()
    assert shown(stream.getvalue()) == lines[:2]


def test_the_cursor_is_never_hidden(clock):
    """A process that is killed could not show it again."""
    display, stream = displayed(clock, 80)
    display.advance(530, 130, reading(530))
    assert "\x1b[?25l" not in stream.getvalue()
    assert screen(stream.getvalue())[-1] == ""  # The shell goes on here.
    display.stop()


def colours(output):
    codes = [int(c) for found in re.findall(r"\x1b\[([\d;]+)m", output) for c in found.split(";")]
    return [code for code in codes if 30 <= code < 50 or code >= 90]


@pytest.mark.parametrize("wanted", [False, True])
def test_colours_are_for_those_who_want_them(clock, monkeypatch, wanted):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not wanted:
        monkeypatch.setenv("NO_COLOR", "1")
    display, stream = displayed(clock, 80)
    display.advance(530, 130, reading(530))
    display.stop()
    assert bool(colours(stream.getvalue())) == wanted
    assert "━" in stream.getvalue()


def test_a_terminal_without_unicode_gets_a_bar_too(clock):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    display = Display(
        Terminal(stream, force_terminal=True, width=80), at_work(clock), lambda: LOGS, clock=clock
    )
    display.advance(530, 130, reading(530))
    display.stop()
    stream.flush()
    assert "  ####" in screen(stream.buffer.getvalue().decode("ascii").partition("left")[0])[0]


def test_drawing_costs_its_share_and_no_more(clock):
    """However often the loop comes by, and however long drawing takes."""
    spent = 0.0
    budget = Budget(clock, 60.0)
    began, draws = clock.now, 0
    while clock.now < began + 100:
        clock.now += 0.01
        if budget.is_due():
            with budget.spending():
                clock.now += 0.02
                spent, draws = spent + 0.02, draws + 1
    assert spent / (clock.now - began) < SHARE * 1.2
    assert draws > 10
    quick = Budget(clock, 60.0)
    began, draws = clock.now, 0
    while clock.now < began + 10:
        clock.now += 0.001
        if quick.is_due():
            with quick.spending():
                draws += 1
    assert draws <= 10 / LEAST_SECONDS + 1


def test_epochs_shorter_than_a_refresh_are_printed_together_and_in_order(clock):
    display, stream = displayed(clock, 80)
    written = []
    for epoch in range(2, 30):
        display.begin_epoch(epoch, 0, 0)
        display.advance(1, 1, reading(600 + epoch))
        display.end_epoch({"loss": float(epoch)})
        written.append(len(stream.getvalue()))
        if epoch == 20:
            display.print("between")
        clock.now += 0.001
    assert len(set(written)) < 5
    display.stop()
    found = [re.sub(r"/4  loss (\d+)  .*", r": \1", line) for line in shown(stream.getvalue())]
    expected = [f"epoch {e + 1}: {e}" for e in range(2, 30)]
    assert found == [*expected[:19], "between", *expected[19:]]


# Through the reporter.


def test_what_others_print_goes_above_and_everything_is_put_back(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stream)
    error = sys.stderr
    reporter = Reporter(mode_of("auto"))
    assert reporter.mode == "live"
    plan = {"epochs": 2, "steps": None, "epoch_steps": 10}
    shows = reporter.training(**plan, read_metrics=lambda: LOGS)
    with contextlib.suppress(KeyboardInterrupt), shows:
        reporter.begin_epoch(0, 0, 0)
        reporter.advance(3, 3, Meter())
        assert reporter.has_display
        print("printed by a callback")
        reporter.warn("the disk is full")
        print("to the other stream", file=sys.stderr)
        reporter.step(3, 0.5, 10.0, 0.1)  # Not a line for each of them.
        reporter.epoch(0, 2, LOGS)
        reporter.begin_epoch(1, 10, 0)
        lines = shown(stream.getvalue())
        raise KeyboardInterrupt
    assert lines[:3] == ["printed by a callback", "the disk is full", "to the other stream"]
    assert lines[3].startswith("epoch 1/2  step 0/10  ────")
    assert sys.stdout is stream
    assert sys.stderr is error
    reporter.say("saved")
    left = shown(stream.getvalue())
    assert left[:3] == lines[:3]
    assert left[3].startswith("epoch 1/2  loss 1.235  accuracy 0.4567")
    assert left[4:] == ["saved"]


@pytest.mark.parametrize("mode", ["lines", "json", "silent"])
def test_other_modes_have_no_escape_codes(mode, capsys):
    reporter = Reporter(mode)
    plan = {"epochs": 2, "steps": None, "epoch_steps": 10}
    with reporter.training(**plan, read_metrics=lambda: 1 / 0):
        assert not reporter.has_display
        reporter.begin_epoch(0, 0, 0)
        reporter.advance(3, 3, Meter())
        reporter.validation(0, 3)
        reporter.step(3, 0.5, 10.0, 0.1)
        reporter.epoch(0, 2, LOGS)
    written = capsys.readouterr().out
    assert "\x1b" not in written
    assert bool(written) == (mode != "silent")


@pytest.mark.parametrize(
    ("is_tty", "term", "mode"),
    [
        (True, "xterm-256color", "live"),
        (True, "dumb", "lines"),
        (True, "", "lines"),
        (False, "xterm", "lines"),
    ],
)
def test_auto_is_live_where_lines_can_be_drawn_again(monkeypatch, is_tty, term, mode):
    stream = io.StringIO()
    stream.isatty = lambda: is_tty
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", term)
    assert mode_of("auto") == mode_of(True) == mode
    assert mode_of("lines") == "lines"
    monkeypatch.setattr(sys, "stdout", None)  # As under pythonw.
    assert mode_of("auto") == "lines"


# In a notebook.


@pytest.fixture
def notebook(monkeypatch):
    """IPython as a kernel has it, with what a notebook would show: outputs, each with its text."""
    outputs = []

    class Handle:
        def __init__(self, content):
            self.number = len(outputs)
            outputs.append(content["text/plain"])

        def update(self, content, raw):
            outputs[self.number] = content["text/plain"]

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = lambda content, raw, display_id: Handle(content)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return outputs


def test_a_notebook_has_one_output_an_epoch_that_ends_as_its_summary(notebook, clock, capsys):
    assert mode_of("auto") == "notebook"
    display = Display(Notebook(), at_work(clock), lambda: LOGS, clock=clock)
    for step in (530, 540):
        clock.now += 5
        display.advance(step, step - 400, reading(step))
    assert len(notebook) == 1
    assert notebook[0].startswith("epoch 2/4  step 140/400  ━")
    display.print("a warning")
    display.end_epoch(LOGS)
    display.begin_epoch(2, 800, 0)
    clock.now += 5
    display.advance(810, 10, reading(810))
    assert notebook[0].startswith("epoch 2/4  loss 1.235  accuracy 0.4567  1:10")
    assert notebook[1].startswith("epoch 3/4  step 10/400")
    display.end_epoch(LOGS)
    display.begin_epoch(3, 1200, 0)
    display.end_epoch(LOGS)  # Too short to be drawn: it shares the output of the one before.
    display.print("after the fourth")
    display.begin_epoch(4, 1600, 0)
    display.end_epoch(LOGS)
    display.stop()
    assert len(notebook) == 2
    third, fourth = notebook[1].splitlines()
    assert third.startswith("epoch 3/4  loss")
    assert fourth.startswith("epoch 4/4  loss")
    assert "\x1b" not in "".join(notebook)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["a warning", "after the fourth"]
    assert printed[2].startswith("epoch 5/4  loss")
    assert len(printed) == 3


def test_no_bar_is_left_in_a_notebook_after_the_last_epoch(notebook, clock):
    display = Display(Notebook(), at_work(clock), lambda: LOGS, clock=clock)
    display.advance(530, 130, reading(530))
    display.validate(0, 10)
    clock.now += 5  # A long validation: the display is due.
    display.end_epoch(LOGS)
    display.stop()
    (left,) = notebook
    assert left.startswith("epoch 2/4  loss")


def test_a_training_that_was_interrupted_leaves_where_it_stood_in_a_notebook(notebook, clock):
    display = Display(Notebook(), at_work(clock), lambda: LOGS, clock=clock)
    display.advance(530, 130, reading(530))
    display.advance(531, 131, reading(531))  # not due
    assert notebook[0].startswith("epoch 2/4  step 130/400")
    assert "left" in notebook[0]
    display.stop()
    (left,) = notebook
    assert left.startswith("epoch 2/4  step 131/400  ━")
    assert "left" not in left  # Nobody knows when it goes on.


def test_a_shell_on_a_terminal_is_no_notebook(notebook, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", types.SimpleNamespace)
    assert mode_of("auto") == "lines"
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert mode_of("auto") == "lines"


# For real.

TRAINING = """
import sys
import time

import keras
import numpy as np

import kerasdist

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
x = np.linspace(0, 1, 64).astype("float32")[:, None]
told = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: print("epoch", epoch, "was seen") if epoch == 1 else None,
    on_epoch_begin=lambda epoch, logs: time.sleep(1.2 * (epoch == 2)),  # The display ticks.
)
kerasdist.fit(
    model, (x, 2 * x), validation_data=(x, x), batch_size=16, epochs=int(sys.argv[1]),
    run_dir="run", callbacks=[told],
)
print("done")
"""


def on_a_pseudo_terminal(arguments, columns, *, cwd, interrupt_at=None, types=b""):
    """Runs a program; `(exit code, what it wrote)`.

    Ctrl-C is typed when a text is seen. `types` is typed once, while the first step compiles.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
    }
    environment.pop("COLUMNS", None)
    with subprocess.Popen(
        arguments,
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        # So that it is this terminal that Ctrl-C is typed on.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            some = b""
            with contextlib.suppress(OSError):  # Linux's end of a terminal
                some = os.read(ours, 4096)
            if not some:
                break
            written += some
            if types and b"compiling" in written:
                os.write(ours, types)
                types = b""
            if interrupt_at is not None and interrupt_at in written:
                os.write(ours, b"\x03")
                interrupt_at = None
        code = process.wait(60)
    os.close(ours)
    return code, written.decode()


def test_a_training_on_a_terminal_of_80_columns(tmp_path):
    arguments = [sys.executable, "-c", TRAINING, "3"]
    code, written = on_a_pseudo_terminal(arguments, 80, cwd=tmp_path, types=b"typed\n\n")
    lines = shown(written)
    assert code == 0, lines
    assert "typed" not in written  # It would leave stale lines. The shell gets it.
    assert "checking the model and the data" in written
    assert not any(line.startswith(("checking", "saving")) for line in lines), lines
    assert "\x1b[?25l" not in written
    assert "━" in written
    assert "compiling the first step" in written
    # Only what stays is left, in order.
    left = [line for line in lines if line.startswith(("epoch", "done"))]
    summary = r"epoch {}/3  loss [\d.e-]+  mae [\d.]+  val_loss [\d.]+  val_mae [\d.]+  \d+:\d\d.*"
    # As in Keras, a callback prints before the line of its epoch, which shows what it added.
    patterns = [summary.format(1), "epoch 1 was seen", summary.format(2), summary.format(3), "done"]
    assert len(left) == len(patterns), lines
    for line, pattern in zip(left, patterns, strict=True):
        assert re.fullmatch(pattern, line), lines
    assert max(map(len, left)) < 80


def test_ctrl_c_on_a_terminal_of_140_columns_leaves_it_clean(tmp_path):
    arguments = [sys.executable, "-c", TRAINING, "100000"]
    code, written = on_a_pseudo_terminal(
        arguments, 140, cwd=tmp_path, interrupt_at=b"epoch 1 was seen"
    )
    lines = shown(written)
    assert code in (1, 130, -2), lines
    assert "\x1b[?25l" not in written
    assert any(line.startswith("saved after step") for line in lines)
    assert lines[-1] == "KeyboardInterrupt"
    assert not any("━" in line or "─" in line for line in lines)


def test_the_command_line_shows_a_run_from_its_beginning_to_its_end(tmp_path):
    classifier_recipe.write(tmp_path / "small")
    arguments = [sys.executable, "-m", "kerasdist", "fit", "small", "--epochs", "2"]
    code, written = on_a_pseudo_terminal(arguments, 80, cwd=tmp_path)
    lines = shown(written)
    assert code == 0, lines
    assert "starting TensorFlow" in written
    assert "reading the training data" in written
    assert "writing the report" in written
    assert "step 0/7" in written
    assert "validation 0/7" in written
    values = r"loss [\d.]+  accuracy [\d.]+  val_loss [\d.]+  val_accuracy [\d.]+"
    patterns = [
        "run        runs/small/0001",
        r"data       100 examples \(recipe\), 100 examples for validation",
        r"model      Small, 111 parameters \(111 trainable\)",
        r"devices    1 x 16 = a global batch of 16 \(CPU:0\)",
        "precision  float32",
        f"epoch 1/2  {values}",
        f"epoch 2/2  {values}",
        r"finished  14 steps, 200 examples \([\d.,]+ examples/s\)",
        "final     loss = .*",
        r"best      val_loss = [\d.]+ in epoch [12]",
        "folder    runs/small/0001: final.keras, best.keras, report.html",
        "evaluate  kerasdist evaluate runs/small/0001",
        "continue  kerasdist fit runs/small/0001 --run-dir runs/small/0001.*",
    ]
    assert len(lines) >= len(patterns)
    for line, pattern in zip(lines, patterns, strict=False):
        assert re.fullmatch(pattern, line), lines


# Before and after.


class Stream:
    def __init__(self, arrays=None, num_batches=None, batch_size=None):
        self.arrays, self.num_batches, self.batch_size = arrays, num_batches, batch_size


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()], name="small")
    model.add(keras.layers.Dense(3))
    return model


def test_a_run_begins_with_what_it_is_made_of(model):
    train, held_out = ({"x": np.zeros((n, 4)), "y": np.zeros(n)} for n in (1200, 300))
    lines = announcements.beginning(
        Path("runs/mine/0001"),
        model=model,
        devices=["CPU:0", "CPU:1"],
        stream=Stream(train, batch_size=32),
        validation=Stream(held_out, batch_size=32),
        source="synthetic",
    )
    assert lines == [
        "run        runs/mine/0001",
        "data       1,200 examples (synthetic), 300 examples for validation",
        "model      Sequential, 31 parameters (23 trainable)",
        "devices    2 x 16 = a global batch of 32 (CPU:0, CPU:1)",
        "precision  float32",
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("people.csv", "12 rows of people.csv, 3 rows for validation"),
        ("photos", "12 examples (photos), 3 examples for validation"),
        (None, "12 examples, 3 examples for validation"),
    ],
)
def test_data_has_the_name_of_its_file_or_folder(model, source, expected):
    lines = announcements.beginning(
        Path("run"),
        model=model,
        devices=["CPU:0"],
        stream=Stream(np.zeros(12)),
        validation=Stream(np.zeros(3)),
        source=source,
        least_width=len("few numbers"),  # What was said before is aligned with this.
    )
    assert lines[1] == f"data         {expected}"
    assert {line[11:13] for line in lines} == {"  "}


@pytest.mark.parametrize(
    ("devices", "stream", "expected"),
    [
        (3, Stream(num_batches=7, batch_size=32), "3, a global batch of 32 (GPU:0, GPU:1, GPU:2)"),
        (1, Stream(), "1, batches of the data's own size (GPU:0)"),
        (8, Stream(batch_size=8), "8 x 1 = a global batch of 8 (GPU:0, GPU:1 to GPU:7)"),
    ],
)
def test_a_batch_is_described_as_far_as_it_is_known(model, devices, stream, expected):
    names = [f"GPU:{i}" for i in range(devices)]
    lines = announcements.beginning(Path("run"), model=model, devices=names, stream=stream)
    assert f"devices    {expected}" in lines
    known = "7 batches" if stream.num_batches else "an unknown number of batches"
    assert f"data       {known}" in lines


RESULT = {
    "steps": 1200,
    "epochs": 3,
    "examples_seen": 38400,
    "loss": 0.5,
    "val_loss": 0.75,
    "examples_per_second": 812.34,
    "devices": ["CPU:0"],
    "saved": "model",
}


def a_run(folder, config, losses=(0.9, 0.625, 0.75)):
    """What a run of three epochs leaves, half a line of a killed process too."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"kerasdist": "1", **config}))
    lines = [{"kind": "step", "step": 1, "loss": 0.1}]
    epochs = enumerate(losses, 1)
    lines += [{"kind": "epoch", "step": 400 * i, "epoch": i, "val_loss": v} for i, v in epochs]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "ep')
    for name in ("final.keras", "best.keras"):
        (folder / name).touch()
    return folder


def test_a_command_that_is_too_long_is_broken_as_a_shell_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = a_run(Path("a-run-with-a-rather-long-name"), {"recipe": "mine"})
    whole, broken = (announcements.ending(run, RESULT, width=width) for width in (None, 80))
    assert broken[:-1] == whole[:-1]
    assert broken[-1].splitlines() == [
        "continue  kerasdist fit a-run-with-a-rather-long-name \\",
        "    --run-dir a-run-with-a-rather-long-name \\",
        "    --epochs 6",
    ]
    assert broken[-1].replace(" \\\n    ", " ") == whole[-1]


def test_a_run_ends_with_what_it_reached_and_what_to_do_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = a_run(Path("my run"), {"recipe": "mine", "options": {"steps": None}})
    lines = announcements.ending(run, RESULT)
    assert lines == [
        "finished  1,200 steps, 38,400 examples (812 examples/s)",
        "final     loss = 0.5, val_loss = 0.75",
        "best      val_loss = 0.625 in epoch 2",
        "folder    my run: final.keras, best.keras",
        "evaluate  kerasdist evaluate 'my run' --which best",
        "continue  kerasdist fit 'my run' --run-dir 'my run' --epochs 6",
    ]
    last = a_run(Path("last"), {"recipe": "mine"}, losses=(0.9, 0.8, 0.7))
    assert "evaluate  kerasdist evaluate last" in announcements.ending(last, RESULT)
    (run / "report.html").touch()
    assert "folder    my run: final.keras, best.keras, report.html" in announcements.ending(
        run, RESULT
    )


def test_metrics_of_weights_that_a_callback_replaced_are_not_called_final(tmp_path):
    run = a_run(tmp_path / "run", {})
    lines = announcements.ending(run, RESULT, restored=2)
    assert lines[1:4] == [
        "last epoch  loss = 0.5, val_loss = 0.75",
        "final       the weights of epoch 2, which EarlyStopping restored",
        "best        val_loss = 0.625 in epoch 2",
    ]


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ({"recipe": "mine"}, "kerasdist fit {run} --init-from {run}"),
        ({"seed": 0}, "kerasdist.fit(..., run_dir='another folder', init_from={run!r})"),
    ],
)
def test_a_run_that_stopped_early_is_not_continued_in_its_folder(tmp_path, config, command):
    run = a_run(tmp_path / "run", config)
    lines = announcements.ending(run, {**RESULT, "stopped": "val_loss has not improved"})
    assert lines[0] == "stopped early: val_loss has not improved"
    assert lines[-1] == f"new run   {command.format(run=str(run))}"
    assert not any(line.startswith("continue") for line in lines)


def test_a_run_of_steps_goes_on_by_steps(tmp_path):
    run = a_run(tmp_path / "run", {"recipe": "mine", "options": {"steps": 1200}})
    assert announcements.ending(run, RESULT)[-1].endswith("--steps 2400")


def test_a_run_without_a_recipe_goes_on_in_python(tmp_path):
    run = a_run(tmp_path / "run", {"seed": 0})
    (run / "metrics.jsonl").unlink()
    lines = announcements.ending(run, {**RESULT, "saved": "weights", "examples_per_second": None})
    assert lines[0] == "finished  1,200 steps, 38,400 examples"
    assert not any(line.startswith("best") for line in lines)
    assert lines[3:5] == [
        f"evaluate  kerasdist.evaluate({str(run)!r}, data)",
        f"continue  kerasdist.fit(..., run_dir={str(run)!r}, epochs=6)",
    ]
    assert lines[5].startswith("final.keras holds only the weights, for `load_weights`")


def test_the_best_epoch_is_that_of_best_keras(tmp_path):
    run = a_run(tmp_path / "run", {})
    assert metrics_log.best_epoch(run)[1].epoch == 2
    assert metrics_log.best_epoch(run, "accuracy") is None
    higher = {"kind": "epoch", "step": 9, "epoch": 4, "val_loss": 9.0, "val_accuracy": 0.5}
    lower = higher | {"epoch": 5, "val_accuracy": 0.25}
    (run / "metrics.jsonl").write_text(f"{json.dumps(higher)}\n{json.dumps(lower)}\n")
    assert metrics_log.best_epoch(run, "val_accuracy")[1].epoch == 4


def test_the_summaries_of_all_epochs_have_the_same_form(clock):
    """Values that are a little longer or shorter change neither the lines nor what is left out."""
    for width in range(50, 120):
        progress = Progress(12, None, 10, clock=clock)
        forms = set()
        for epoch in range(12):
            progress.begin_epoch(epoch, 10 * epoch, 0)
            clock.now += 5
            progress.advance(10 * epoch + 10, 10, reading(10 * epoch + 10))
            value = (0.5, 0.1234, 0.06822, 1.0)[epoch % 4]
            names = ("loss", "accuracy", "val_loss", "val_accuracy")
            rows = progress.summary(dict.fromkeys(names, value), width)
            texts = ["".join(piece.text for piece in row) for row in rows]
            assert max(map(len, texts)) <= width
            forms.add(
                tuple(
                    (re.findall("[a-z_]{4,}", t), "examples/s" in t, ":" in t) for t in texts
                ).__repr__()
            )
            progress.end_epoch()
        assert len(forms) == 1, width
