"""Phases: how far they are, how long they take, and who shows them."""

import pytest

from kerasdist.phases.phase import Phase, is_shown, not_shown, overall, phase, shown_by


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Told:
    """A display that notes what it is told."""

    def __init__(self):
        self.told = []

    def begin(self, found):
        self.told.append(f"begin {found.title}")

    def end(self, found):
        self.told.append(f"end {found.title}")

    def pause(self):
        self.told.append("pause")

    def resume(self):
        self.told.append("resume")


def test_the_time_left_follows_from_the_parts_after_the_first_which_compiles():
    clock = Clock()
    reading = Phase("reading", 11, clock=clock)
    assert (reading.share, reading.seconds_left()) == (0.0, None)
    clock.now += 30
    reading.advance()
    assert reading.seconds_left() is None
    clock.now += 4
    reading.advance(2)
    assert (reading.share, reading.seconds_left()) == (3 / 11, 16.0)
    clock.now += 1
    assert reading.seconds_left() == 15
    clock.now += 2  # It takes a second longer than the parts before it.
    assert reading.seconds_left() == 8 * 3 - 3
    clock.now += 97
    reading.reached(20)  # More than was known before.
    assert (reading.share, reading.seconds_left()) == (1.0, 0.0)
    assert reading.seconds == 134


def test_a_total_may_become_known_later():
    reading = Phase("reading")
    assert reading.share is None
    reading.reached(1, 4)
    assert reading.share == 0.25


def test_phases_inside_a_phase_fill_the_part_that_is_their_turn():
    clock = Clock()
    outer, unknown, inner = (Phase(t, n, clock=clock) for t, n in (("a", 4), ("b", None), ("c", 2)))
    outer.advance()
    inner.advance()
    clock.now += 30
    share, left = overall([outer, unknown, inner])
    assert share == (1 + 0.5) / 4
    assert left == pytest.approx(50)
    clock.now += 10  # It counts down until the next part is over.
    assert overall([outer, unknown, inner])[1] == pytest.approx(40)
    clock.now += 50
    assert overall([outer, unknown, inner])[1] is None
    inner.advance()
    assert overall([outer, unknown, inner]) == (0.5, 90.0)
    assert overall([unknown]) == (None, None)
    assert overall([inner]) == (1.0, 0.0)


def test_nothing_is_shown_unless_somebody_wants_to():
    assert not is_shown()
    with phase("reading", 3) as reading:
        reading.advance()
    assert reading.done == 1


def test_a_display_is_told_the_beginning_and_the_end_also_after_an_error():
    def fail():
        with phase("reading"):
            assert is_shown()
            raise OSError("gone")

    told = Told()
    with shown_by(told), pytest.raises(OSError, match="gone"):
        fail()
    assert told.told == ["begin reading", "end reading"]
    assert not is_shown()


def test_another_display_can_have_the_terminal_for_a_while():
    told = Told()
    with shown_by(told), phase("tuning"), not_shown(), phase("training"):
        assert not is_shown()
    assert told.told == ["begin tuning", "pause", "resume", "end tuning"]
    with not_shown():
        assert not is_shown()
