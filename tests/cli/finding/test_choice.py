"""Which finder is asked for, and the command to use afterwards."""

import doctest

import pytest

from kerasdist.cli.finding import choice
from kerasdist.cli.finding.choice import command, finder, without
from kerasdist.devices import cluster
from kerasdist.errors import KerasdistError


def test_the_examples_run():
    assert doctest.testmod(choice).failed == 0


def test_the_command_is_without_what_only_a_trial_needs():
    argv = ["my recipe", "--find-lr", "--json", "--devices", "2", "--find_batch_size"]
    assert command(argv) == "kerasdist fit 'my recipe' --devices 2"


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        ("r --freeze --epochs 5", "r --epochs 5"),
        ("r --freeze 3 --epochs 5", "r --epochs 5"),
        ("r --freeze=3 --epochs 5", "r --epochs 5"),
        ("r --epochs 5 --freeze", "r --epochs 5"),
        ("r --freeze a b --epochs 5", "r --epochs 5"),
        ("r --freeze -1 --freeze -.5 -v", "r -v"),
    ],
)
def test_an_option_is_left_out_with_as_many_values_as_it_has(argv, kept):
    assert without(argv.split(), values=["--freeze"]) == kept.split()


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (("find_lr", "find_batch_size"), "`--find-batch-size` and `--find-lr`"),
        (("find_lr", "dry_run"), "`--find-lr` and `--dry-run`"),
    ],
)
def test_two_trials_at_once_are_refused(given, flags):
    with pytest.raises(KerasdistError, match=f"Received {flags}. Expected one of them"):
        finder(dict.fromkeys(given, True))


def test_several_workers_are_refused(monkeypatch):
    monkeypatch.setattr(cluster, "current", lambda: object())
    assert finder({"find_lr": False}) is None
    with pytest.raises(KerasdistError, match=r"`--find-lr` on several workers. Expected one"):
        finder({"find_lr": True})
