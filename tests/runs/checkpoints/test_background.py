"""Saving in the background: one at a time, the newest wins, a failure is remembered."""

import contextlib
import doctest
import errno
import os
import shutil
import threading
import time
import weakref

import numpy as np
import pytest

from kerasdist import KerasdistError
from kerasdist.runs.checkpoints import Store, background
from kerasdist.runs.checkpoints.background import BackgroundSaver
from tests.faulty_files import (
    DEAD_PID,
    Crash,
    FaultyFiles,
    ForgetfulFiles,
    QuickFiles,
    assert_same,
    fail_with,
    names,
    run_script,
    small_arrays,
    stop_after,
    stop_before,
    stop_midway,
)


class GatedStore:
    """A store whose saves wait until the test lets them go."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.saved = []
        self.num_saving = 0

    def save(self, step, arrays, meta):
        self.num_saving += 1
        assert self.num_saving == 1
        self.begun.release()
        assert self.gate.acquire(timeout=30)
        self.saved.append((step, arrays, meta))
        self.num_saving -= 1


def saver_threads():
    return [thread for thread in threading.enumerate() if thread.name == "kerasdist-saver"]


def test_a_snapshot_is_saved_as_the_store_would(tmp_path):
    with BackgroundSaver(Store(tmp_path)) as saver:
        saver.save(7, small_arrays(7), {"epoch": 1})
        saver.wait()
        assert (saver.last_saved_step, saver.error) == (7, None)
        assert not saver.busy
    checkpoint = Store(tmp_path).newest()
    assert (checkpoint.step, checkpoint.meta) == (7, {"epoch": 1})
    np.testing.assert_array_equal(
        checkpoint.arrays["dense/kernel"], small_arrays(7)["dense/kernel"]
    )


def test_handing_over_does_not_wait():
    store = GatedStore()
    with BackgroundSaver(store) as saver:
        saver.save(1, {}, {})
        assert store.begun.acquire(timeout=30)
        saver.save(2, {}, {})  # Would wait for ever: the gate is closed.
        assert saver.busy
        assert saver.last_saved_step is None
        store.gate.release(2)
        saver.wait()
        assert not saver.busy
    assert [step for step, *_ in store.saved] == [1, 2]


def test_the_newest_takes_the_place_of_one_that_has_not_begun():
    store = GatedStore()
    with BackgroundSaver(store) as saver:
        saver.save(1, {}, {})
        assert store.begun.acquire(timeout=30)
        for step in (2, 3, 4):
            saver.save(step, {"a": step}, {"step": step})
        store.gate.release(2)
        saver.wait()
        assert saver.last_saved_step == 4
    assert store.saved == [(1, {}, {}), (4, {"a": 4}, {"step": 4})]


def test_close_saves_what_was_handed_over_and_ends_the_thread():
    before = len(saver_threads())
    store = GatedStore()
    saver = BackgroundSaver(store)
    assert len(saver_threads()) == before + 1
    saver.save(1, {}, {})
    assert store.begun.acquire(timeout=30)
    saver.save(2, {}, {})
    store.gate.release(2)
    saver.close()
    assert [step for step, *_ in store.saved] == [1, 2]
    assert len(saver_threads()) == before
    saver.close()
    saver.wait()
    with pytest.raises(RuntimeError, match="`save` was called after `close`"):
        saver.save(3, {}, {})


def test_a_failure_is_remembered_until_a_save_succeeds(tmp_path):
    files = FaultyFiles(0, fail_with(errno.ENOSPC), onward=True)
    with BackgroundSaver(Store(tmp_path / "checkpoints", files=files)) as saver:
        for step in (1, 2):
            saver.save(step, small_arrays(step), {})
            saver.wait()
            assert isinstance(saver.error, OSError)
            assert saver.error.errno == errno.ENOSPC
            assert saver.last_saved_step is None
        files.at = None
        saver.save(3, small_arrays(3), {})
        saver.wait()
        assert (saver.error, saver.last_saved_step) == (None, 3)
        saver.save(4, {"a": np.array([object()])}, {})
        saver.wait()
        assert isinstance(saver.error, KerasdistError)
        assert saver.last_saved_step == 3
    assert Store(tmp_path / "checkpoints").newest().step == 3


@pytest.mark.parametrize("fails", [False, True])
def test_saved_snapshots_are_not_held_in_memory(tmp_path, fails):
    class FailsAtTheEnd(QuickFiles):
        def rename(self, old, new):
            if fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.rename(old, new)

    with BackgroundSaver(Store(tmp_path, files=FailsAtTheEnd())) as saver:
        array = np.ones(1000)
        alive = weakref.ref(array)
        saver.save(1, {"a": array}, {})
        saver.wait()
        assert (saver.error is not None) == fails
        del array
        assert alive() is None


def test_a_process_that_never_closes_ends():
    script = """
import time
from kerasdist.runs.checkpoints.background import BackgroundSaver
class Slow:
    def save(self, *request):
        time.sleep(60)
