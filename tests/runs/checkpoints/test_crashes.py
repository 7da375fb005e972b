"""Saves that are cut off or fail, at every call: the checkpoints before stay good."""

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from kerasdist.runs.checkpoints import Files, Store
from tests.faulty_files import (
    DEAD_PID,
    Crash,
    FaultyFiles,
    ForgetfulFiles,
    QuickFiles,
    assert_same,
    contents,
    fail_with,
    names,
    run_script,
    small_arrays,
    stop_after,
    stop_before,
    stop_midway,
)


@pytest.fixture
def tmp_path(tmp_path):
    """In memory where that is possible: thousands of folders are made and removed."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def prepared(template, scenario):
    """A folder for a save of step 300, and the steps that may be the newest before it."""
    store = Store(template, files=QuickFiles())
    if scenario != "the first":
        for step in (100, 200):
            store.save(step, small_arrays(step), {"step": step})
        stale = template / f"tmp-save-00000300-{DEAD_PID}-0123abcd"
        stale.mkdir()
        (stale / "arrays.bin").write_bytes(b"half of it")
    if scenario == "over a broken one":
        shutil.copytree(template / "step-00000100", template / "step-00000300")
    return template


SCENARIOS = ["the first", "the third", "over a broken one"]


def assert_old_or_new(folder, scenario):
    store = Store(folder)
    checkpoint = store.newest()
    if checkpoint is None:
        assert scenario == "the first"
        return None
    assert checkpoint.step in (200, 300)
    assert checkpoint.meta == {"step": checkpoint.step}
    assert_same(checkpoint.arrays, small_arrays(checkpoint.step))
    if scenario != "over a broken one":
        assert store.skipped == []
    return checkpoint.step


def assert_goes_on(folder):
    store = Store(folder, files=QuickFiles())
    for step in (300, 400):
        store.save(step, small_arrays(step), {"step": step})
        checkpoint = store.newest()
        assert checkpoint.step == step
        assert_same(checkpoint.arrays, small_arrays(step))
    assert names(folder) == ["step-00000300", "step-00000400"]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("act", [stop_before, stop_after, stop_midway])
def test_every_crash_in_a_save_leaves_the_old_or_the_new(tmp_path, act, scenario):
    template = prepared(tmp_path / "template", scenario)
    seen = set()
    for at in range(1000):
        folder = tmp_path / str(at)
        if template.exists():
            shutil.copytree(template, folder)
        files = FaultyFiles(at, act)
        try:
            Store(folder, files=files).save(300, small_arrays(300), {"step": 300})
        except Crash:
            seen.add(assert_old_or_new(folder, scenario))
            assert_goes_on(folder)
        else:
            break
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    assert not files.reached
    assert at > 15
    assert seen == {None if scenario == "the first" else 200, 300}
    assert {"open", "write", "fsync", "mkdir", "rename"} <= set(files.calls)


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "after the next save"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_loss_of_power_anywhere_in_a_save_leaves_the_old_or_the_new(tmp_path, scenario, goes_on):
    """Also when another process went on with what the first had not synced."""
    template = prepared(tmp_path / "template", scenario)
    for at in range(1000):
        folder = tmp_path / str(at) / "run" / "checkpoints"
        if template.exists():
            shutil.copytree(template, folder)
        else:
            (tmp_path / str(at)).mkdir()
        files = ForgetfulFiles(at, stop_after)
        with contextlib.suppress(Crash):
            Store(folder, files=files).save(300, small_arrays(300), {"step": 300})
        ended = not files.reached
        if goes_on:
            files.restart()
            Store(folder, files=files).save(300, small_arrays(300), {"step": 300})
        files.lose_power()
        newest = assert_old_or_new(folder, scenario)
        if ended or goes_on:
            assert newest == 300  # Saved is saved.
        assert_goes_on(folder)
        shutil.rmtree(tmp_path / str(at))
        if ended:
            break
    assert ended


KILLS = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from tests.faulty_files import FaultyFiles, QuickFiles, killed, small_arrays
from tests.faulty_files import stop_after, stop_before, stop_midway
from kerasdist.runs.checkpoints import Store

root = Path(sys.argv[1])
template = root / "template"
for step in (100, 200):
    Store(template, files=QuickFiles()).save(step, small_arrays(step), {"step": step})
num_kills = 0
for act in (stop_before, stop_after, stop_midway):
    for at in range(1000):
        folder = root / f"{act.__name__}-{at}"
        shutil.copytree(template, folder)
        child = os.fork()
        if not child:
            store = Store(folder, files=FaultyFiles(at, killed(act)))
            store.save(300, small_arrays(300), {"step": 300})
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        store = Store(folder, files=QuickFiles())
        checkpoint = store.newest()
        assert store.skipped == [], (folder, store.skipped)
        assert checkpoint.step in (200, 300), folder
        for name, array in small_arrays(checkpoint.step).items():
            assert checkpoint.arrays[name].tobytes() == array.tobytes(), folder
        store.save(400, small_arrays(400), {"step": 400})
        assert store.newest().step == 400
        assert not list(folder.glob("tmp-*")), folder
        shutil.rmtree(folder)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        num_kills += 1
assert "tensorflow" not in sys.modules
print(num_kills)
"""


def test_sigkill_at_every_call_of_a_save(tmp_path):
    """A real process each; they are forked from one, which needs no time to start."""
    result = run_script(KILLS, tmp_path)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 60


