"""Phases as a line of text."""

import re

import pytest

from kerasdist.phases.lines import plain, redrawn
from kerasdist.phases.phase import Phase
from kerasdist.phases.text import duration, shortened, wrapped


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_phase_without_a_known_end_shows_its_seconds(clock):
    starting = [Phase("starting TensorFlow", clock=clock)]
    assert redrawn(starting, 79) == "starting TensorFlow…"
    assert plain(starting) == "starting TensorFlow ..."
    clock.now = 75
    assert redrawn(starting, 79, ascii_only=True) == "starting TensorFlow...  1:15"
    assert plain(starting) == "starting TensorFlow ... 1:15"


def test_a_bar_with_the_time_left(clock):
    reading = Phase("reading files", 100, clock=clock)
    clock.now = 2
    assert redrawn([reading], 79) == f"reading files  {'─' * 30}    0%  0:02"
    reading.advance()
    clock.now = 12
    reading.reached(21)
    assert redrawn([reading], 79) == f"reading files  {'━' * 6}{'─' * 24}   21%  0:40 left"
    assert plain([reading]) == "reading files, 21%, 0:40 left"
    coloured = redrawn([reading], 79, is_coloured=True)
    assert re.sub(r"\x1b\[\d*m", "", coloured) == redrawn([reading], 79)


@pytest.mark.parametrize("width", range(5, 90))
def test_no_line_is_wider_than_the_terminal(clock, width):
    reading = Phase("reading the training data", 100, clock=clock)
    reading.reached(1)
    clock.now = 5
    reading.reached(3)
    inner = Phase("checking the model and the data", clock=clock)
    clock.now = 4000
    for phases in ([reading], [inner], [reading, inner]):
        for ascii_only in (False, True):
            line = redrawn(phases, width, ascii_only=ascii_only)
            assert len(line) <= width
            assert line.isascii() or not ascii_only


def test_phases_inside_a_phase_are_in_its_line(clock):
    verifying, device = Phase("verifying", 3, clock=clock), Phase("on 2 devices", clock=clock)
    verifying.advance()
    clock.now = 8
    assert plain([verifying, device]) == "verifying 1/3, on 2 devices, 33%, 0:16 left"
    deep = [verifying, device, *(Phase(t, clock=clock) for t in ("training", "compiling"))]
    assert plain(deep) == "verifying 1/3, on 2 devices, compiling, 33%, 0:16 left"
    same = [Phase("reading", clock=clock), Phase("reading", clock=clock)]
    assert plain(same) == "reading ..."


def test_a_text_is_broken_between_words_and_not_in_code():
    text = "Use `kerasdist fit a` or another-one.\n  Second line"
    assert wrapped(text, 18) == "Use\n`kerasdist fit a`\nor another-one.\n  Second line"


def test_durations_and_ellipses():
    assert [duration(s) for s in (4.6, 754, 3723)] == ["0:05", "12:34", "1:02:03"]
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("abcdef", 5, ascii_only=True) == "ab..."
    assert shortened("abc", 3) == "abc"
