"""What is typed at a display does not show, and is not lost."""

import fcntl
import os
import pty
import subprocess
import sys
import termios

import pytest

from kerasdist.phases.keyboard import Keyboard
from tests.cli.conftest import environment

# In the foreground of its own terminal. It says what it does, and waits for a line each time.
PROGRAM = """
import sys
from kerasdist.phases.keyboard import Keyboard

keyboard = Keyboard(2)
keyboard.silence()
print("silent", flush=True)
typed = sys.stdin.readline()
keyboard.restore()
keyboard.restore()
print("restored", repr(typed), flush=True)
while sys.stdin.readline() != "c\\n":
    pass
"""


def read_until(terminal, text):
    found = b""
    while text not in found:
        found += os.read(terminal, 4096)
    return found


def test_what_is_typed_is_read_but_not_shown():
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        read_until(ours, b"silent\r\n")
        os.write(ours, b"a\nb\n")
        assert read_until(ours, b"restored 'a\\n'\r\n") == b"restored 'a\\n'\r\n"
        os.write(ours, b"c\n")
        assert read_until(ours, b"c\r\n") == b"c\r\n"
        assert process.wait(10) == 0
    os.close(ours)


@pytest.mark.parametrize("file", [None, "pipe", "terminal of another session"])
def test_what_is_no_terminal_of_ours_stays_as_it_is(file):
    ours, theirs = os.pipe() if file == "pipe" else pty.openpty()
    before = None if file == "pipe" else termios.tcgetattr(theirs)
    keyboard = Keyboard(None if file is None else theirs)
    keyboard.silence()
    keyboard.restore()
    if before is not None:
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
