"""A run whose folder cannot be written for a while, or to the end: full, or read-only."""

import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.errors import RunFailedError
from kerasdist.runs import folder, metrics_log
from kerasdist.runs.catalog import status
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.file_names import BEST
from kerasdist.runs.folder import RunFolder
from tests.faulty_files import contents
from tests.runs.small_runs import (
    STEPS,
    At,
    X,
    Y,
    assert_like,
    digest,
    fit,
    logged,
    saved,
    wait_until,
)

each_trouble = pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EACCES], ids=errno.errorcode.get
)


@each_trouble
def test_trouble_is_told_once_and_nothing_is_lost_when_it_ends(
    tmp_path, whole, disk, number, capsys
):
    run = tmp_path / "run"
    fit(run, callbacks=[At({3: lambda: disk.fail(number), 12: disk.work})])
    out = capsys.readouterr().out
    assert disk.num_failures > 10
    assert out.count("could not write") == 1
    assert os.strerror(number) in out
    assert out.count("works again") == 1
    assert out.index("could not write") < out.index("works again")
    assert_like(run, whole)
    assert logged(run) == logged(whole)
    assert Store(run / "checkpoints").newest().step == STEPS


@each_trouble
def test_trouble_to_the_end_is_an_error_and_the_same_call_goes_on(
    tmp_path, whole, disk, number, capsys
):
    run = tmp_path / "run"
    before = {}
    steps = []

    def begin():
        wait_until(saved(run, 8))
        before.update(contents(run / "checkpoints"))
        disk.fail(number)

    actions = {9: begin, STEPS: lambda: steps.append(STEPS)}
    with pytest.raises(RunFailedError, match="end of the run could not be saved") as raised:
        fit(run, callbacks=[At(actions)])
    assert os.strerror(number) in str(raised.value)
    assert steps == [STEPS]
    assert capsys.readouterr().out.count("could not write") == 1
    assert contents(run / "checkpoints") == before
    assert not (run / "final.keras").exists()
    disk.work()
    fit(run)
    assert "continuing after step 8" in capsys.readouterr().out
    assert_like(run, whole)
    assert logged(run) == logged(whole)


def test_a_final_model_that_cannot_be_saved_is_an_error(tmp_path, whole, make_room):
    run = tmp_path / "run"
    with pytest.raises(kerasdist.KerasdistError, match="Saving the trained model failed") as raised:
        fit(run)
    assert isinstance(raised.value, RunFailedError)
    assert not list(run.glob("*final.keras"))  # Nor half of it, which would take the room.
    assert status(run) == "unfinished"
    make_room()
    fit(run)
    assert_like(run, whole)


def test_a_line_of_the_log_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run", {})
    run.log(kind="step", step=1)
    before = (run.path / "metrics.jsonl").read_bytes()

    class Full(io.FileIO):
        def write(self, data):
            return super().write(data[:5])  # As on a disk with 5 bytes left.

    monkeypatch.setattr(metrics_log, "open", lambda path, *_, **__: Full(path, "a"), raising=False)
    with pytest.raises(OSError, match="No space left"):
        run.log(kind="step", step=2)
    assert (run.path / "metrics.jsonl").read_bytes() == before


def test_a_best_model_that_could_not_be_written_is_written_later(tmp_path, monkeypatch):
    """Not the weights of the moment when there is room again, but the best ones."""
    run = tmp_path / "run"
    losses = iter([1.0, 0.5, 2.0, 3.0])
    monkeypatch.setattr(
        "kerasdist.training.loop.metric_results", lambda engine: {"loss": next(losses, 9.0)}
    )
    save = folder.save_model
    attempts = []
    best = []

    def full(model, path):
        if BEST in path.name:
            attempts.append(path)
            if len(attempts) == 2:
                best.append(model.get_weights())
            if len(attempts) in (2, 3):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(model, path)

    monkeypatch.setattr(folder, "save_model", full)
    history = fit(run)
    assert len(attempts) == 4  # The first and the second epoch's, and that twice more.
    loaded = keras.models.load_model(run / "best.keras").get_weights()
    np.testing.assert_array_equal(loaded[0], best[0][0])
    assert np.abs(loaded[0] - history.model.get_weights()[0]).max() > 0


