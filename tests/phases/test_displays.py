"""Where phases are shown: on a real pseudo-terminal, in a log, or nowhere."""

import io
import os
import pty
import sys
import termios
import time

import pytest

from kerasdist.phases import displays
from kerasdist.phases.displays import PlainLines, TerminalLine, of_command, shown_on
from kerasdist.phases.phase import Phase, not_shown, phase
from tests.training.progress.test_screens import shown

ECHO = 3


class Terminal:
    """A pseudo-terminal: `stream` is written to, `read` gives what arrived at its other end."""

    def __init__(self, columns=60):
        self.ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (24, columns))
        self.stream = os.fdopen(os.dup(self.theirs), "w", buffering=1)
        os.set_blocking(self.ours, False)
        self.written = ""

    def read(self):
        try:
            while some := os.read(self.ours, 65536):
                self.written += some.decode()
        except BlockingIOError:
            pass
        return self.written

    def has_echo(self):
        return bool(termios.tcgetattr(self.theirs)[ECHO] & termios.ECHO)

    def close(self):
        self.stream.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    yield found
    found.close()


@pytest.fixture
def taken(terminal, monkeypatch):
    """To be called in a test: pytest takes the streams back after its fixtures."""

    def take():
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        monkeypatch.setattr(sys, "stderr", terminal.stream)

    return take


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen")


def test_a_line_of_a_terminal_is_redrawn_and_disappears(terminal, taken):
    taken()
    with shown_on(of_command()):
        with phase("reading the data", 4) as reading:
            wait_for(lambda: "  0%" in terminal.read())
            reading.advance()
            wait_for(lambda: " 25%" in terminal.read())
        print("done")
    assert "reading the data  " in terminal.read()
    assert shown(terminal.read()) == ["done"]


def test_other_output_goes_above_the_line(terminal, taken):
    taken()
    with shown_on(of_command()), phase("reading the data of a recipe with a long name"):
        print("short", end="")  # Nothing is drawn before the end of its line.
        before = len(terminal.read())
        time.sleep(0.5)
        assert len(terminal.read()) == before
        print(" line")
        sys.stderr.writelines(["two\n", "three\n"])
        wait_for(lambda: "long name" in terminal.read()[before:])
        # C++ code writes there without being asked: over the line, whose rest stays.
        os.write(terminal.theirs, b"from C++ code\n")
        assert sys.stdout.isatty()
    assert shown(terminal.read())[:3] == ["short line", "two", "three"]
    assert shown(terminal.read())[3].startswith("from C++ code")
    assert sys.stdout is terminal.stream


def test_a_live_display_has_the_terminal_for_itself(terminal, taken):
    taken()
    with shown_on(of_command()), phase("tuning"):
        with not_shown():
            assert shown(terminal.read()) == []
            before = len(terminal.read())
            time.sleep(0.5)
            assert len(terminal.read()) == before
        assert "tuning" in terminal.read()[before:]


def test_a_fork_does_not_draw(terminal, taken):
    taken()
    with shown_on(of_command()), phase("reading"):
        child = os.fork()
        if child == 0:
            is_free = sys.stdout is terminal.stream
            print("child", flush=True)
            os._exit(0 if is_free else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert "child" in terminal.read()


def test_a_narrow_terminal_gets_a_short_line(terminal, taken):
    taken()
    termios.tcsetwinsize(terminal.theirs, (24, 20))
    with shown_on(of_command()), phase("checking the model and the data"):
        assert "checking the model…" in terminal.read()
        assert "checking the model " not in terminal.read()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_log_gets_few_lines():
    clock, written = Clock(), io.StringIO()
    lines = PlainLines(written, clock)
    starting = Phase("starting", at_once=True, clock=clock)
    lines.changed([starting])
    lines.passed([starting])
    assert written.getvalue() == "kerasdist: starting ...\n"
    clock.now = 5
    lines.changed([])
    for _ in range(50):  # Short phases get no line.
        short = Phase("short", clock=clock)
        lines.changed([short])
        clock.now += 2
        lines.passed([short])
    reading = Phase("reading", 1000, clock=clock)
    for done in range(1000):
        clock.now += 0.05
        reading.reached(done + 1)
        lines.passed([reading])
    told = written.getvalue().splitlines()[1:]
    assert told[0] == "kerasdist: reading, 6%, 0:47 left"
    assert len(told) == 4  # In 50 seconds.
    lines.close()
    with shown_on(PlainLines(io.StringIO())), phase("reading"):
        pass


def test_a_log_that_is_closed_does_not_stop_the_command():
    stream = io.StringIO()
    stream.close()
    PlainLines(stream).changed([Phase("starting", at_once=True)])


def test_where_a_command_shows_its_phases(taken, monkeypatch):
    taken()
    for options, kind in (
        ({}, TerminalLine),
        ({"verbose": True}, PlainLines),
        ({"quiet": True}, type(None)),
        ({"json": True}, type(None)),  # They would be between the objects.
    ):
        output = of_command(**options)
        assert type(output) is kind
        if output is not None:
            output.close()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    output = of_command(json=True)
    assert isinstance(output, TerminalLine)
    output.close()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(of_command(), PlainLines)
    assert of_command(json=True) is None
    monkeypatch.setattr(sys, "stderr", None)
    assert of_command() is None


@pytest.mark.parametrize(("kind", "can"), [("xterm", True), ("dumb", False), ("", False)])
def test_not_every_terminal_can_redraw(terminal, monkeypatch, kind, can):
    monkeypatch.setenv("TERM", kind)
    assert displays.can_redraw(terminal.stream) is can
    assert displays.can_redraw(io.StringIO()) is False
