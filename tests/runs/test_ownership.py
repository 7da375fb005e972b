"""A run's folder that is removed or replaced while it trains, or holds foreign files."""

import os
import shutil
import threading
import time

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.runs.catalog import is_run
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.file_names import DESCRIPTION
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.lock import RunLock, RunLockedError
from kerasdist.runs.ownership import OwnFolder
from kerasdist.training.epochs.loop import Loop
from tests.faulty_files import contents
from tests.runs.small_runs import (
    STEPS,
    At,
    assert_like,
    digest,
    fit,
    logged,
    remove_tree,
    saved,
    wait_until,
)


@pytest.mark.parametrize("parent_too", [False, True])
def test_a_removed_folder_is_made_again(tmp_path, whole, longer, capsys, parent_too):
    run = tmp_path / "runs" / "run"
    described = {}
    refused = []

    def remove():
        wait_until(saved(run, 6))
        described.update({name: (run / name).read_bytes() for name in DESCRIPTION})
        remove_tree(run.parent if parent_too else run)

    def intrude():
        """Another process must not be able to take the run."""
        wait_until(saved(run, 10))
        with pytest.raises(RunLockedError):
            RunLock(run).acquire()
        refused.append(run)

    history = fit(run, callbacks=[At({7: remove, 11: intrude})])
    assert len(history.epoch) == 4
    assert refused
    assert digest(run) == digest(whole)
    assert {name: (run / name).read_bytes() for name in DESCRIPTION} == described
    # What was in the folder is gone; what came after is there.
    assert [line["step"] for line in logged(run) if line["kind"] == "step"][-1] == STEPS
    assert keras.models.load_model(run / "best.keras").count_params()
    with RunLock(run):
        pass  # Nobody holds it any more.
    fit(run, epochs=5)
    assert digest(run) == digest(longer)
    out = capsys.readouterr().out
    assert out.count(f"the run's folder {run} was gone and has been made again") == 1
    assert "could not write" not in out


def test_if_the_best_model_is_lost_the_best_since_then_is_kept(tmp_path, monkeypatch):
    run = tmp_path / "run"
    losses = iter([0.1, 2.0, 1.0, 3.0])
    monkeypatch.setattr(
        "kerasdist.training.epochs.loop.metric_results", lambda engine: {"loss": next(losses)}
    )
    count = Loop._count
    weights = {}

    def count_and_remove(loop, outcome):
        count(loop, outcome)
        weights[loop.step] = loop._engine.model.get_weights()
        if loop.step == 7 and outcome.num_steps:
            wait_until(saved(run, 6))
            remove_tree(run)

    monkeypatch.setattr(Loop, "_count", count_and_remove)
    fit(run)
    best = keras.models.load_model(run / "best.keras").get_weights()
    for a, b in zip(best, weights[15], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_folder_that_is_removed_again_and_again(tmp_path, whole, longer):
    """While it is written to, at any moment."""
    run = tmp_path / "run"
    over = threading.Event()

    def remove():
        while not over.wait(0.003):
            shutil.rmtree(run, ignore_errors=True)

    thread = threading.Thread(target=remove)
    pause = {step: lambda: time.sleep(0.05) for step in range(4, 15)}

    def stop():
        over.set()
        thread.join()

    fit(run, save_every=1, callbacks=[At({**pause, 3: thread.start, 15: stop})])
    assert digest(run) == digest(whole)
    assert Store(run / "checkpoints").newest().step == STEPS
    fit(run, epochs=5)
    assert digest(run) == digest(longer)


def test_a_lost_lock_and_a_lost_description_are_put_back(tmp_path):
    run = tmp_path / "run"

    def lose():
        for name in ("lock", "config.json"):
            (run / name).unlink()

    def intrude():
        wait_until(saved(run, 10))
        with pytest.raises(RunLockedError):
            RunLock(run).acquire()
        assert is_run(run)
        intruded.append(1)

    intruded = []
    fit(run, callbacks=[At({7: lose, 11: intrude})])
    assert intruded


def test_a_run_that_another_process_has_taken_is_left_to_it(tmp_path, capsys):
    """The folder was removed, and somebody else began a run of the same name."""
    run = tmp_path / "run"
    other = RunLock(run)
    theirs = {}

    def take():
        wait_until(saved(run, 6))
        remove_tree(run)
        RunFolder(run, {"kerasdist": "theirs"})
        other.acquire()
        theirs.update(contents(run))

    with pytest.raises(kerasdist.KerasdistError, match="something else is there now"):
        fit(run, callbacks=[At({7: take})])
    assert contents(run) == theirs
    assert capsys.readouterr().out.count("could not write") == 1
    other.release()


def test_a_lock_that_another_process_has_taken_is_left_to_it(tmp_path):
    run = tmp_path / "run"
    other = RunLock(run)
    theirs = {}

    def take():
        wait_until(saved(run, 6))
        (run / "lock").unlink()
        other.acquire()
        theirs.update(contents(run))

    with pytest.raises(kerasdist.KerasdistError, match=f"in use by process {os.getpid()}"):
        fit(run, callbacks=[At({7: take})])
    assert contents(run) == theirs
    other.release()


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_takes_the_place_of_the_folder_is_left_alone(tmp_path, whole, capsys, kind):
    run, moved, foreign = tmp_path / "run", tmp_path / "moved", tmp_path / "foreign"

    def replace():
        wait_until(saved(run, 6))
        run.rename(moved)
        if kind == "file":
            run.write_text("foreign")
            return
        target = run if kind == "folder" else foreign
        (target / "checkpoints" / "step-00000002").mkdir(parents=True)
        (target / "checkpoints" / "tmp-mine").write_text("foreign")
        (target / "metrics.jsonl").write_text("foreign")
        if kind == "link":
            run.symlink_to(foreign)

    def content():
        return run.read_text() if kind == "file" else contents(run)

    seen = []
    with pytest.raises(kerasdist.KerasdistError, match="something else is there now"):
        fit(run, callbacks=[At({7: replace, 8: lambda: seen.append(content())})])
    assert content() == seen[0]
    assert capsys.readouterr().out.count("could not write") == 1
    # The command line notes how a run ended, but not there.
    RunFolder.stop(_run_folder(run), "failed", "x")
    assert content() == seen[0]
    if kind == "folder":
        fit(moved)
        assert digest(moved) == digest(whole)


def _run_folder(path):
    """As the one of the run, which was made when the folder was there."""
    folder = RunFolder.__new__(RunFolder)
    folder.path, folder._dataset = path, "caller"
    return folder


def test_the_command_leaves_a_folder_alone_that_takes_the_place(tmp_path, fit_command):
    run = tmp_path / "run"

    def replace():
        wait_until(saved(run, 8))  # Otherwise the saver makes the folder again in between.
        time.sleep(0.2)  # for the saver's last sync
        run.rename(tmp_path / "moved")
        run.mkdir()
        (run / "result.json").write_text("foreign")

    code, _, err = fit_command("run", "--summary-every", "2", actions={9: replace})
    assert code == 1
    assert "something else is there now" in err
    assert contents(run) == {"result.json": b"foreign"}


def test_a_folder_that_is_moved_away_and_back_is_the_same(tmp_path, whole, capsys):
    run, away = tmp_path / "run", tmp_path / "away"
    foreign = tmp_path / "run" / "notes.txt"

    def move():
        wait_until(saved(run, 6))
        run.rename(away)
        run.mkdir()
        foreign.write_text("mine")

    def move_back():
        foreign.unlink()
        run.rmdir()
        away.rename(run)

    fit(run, callbacks=[At({7: move, 12: move_back})])
    out = capsys.readouterr().out
    assert (out.count("could not write"), out.count("works again")) == (1, 1)
    assert_like(run, whole)
    assert logged(run) == logged(whole)


def test_after_the_end_a_lost_folder_stays_lost(tmp_path):
    (tmp_path / "run").mkdir()
    folder = OwnFolder(tmp_path / "run")
    folder.close()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        folder.ensure()
    assert not (tmp_path / "run").exists()


# Folders that do not belong to the repository.


@pytest.mark.parametrize("kind", ["link", "dangling link", "foreign folder", "file"])
def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path, whole, fit_command, kind):
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    if kind == "link":
        shutil.copytree(whole, other, dirs_exist_ok=True)  # Also if it leads to a run.
        run.symlink_to(other)
    elif kind == "dangling link":
        run.symlink_to(tmp_path / "nothing")
    elif kind == "foreign folder":
        (run / "checkpoints" / "step-00000002").mkdir(parents=True)
        (run / "notes.txt").write_text("mine")
    else:
        run.write_text("mine")

    def others():
        return {k: v for k, v in contents(tmp_path).items() if not k.startswith("tiny/")}

    before = others()
    what = {"foreign folder": "which is not empty", "file": "which is a file"}.get(
        kind, "which is a symbolic link"
    )
    with pytest.raises(kerasdist.KerasdistError, match=f"`run_dir=.*{what}. Expected .*folder"):
        fit(run)
    code, out, err = fit_command("run")
    assert (code, out) == (2, "")
    assert what in err
    assert others() == before
    assert run.is_symlink() == ("link" in kind)
    assert not (tmp_path / "nothing").exists()