saver = BackgroundSaver(Slow())
saver.save(1, {}, {})
raise SystemExit(3)
"""
    start = time.monotonic()
    assert run_script(script).returncode == 3
    assert time.monotonic() - start < 30


def test_how_saves_ended_is_counted():
    class Fails:
        def save(self, step, arrays, meta):
            if step == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    with BackgroundSaver(Fails()) as saver:
        assert saver.outcome == (0, None)
        for step, has_failed in ((1, False), (2, True), (3, False)):
            saver.save(step, {}, {})
            saver.wait()
            ended, error = saver.outcome
            assert (ended, error is not None) == (step, has_failed)


# A step that is saved a second time: at the end of an epoch, after it was saved within.


def replaced(folder, files):
    arrays = small_arrays(2)
    return Store(folder, files=files).save(5, arrays, {"moment": "end"}, replace=True)


def moment(folder):
    """Which of the two is read, after every byte of it was compared."""
    store = Store(folder)
    checkpoint = store.newest()
    assert store.skipped == []
    assert checkpoint.step == 5
    found = checkpoint.meta["moment"]
    assert_same(checkpoint.arrays, small_arrays(1 if found == "within" else 2))
    return found


@pytest.fixture
def within(tmp_path):
    """The only checkpoint: there is none before it to fall back to."""
    Store(tmp_path / "template", files=QuickFiles()).save(5, small_arrays(1), {"moment": "within"})
    return tmp_path / "template"


def test_a_step_can_be_replaced(within):
    Store(within).save(5, small_arrays(2), {"moment": "end"})
    assert moment(within) == "within"
    replaced(within, QuickFiles())
    assert moment(within) == "end"
    assert names(within) == ["step-00000005"]


@pytest.mark.parametrize("act", [stop_before, stop_after, stop_midway])
def test_every_crash_while_a_step_is_replaced_leaves_one_of_the_two(tmp_path, within, act):
    seen = set()
    for at in range(1000):
        folder = tmp_path / str(at)
        shutil.copytree(within, folder)
        files = FaultyFiles(at, act)
        try:
            replaced(folder, files)
        except Crash:
            newest = moment(folder)
            state = newest, *(name[:7] for name in names(folder))
            # What comes next keeps it until it is itself whole.
            for later in range(1000) if state not in seen else ():
                copy = tmp_path / f"{at}-{later}"
                shutil.copytree(folder, copy)
                again = FaultyFiles(later, stop_before)
                try:
                    Store(copy, files=again).save(6, small_arrays(6), {})
                except Crash:
                    if not saved(copy, 6):
                        assert moment(copy) == newest
                else:
                    assert names(copy) == ["step-00000005", "step-00000006"]
                    break
                finally:
                    shutil.rmtree(copy, ignore_errors=True)
            seen.add(state)
        else:
            break
    assert not files.reached
    assert at > 12
    # Between the two renames, the old one is read under another name.
    assert ("within", "tmp-old", "tmp-sav") in seen
    assert {("within", "step-00", "tmp-sav"), ("end", "step-00", "tmp-old")} <= seen


def saved(folder, step):
    return step in Store(folder).steps()


def test_a_loss_of_power_while_a_step_is_replaced_leaves_one_of_the_two(tmp_path, within):
    for at in range(1000):
        folder = tmp_path / str(at)
        shutil.copytree(within, folder)
        files = ForgetfulFiles(at, stop_after)
        with contextlib.suppress(Crash):
            replaced(folder, files)
        files.lose_power()
        newest = moment(folder)
        if not files.reached:
            break
    assert newest == "end"
    assert at > 12


@pytest.mark.parametrize("onward", [False, True], ids=["once", "from there on"])
def test_a_failure_while_a_step_is_replaced_leaves_one_of_the_two(tmp_path, within, onward):
    for at in range(1000):
        folder = tmp_path / str(at)
        shutil.copytree(within, folder)
        files = FaultyFiles(at, fail_with(errno.EIO), onward=onward)
        with contextlib.suppress(OSError):
            replaced(folder, files)
        moment(folder)
        if not onward:
            assert names(folder)[0] == "step-00000005"
        if not files.reached:
            break
        files.at = None
        replaced(folder, files)
        assert moment(folder) == "end"
        assert names(folder) == ["step-00000005"]
    assert at > 12


def test_half_a_checkpoint_that_was_being_removed_is_not_mentioned(within):
    (within / "step-00000005").rename(within / f"tmp-old-00000005-{DEAD_PID}-0123abcd")
    assert moment(within) == "within"
    (within / f"tmp-old-00000005-{DEAD_PID}-0123abcd" / "manifest.json").unlink()
    store = Store(within)
    assert (store.newest(), store.skipped) == (None, [])


def test_folders_above_are_not_made_unless_that_is_wished(tmp_path):
    store = Store(tmp_path / "run" / "checkpoints", make_parents=False)
    with pytest.raises(FileNotFoundError):
        store.save(1, {}, {})
    assert names(tmp_path) == []
    (tmp_path / "run").mkdir()
    store.save(1, {}, {})
    assert store.newest().step == 1


@pytest.mark.parametrize("name", ["arrays.bin", "manifest.json"])
def test_a_checkpoint_that_is_removed_while_it_is_saved_is_a_failure(tmp_path, name):
    class Removed(QuickFiles):
        def rename(self, old, new):
            os.unlink(old / name)
            os.rename(old, new)

    with pytest.raises(FileNotFoundError):
        Store(tmp_path, files=Removed()).save(1, small_arrays(1), {})


def test_the_example_runs():
    result = doctest.testmod(background)
    assert result.attempted
    assert not result.failed