def test_drafts_of_living_processes_stay(folder):
    folder.mkdir()
    living = folder / f"tmp-save-00000001-{os.getppid()}-0123abcd"
    dead = folder / f"tmp-old-00000001-{DEAD_PID}-0123abcd"
    own = folder / f"tmp-save-00000001-{os.getpid()}-0123abcd"
    for path in (living, dead, own):
        path.mkdir()
    Store(folder)
    Store(folder).newest()
    assert names(folder) == sorted([living.name, dead.name, own.name])
    Store(folder).save(1, {}, {})
    assert names(folder) == ["step-00000001", living.name]


def test_the_draft_of_another_thread_stays(folder):
    """Two stores of one process: the second must not remove what the first is writing."""

    class Meanwhile(Files):
        def rename(self, old, new):
            if Path(new).name == "step-00000001":
                Store(folder).save(2, small_arrays(2), {})
            os.rename(old, new)

    Store(folder, files=Meanwhile()).save(1, small_arrays(1), {})
    assert Store(folder).steps() == [1, 2]
    assert Store(folder).newest().step == 2


@pytest.mark.parametrize("onward", [False, True], ids=["once", "from there on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_failure_at_any_call_leaves_the_good_ones(tmp_path, number, onward):
    template = prepared(tmp_path / "template", "the third")
    good = {k: v for k, v in contents(template).items() if k.startswith("step-")}
    num_failures = 0
    for at in range(1000):
        folder = tmp_path / str(at)
        shutil.copytree(template, folder)
        files = FaultyFiles(at, fail_with(number), onward=onward)
        store = Store(folder, files=files)
        error = None
        try:
            store.save(300, small_arrays(300), {"step": 300})
        except OSError as raised:
            error = raised
        if error is not None:
            assert error.errno == number
            assert good.items() <= contents(folder).items()
            assert onward or not list(folder.glob(f"tmp-save-*-{os.getpid()}-*"))
            num_failures += 1
        assert_old_or_new(folder, "the third")
        if not files.reached:
            break
        files.at = None
        store.save(300, small_arrays(300), {"step": 300})
        assert store.newest().step == 300
        assert store.steps() == [200, 300]
        assert_goes_on(folder)
        shutil.rmtree(folder)
    assert not files.reached
    assert num_failures > 15


def test_short_writes_are_continued(folder):
    class Short(Files):
        def write(self, file, data):
            return os.write(file, data[:1000])

        def read(self, file, buffers):
            return os.readv(file, [buffers[0][:777]])

    store = Store(folder, files=Short())
    store.save(1, small_arrays(1), {})
    assert_same(Store(folder).newest().arrays, small_arrays(1))
    assert_same(store.newest().arrays, small_arrays(1))


def test_folders_that_cannot_be_synced_are_no_failure(folder):
    """As on some network file systems."""

    class NoFolders(Files):
        def fsync(self, file):
            if os.path.isdir(f"/proc/self/fd/{file}"):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            os.fsync(file)

    Store(folder, files=NoFolders()).save(1, {}, {})
    assert Store(folder).newest().step == 1


FULL_DISK = """
import errno, subprocess, sys
from pathlib import Path
import numpy as np
from kerasdist.runs.checkpoints import Store

disk = Path(sys.argv[1])
mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)])
if mounted.returncode:
    sys.exit(77)
store = Store(disk / "checkpoints")
for step in (1, 2):
    store.save(step, {"a": np.full(25_000, step, "float64")}, {})
for _ in range(2):
    try:
        store.save(3, {"a": np.full(100_000, 3, "float64")}, {})
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise SystemExit("the disk is not full")
    assert sorted(p.name for p in store.folder.iterdir()) == ["step-00000001", "step-00000002"]
    assert store.newest().arrays["a"][-1] == 2
store.save(4, {"a": np.full(25_000, 4, "float64")}, {})
assert store.newest().step == 4 and store.steps() == [2, 4]
"""


def test_a_full_disk(tmp_path):
    """A real one of 1 MB, mounted in a namespace of its own."""
    if not shutil.which("unshare"):
        pytest.skip("needs `unshare`, to mount a small disk")
    prefix = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces, to mount a small disk in")
    result = run_script(FULL_DISK, tmp_path, prefix=prefix)
    if result.returncode == 77:
        pytest.skip("this machine does not let a small disk be mounted")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_folder(folder):
    Store(folder).save(2, {}, {})
    folder.chmod(0o555)
    try:
        with pytest.raises(PermissionError):
            Store(folder).save(3, {}, {})
        assert Store(folder).newest().step == 2
    finally:
        folder.chmod(0o755)


def test_a_missing_folder_is_made_when_it_is_needed(tmp_path):
    folder = tmp_path / "a" / "b" / "checkpoints"
    store = Store(folder)
    assert store.newest() is None
    assert store.steps() == []
    assert names(tmp_path) == []
    store.save(1, {}, {})
    shutil.rmtree(tmp_path / "a")
    store.save(2, {}, {})
    assert Store(folder).newest().step == 2


def test_a_folder_that_was_removed_lasts_when_it_is_made_again(tmp_path):
    files = ForgetfulFiles()
    store = Store(tmp_path / "run" / "checkpoints", files=files)
    store.save(1, {}, {})
    shutil.rmtree(tmp_path / "run")
    store.save(2, {}, {})
    files.lose_power()
    assert store.newest().step == 2


def test_a_folder_below_a_link_to_nothing(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        Store(tmp_path / "link" / "checkpoints").save(1, {}, {})
