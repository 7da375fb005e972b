"""When something is due again."""

import pytest

from kerasdist import KerasdistError
from kerasdist.runs.intervals import Every, at_most
from kerasdist.training.options import RunOptions


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (500, Every(steps=500)),
        ("500", Every(steps=500)),
        ("30s", Every(seconds=30.0)),
        ("epoch", Every(epoch=True)),
        ("Epoch, 45.5s", Every(seconds=45.5, epoch=True)),
    ],
)
def test_save_every_reads_steps_seconds_and_epochs(value, expected):
    assert RunOptions.checked(save_every=value).save_every == expected


@pytest.mark.parametrize(
    "value", ["often", "5 m", "1.5", "-3", True, "", "5,6", "5,", "epoch,soon"]
)
def test_other_values_are_refused_by_the_name_of_the_option(value):
    with pytest.raises(KerasdistError, match=r"Received `log_every=.*Expected a number of steps"):
        Every.parse(value, "log_every")


@pytest.mark.parametrize("value", [0, "0", "0s", "0.0s", "10,0s"])
def test_zero_is_refused(value):
    with pytest.raises(KerasdistError, match=r"Received `save_every=.*Expected more than 0"):
        RunOptions.checked(save_every=value)


def test_by_steps():
    every = Every(steps=10)
    assert [step for step in range(31) if every.is_due(step)] == [10, 20, 30]
    assert [every.steps_left(step) for step in (0, 1, 9, 10, 13)] == [10, 9, 1, 10, 7]
    # The step that is `steps_left` steps later is due, and none before it.
    for step in range(25):
        left = every.steps_left(step)
        assert [every.is_due(step + i + 1) for i in range(left)] == [False] * (left - 1) + [True]


def test_by_seconds():
    every = Every(seconds=30.0)
    assert [every.is_due(5, waited=waited) for waited in (0.0, 29.9, 30.0)] == [False, False, True]
    assert every.steps_left(5) is None
    assert not every.is_due(5, epoch_ended=True)


def test_the_first_of_several_that_is_due():
    every = Every(steps=10, seconds=30.0, epoch=True)
    assert [every.is_due(step) for step in (9, 10)] == [False, True]
    assert [every.is_due(9, waited=waited) for waited in (29.0, 31.0)] == [False, True]
    assert every.is_due(9, epoch_ended=True)
    assert every.steps_left(4) == 6


def test_by_epochs():
    every = Every(epoch=True)
    assert every.is_due(5, epoch_ended=True)
    assert not every.is_due(5, waited=1e9)
    assert every.steps_left(5) is None


def test_never():
    assert not Every().is_due(10, waited=1e9, epoch_ended=True)
    assert Every().steps_left(10) is None


def test_at_most_ignores_what_has_no_limit():
    assert at_most(5) == 5
    assert at_most(5, None) == 5
    assert at_most(5, None, 3, 8) == 3
