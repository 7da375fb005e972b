"""When checkpoints are saved, and what happens if that fails."""

import errno
import os
import shutil

import pytest

from kerasdist.runs.catalog import status
from kerasdist.runs.checkpoints import recovery
from kerasdist.runs.intervals import Every
from tests.faulty_files import FaultyFiles, QuickFiles, fail_with
from tests.runs.checkpoints.saving import Clock, handed_over
from tests.runs.checkpoints.stopped_runs import fit


def test_saving_that_fails_does_not_stop_the_training(tmp_path, monkeypatch, capsys):
    original = recovery.Store.save
    calls = []

    def full(self, step, arrays, meta, **options):
        calls.append(step)
        if len(calls) in (2, 3):
            raise OSError(28, "No space left on device")
        return original(self, step, arrays, meta, **options)

    monkeypatch.setattr(recovery.Store, "save", full)
    history = fit(tmp_path / "run", progress="auto")
    assert len(history.epoch) == 4
    assert capsys.readouterr().out.count("could not write a checkpoint: No space left") == 1
    assert status(tmp_path / "run") == "finished"


def test_saves_are_due_by_steps_seconds_or_epochs(make):
    by_steps = make(Every(steps=10))
    assert [by_steps.is_due(n) for n in (0, 9, 10, 11, 20)] == [False, False, True, False, True]
    assert by_steps.steps_left(13) == 7
    clock = Clock()
    by_seconds = make(Every(seconds=30.0), clock)
    assert by_seconds.steps_left(13) is None
    assert not by_seconds.is_due(5)
    clock.now = 31.0
    assert by_seconds.is_due(5)
    handed_over(by_seconds, 5)
    assert not by_seconds.is_due(6)
    clock.now = 62.0
    assert by_seconds.is_due(6)
    by_epochs = make(Every(epoch=True))
    assert not by_epochs.is_due(5)
    assert by_epochs.is_due(5, epoch_ended=True)


def test_a_step_is_saved_once_and_once_more_at_the_end_of_an_epoch(make):
    recovered = make(Every(steps=5))
    assert recovered.is_due(5)
    handed_over(recovered, 5, epoch=0)
    assert not recovered.is_due(5)
    assert recovered.is_due(5, epoch_ended=True)
    assert not recovered.is_due(6, epoch_ended=True)
    handed_over(recovered, 5, epoch=1)
    assert recovered.load().meta["epoch"] == 1


def test_what_is_saved_already_is_not_saved_again(make, tmp_path):
    recovered = make(Every(steps=5))
    handed_over(recovered, 5, epoch=0, best=float("nan"))
    inode = (tmp_path / "checkpoints" / "step-00000005").stat().st_ino
    handed_over(recovered, 5, epoch=0, best=float("nan"))
    assert recovered.save_last(5, pytest.fail, {"epoch": 0, "best": float("nan")}) is None
    resumed = make(Every(steps=5))
    resumed.load()
    assert resumed.save_last(5, pytest.fail, {"epoch": 0, "best": float("nan")}) is None
    assert (tmp_path / "checkpoints" / "step-00000005").stat().st_ino == inode


@pytest.mark.parametrize("every", [Every(steps=1000), Every(seconds=600.0), Every(epoch=True)])
def test_a_save_that_failed_is_tried_again_before_the_next_is_due(make, every, capsys):
    clock = Clock()
    files = FaultyFiles(0, fail_with(errno.ENOSPC), onward=True)
    recovered = make(every, clock, files)
    handed_over(recovered, 1000)
    assert not recovered.is_due(1001)
    clock.now = recovery.RETRY_SECONDS - 1
    assert not recovered.is_due(1002)
    clock.now = recovery.RETRY_SECONDS
    assert recovered.is_due(1003)
    handed_over(recovered, 1003)
    clock.now += recovery.RETRY_SECONDS - 1
    assert not recovered.is_due(1004)
    clock.now += 1
    assert recovered.is_due(1005)
    assert capsys.readouterr().out.count("could not write a checkpoint") == 1
    files.at = None
    handed_over(recovered, 1005)
    clock.now += recovery.RETRY_SECONDS
    assert not recovered.is_due(1006)
    assert "works again" in capsys.readouterr().out
    assert recovered.load().step == 1005


def test_a_step_whose_save_failed_is_due_again_at_once_where_it_is_due(make):
    """As at the end of an epoch; and the last save of a run is tried again in any case."""
    files = FaultyFiles(0, fail_with(errno.ENOSPC), onward=True)
    recovered = make(Every(steps=10), files=files)
    handed_over(recovered, 10)
    assert recovered.is_due(10)
    error = recovered.save_last(10, dict, {})
    assert error.errno == errno.ENOSPC
    files.at = None
    assert recovered.save_last(10, dict, {}) is None
    assert recovered.load().step == 10


def test_a_folder_that_is_lost_while_a_checkpoint_is_written_is_made_again(make, tmp_path, capsys):
    class Removing(QuickFiles):
        removed = 0

        def mkdir(self, path):
            if not self.removed and path.name.startswith("tmp-save"):
                shutil.rmtree(tmp_path)
                self.removed += 1
            os.mkdir(path)

    files = Removing()
    recovered = make(Every(steps=5), files=files)
    handed_over(recovered, 5)
    assert files.removed
    assert not recovered.is_due(6)
    out = capsys.readouterr().out
    assert "was gone and has been made again" in out
    assert "could not write" not in out
    assert recovered.load().step == 5


def test_by_default_a_short_training_loses_little_and_a_large_one_does_not_fill_the_disk(make):
    clock = Clock()
    of_small, of_large = (make(recovery.default_interval(size), clock) for size in (10**6, 10**9))
    assert of_small.is_due(1000)
    clock.now = 31.0
    assert of_small.is_due(7)
    assert not of_large.is_due(7)
    clock.now = 201.0
    assert of_large.is_due(7)


def test_a_run_that_ended_before_its_first_checkpoint_says_that_it_starts_again(tmp_path, capsys):
    undisturbed = fit(tmp_path / "other", progress="auto", epochs=1)
    fit(tmp_path / "run", progress="auto", epochs=1)
    assert "starts again" not in capsys.readouterr().out
    for name in ("checkpoints", "result.json", "final.keras"):
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = fit(tmp_path / "run", progress="auto", epochs=1)
    assert "ended before its first checkpoint, so it starts again" in capsys.readouterr().out
    assert again.history == undisturbed.history