def test_checkpoints_that_are_a_link_are_refused(tmp_path):
    fit(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    with pytest.raises(kerasdist.KerasdistError, match=r"is a link or a file. Expected"):
        fit(tmp_path / "run")
    assert contents(tmp_path / "elsewhere") == before


def test_foreign_files_among_the_checkpoints_stay_and_links_are_not_followed(
    tmp_path, whole, capsys
):
    """A whole run, with a stop in it, over and over what others have put there."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    fit(elsewhere, epochs=2)
    fit(run, epochs=1)
    foreign = run / "checkpoints"
    (foreign / "notes.txt").write_text("mine")
    (foreign / "step-foo").mkdir()
    (foreign / "step-foo" / "arrays.bin").write_text("mine")
    (foreign / "tmp-something").mkdir()
    (foreign / "tmp-something" / "manifest.json").write_text("mine")
    (foreign / "tmp-save-00000004-1-mine").mkdir()
    # A good checkpoint, newer than any of the run, but not its own; and where it will save, too.
    (foreign / "step-00000012").symlink_to(elsewhere / "checkpoints" / "step-00000010")
    (foreign / "tmp-old-00000014-99999999-0123abcd").symlink_to(elsewhere / "checkpoints")
    before = {k: v for k, v in contents(foreign).items() if "step-0000" not in k}
    links = [path for path in foreign.iterdir() if path.is_symlink()]
    outside = contents(elsewhere)

    with pytest.raises(ZeroDivisionError):
        fit(run, callbacks=[At({13: lambda: 1 / 0})])
    fit(run)
    out = capsys.readouterr().out
    assert out.count("skipped the checkpoint step-00000012: it is a link") == 2
    # The last one before the error: no later one takes its place, or hides that it failed.
    assert "could not write a checkpoint: The checkpoint of step 12 cannot be saved" in out, out
    assert {k: v for k, v in contents(foreign).items() if "step-0000" not in k} == before
    assert len(links) == 2
    assert all(path.is_symlink() for path in links)
    assert contents(elsewhere) == outside
    assert_like(run, whole)
