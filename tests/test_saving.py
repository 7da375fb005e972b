"""Saving in the background: one at a time, the newest wins, a failure is remembered."""

import doctest
import errno
import os
import threading
import time
import weakref

import numpy as np
import pytest
from faulty_files import FaultyFiles, QuickFiles, fail_with, run_script, small_arrays

from kerasdist import KerasdistError, saving
from kerasdist.checkpoints import Store
from kerasdist.saving import BackgroundSaver


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
from kerasdist.saving import BackgroundSaver
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


def test_the_example_runs():
    result = doctest.testmod(saving)
    assert result.attempted
    assert not result.failed