def test_a_diverged_run_says_so_also_on_a_full_disk(tmp_path, disk, capsys):
    x = X.copy()
    x[30] = 3e38  # Its square is infinite.
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = {"batch_size": 8, "shuffle": False, "run_dir": tmp_path / "run"}
    callbacks = [At({2: lambda: disk.fail(errno.ENOSPC)})]
    with pytest.raises(kerasdist.DivergedError):
        kerasdist.fit(model, (x, Y[:, None]), callbacks=callbacks, **options)
    assert "could not write nan.json: No space left" in capsys.readouterr().out
    before = disk.num_failures
    RunFolder(tmp_path / "run", {}, resume=True).stop("diverged", "x")
    assert disk.num_failures == before + 1  # It was tried, and is no error of its own.


DISKS = """
import contextlib, io, os, subprocess, sys
from pathlib import Path

disk, outside, tests = map(Path, sys.argv[1:])
def mount(*arguments):
    return subprocess.run(["mount", *arguments], capture_output=True).returncode
if mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)):
    sys.exit(77)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(tests))
import kerasdist
from kerasdist.runs.checkpoints import Store
from tests.runs.small_runs import At, assert_like, digest, fit, logged, saved, wait_until

def fill():
    with open(disk / "ballast", "ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(512)):
                pass
        os.fsync(file)

def free():
    (disk / "ballast").unlink()

def protect():
    assert mount("--bind", "-o", "ro", str(run), str(run)) == 0

def unprotect():
    assert subprocess.run(["umount", str(run)]).returncode == 0

def output_of(**options):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        fit(run, **options)
    return text.getvalue()

whole = outside / "whole"
fit(whole, progress=False)
for name, begin, end in (("full", fill, free), ("read-only", protect, unprotect)):
    run = disk / name
    out = output_of(callbacks=[At({5: lambda: (wait_until(saved(run, 4)), begin()), 12: end})])
    assert out.count("could not write") == 1, out
    assert out.count("works again") == 1, out
    assert_like(run, whole)
    assert logged(run) == logged(whole)

    run = disk / f"{name}-to-the-end"
    try:
        output_of(callbacks=[At({9: lambda: (wait_until(saved(run, 8)), begin())})])
    except kerasdist.KerasdistError as error:
        assert "end of the run could not be saved" in str(error), error
    else:
        raise SystemExit("the end was not saved and nobody said so")
    assert Store(run / "checkpoints").newest().step == 8
    end()
    assert "continuing after step 8" in output_of()
    assert_like(run, whole)
    assert logged(run) == logged(whole)
print("done")
"""
UNSHARED = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture
def own_mounts():
    if not shutil.which("unshare"):
        pytest.skip("needs `unshare`, to mount a small disk")
    if subprocess.run([*UNSHARED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces, to mount a small disk in")


def run_unshared(script, *arguments):
    done = subprocess.run(
        [*UNSHARED, sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("this machine does not let a small disk be mounted")
    return done


def test_a_disk_that_is_really_full_and_one_that_is_really_read_only(tmp_path, own_mounts):
    """2 MB in memory, mounted for one process; read-only by a second mount over the folder."""
    (tmp_path / "disk").mkdir()
    done = run_unshared(DISKS, tmp_path / "disk", tmp_path, Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")


def test_the_command_exits_with_1_and_the_same_command_goes_on(tmp_path, fit_command, disk):
    assert fit_command("whole")[0] == 0
    code, out, err = fit_command("run", actions={9: lambda: disk.fail(errno.ENOSPC)})
    assert code == 1
    assert "The end of the run could not be saved: [Errno 28] No space left on device" in err
    assert out.count("could not write") == 1
    assert f"step {STEPS}," in out
    disk.work()
    assert fit_command("run")[0] == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_the_command_exits_with_1_if_the_final_model_cannot_be_saved(
    tmp_path, fit_command, make_room
):
    code, _, err = fit_command("run")
    assert code == 1
    assert "Saving the trained model failed: [Errno 28] No space left on device" in err
    assert status(tmp_path / "run") == "failed"
    make_room()
    assert fit_command("run")[0] == 0
    assert digest(tmp_path / "run")
