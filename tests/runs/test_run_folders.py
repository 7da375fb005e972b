"""The folder of a run while it trains: full, read-only, removed, replaced, with foreign files."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.cli import main
from kerasdist.runs import folder as runs
from kerasdist.runs import lock, ownership
from kerasdist.runs.checkpoints import Files, Store
from kerasdist.training.loop import Loop
from tests.faulty_files import contents

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(40, 4)).astype("float32")
Y = RANDOM.integers(0, 3, 40)
STEPS = 20  # 4 epochs of 5


def build():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


def fit(folder, **options):
    defaults = {
        "batch_size": 8,
        "epochs": 4,
        "save_every": 2,
        "log_every": 1,
        "deterministic": True,
        "seed": 0,
        "shards": 1,  # compiles sooner
        "progress": "auto",
    }
    return kerasdist.fit(build, (X, Y), run_dir=folder, **{**defaults, **options})


class At(keras.callbacks.Callback):
    """Does something after some steps."""

    def __init__(self, actions):
        super().__init__()
        self.actions = actions

    def on_train_batch_end(self, batch, logs=None):
        self.actions.get(int(self.model.optimizer.iterations), lambda: None)()


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def remove_tree(folder):
    """Also while somebody else removes files in it."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def saved(folder, step):
    """Whether a checkpoint is there, and what was to be removed after it is gone."""

    def is_saved():
        checkpoints = folder / "checkpoints"
        steps = Store(checkpoints).steps()
        return step in steps and len(steps) <= 2 and not list(checkpoints.glob("tmp-*"))

    return is_saved


def digest(folder):
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished"
    return result["weights_sha256"]


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = ("examples_per_second", "input_wait")
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fit(folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """The same, of one more epoch."""
    folder = tmp_path_factory.mktemp("longer") / "run"
    fit(folder, epochs=5, progress=False)
    return folder


def assert_like(folder, whole):
    assert digest(folder) == digest(whole)
    for name in ("best.keras", "final.keras"):
        weights = [keras.models.load_model(run / name).get_weights() for run in (folder, whole)]
        for a, b in zip(*weights, strict=True):
            np.testing.assert_array_equal(a, b)


class Disk:
    """Every way that a run writes fails while `number` is set."""

    def __init__(self, monkeypatch):
        self.number = None
        self.num_failures = 0
        for name in ("write", "mkdir"):
            call = staticmethod(self._guarded(getattr(Files, name)))
            monkeypatch.setattr(Files, name, call)
        monkeypatch.setattr(runs, "open", self._guarded(open), raising=False)
        for name in ("save_model", "write_json"):
            monkeypatch.setattr(runs, name, self._guarded(getattr(runs, name)))

    def _guarded(self, call):
        def guarded(*args, **options):
            if self.number is not None:
                self.num_failures += 1
                # With names that are never the same: it is one trouble all the same.
                name = f"file-{self.num_failures}"
                raise OSError(self.number, os.strerror(self.number), name)
            return call(*args, **options)

        return guarded

    def fail(self, number):
        self.number = number

    def work(self):
        self.number = None


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


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
    with pytest.raises(kerasdist.KerasdistError, match="saving the end of the run") as raised:
        fit(run, callbacks=[At(actions)])
    assert os.strerror(number) in str(raised.value)
    assert raised.value.during_run
    assert steps == [STEPS]
    assert capsys.readouterr().out.count("could not write") == 1
    assert contents(run / "checkpoints") == before
    assert not (run / "final.keras").exists()
    disk.work()
    fit(run)
    assert "continuing after step 8" in capsys.readouterr().out
    assert_like(run, whole)
    assert logged(run) == logged(whole)


@pytest.fixture
def make_room(monkeypatch):
    """There is no room for final.keras, of which half is written, until this is called."""
    save = runs.save_model

    def full(model, path):
        if runs.FINAL in path.name:
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(model, path)

    monkeypatch.setattr(runs, "save_model", full)
    return lambda: monkeypatch.setattr(runs, "save_model", save)


def test_a_final_model_that_cannot_be_saved_is_an_error(tmp_path, whole, make_room):
    run = tmp_path / "run"
    with pytest.raises(kerasdist.KerasdistError, match="saving the trained model") as raised:
        fit(run)
    assert raised.value.during_run
    assert not list(run.glob("*final.keras"))  # Nor half of it, which would take the room.
    assert runs.status(run) == "unfinished"
    make_room()
    fit(run)
    assert_like(run, whole)


def test_a_line_of_the_log_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = runs.RunFolder(tmp_path / "run", {})
    folder.log(kind="step", step=1)
    before = (folder.path / "metrics.jsonl").read_bytes()

    class Full(io.FileIO):
        def write(self, data):
            return super().write(data[:5])  # As on a disk with 5 bytes left.

    monkeypatch.setattr(runs, "open", lambda path, *_, **__: Full(path, "a"), raising=False)
    with pytest.raises(OSError, match="No space left"):
        folder.log(kind="step", step=2)
    assert (folder.path / "metrics.jsonl").read_bytes() == before


def test_a_best_model_that_could_not_be_written_is_written_later(tmp_path, monkeypatch):
    """Not the weights of the moment when there is room again, but the best ones."""
    run = tmp_path / "run"
    losses = iter([1.0, 0.5, 2.0, 3.0])
    monkeypatch.setattr(
        "kerasdist.training.loop.metric_results", lambda engine: {"loss": next(losses, 9.0)}
    )
    save = runs.save_model
    attempts = []
    best = []

    def full(model, path):
        if runs.BEST in path.name:
            attempts.append(path)
            if len(attempts) == 2:
                best.append(model.get_weights())
            if len(attempts) in (2, 3):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(model, path)

    monkeypatch.setattr(runs, "save_model", full)
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
    runs.RunFolder(tmp_path / "run", {}, resume=True).stop("diverged", "x")
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
from tests.runs.test_run_folders import At, assert_like, digest, fit, logged, saved, wait_until

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
        assert "saving the end of the run" in str(error), error
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
    done = run_unshared(DISKS, tmp_path / "disk", tmp_path, Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")


CONFIG = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    batch_size: int = 8
    epochs: int = 4
    huge: int = -1
"""
DATA = """
import numpy as np

def build_data(config, split):
    random = np.random.default_rng(split == "train")
    x = random.normal(size=(40, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    if split == "train" and config.huge >= 0:
        x[config.huge] = 3e38  # Its square is infinite.
    return {"x": x, "y": y}
"""
MODEL = '''
"""A regression."""
import keras
import kerasdist

class Tiny(kerasdist.Model):
    features = "x"
    targets = "y"

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.out(x)

    def defaults(self):
        return dict(optimizer=keras.optimizers.Adam(0.1), loss="mse")

def build_model(config):
    return Tiny()
'''


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Calls `kerasdist fit` of a small recipe; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    for name, content in (("config", CONFIG), ("data", DATA), ("model", MODEL)):
        (tmp_path / "tiny" / f"{name}.py").write_text(content)
    log = Loop._log

    def call(run, *more, actions=None):
        def log_and_act(loop, loss):
            log(loop, loss)
            (actions or {}).get(loop.step, lambda: None)()

        monkeypatch.setattr(Loop, "_log", log_and_act)
        capfd.readouterr()
        options = ("--save-every", "2", "--log-every", "1", "--deterministic", "--shards", "2")
        code = main.main(["fit", "tiny", "--run-dir", str(run), *options, *more])
        return code, *capfd.readouterr()

    return call


def test_the_command_exits_with_1_and_the_same_command_goes_on(tmp_path, command, disk):
    assert command("whole")[0] == 0
    code, out, err = command("run", actions={9: lambda: disk.fail(errno.ENOSPC)})
    assert code == 1
    assert "saving the end of the run: [Errno 28] No space left on device" in err
    assert out.count("could not write") == 1
    assert f"step {STEPS}," in out
    disk.work()
    assert command("run")[0] == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_the_command_exits_with_1_if_the_final_model_cannot_be_saved(tmp_path, command, make_room):
    code, _, err = command("run")
    assert code == 1
    assert "saving the trained model: [Errno 28] No space left on device" in err
    assert runs.status(tmp_path / "run") == "failed"
    make_room()
    assert command("run")[0] == 0
    assert digest(tmp_path / "run")


# Folders that are removed or replaced.


@pytest.mark.parametrize("parent_too", [False, True])
def test_a_removed_folder_is_made_again(tmp_path, whole, longer, capsys, parent_too):
    run = tmp_path / "runs" / "run"
    described = {}
    refused = []

    def remove():
        wait_until(saved(run, 6))
        described.update({name: (run / name).read_bytes() for name in ownership.DESCRIPTION})
        remove_tree(run.parent if parent_too else run)

    def intrude():
        """Another process must not be able to take the run."""
        wait_until(saved(run, 10))
        with pytest.raises(lock.RunLockedError):
            lock.RunLock(run).acquire()
        refused.append(run)

    history = fit(run, callbacks=[At({7: remove, 11: intrude})])
    assert len(history.epoch) == 4
    assert refused
    assert digest(run) == digest(whole)
    assert {name: (run / name).read_bytes() for name in ownership.DESCRIPTION} == described
    # What was in the folder is gone; what came after is there.
    assert [line["step"] for line in logged(run) if line["kind"] == "step"][-1] == STEPS
    assert keras.models.load_model(run / "best.keras").count_params()
    with lock.RunLock(run):
        pass  # Nobody holds it any more.
    fit(run, epochs=5)
    assert digest(run) == digest(longer)
    out = capsys.readouterr().out
    assert out.count(f"the run's folder {run} was gone and is made again") == 1
    assert "could not write" not in out


def test_if_the_best_model_is_lost_the_best_since_then_is_kept(tmp_path, monkeypatch):
    run = tmp_path / "run"
    losses = iter([0.1, 2.0, 1.0, 3.0])
    monkeypatch.setattr(
        "kerasdist.training.loop.metric_results", lambda engine: {"loss": next(losses)}
    )
    log = Loop._log
    weights = {}

    def log_and_remove(loop, loss):
        log(loop, loss)
        weights[loop.step] = loop._engine.model.get_weights()
        if loop.step == 7:
            wait_until(saved(run, 6))
            remove_tree(run)

    monkeypatch.setattr(Loop, "_log", log_and_remove)
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
        with pytest.raises(lock.RunLockedError):
            lock.RunLock(run).acquire()
        assert runs.is_run(run)
        intruded.append(1)

    intruded = []
    fit(run, callbacks=[At({7: lose, 11: intrude})])
    assert intruded


def test_a_run_that_another_process_has_taken_is_left_to_it(tmp_path, capsys):
    """The folder was removed, and somebody else began a run of the same name."""
    run = tmp_path / "run"
    other = lock.RunLock(run)
    theirs = {}

    def take():
        wait_until(saved(run, 6))
        remove_tree(run)
        runs.RunFolder(run, {"kerasdist": "theirs"})
        other.acquire()
        theirs.update(contents(run))

    with pytest.raises(kerasdist.KerasdistError, match="something else is there now"):
        fit(run, callbacks=[At({7: take})])
    assert contents(run) == theirs
    assert capsys.readouterr().out.count("could not write") == 1
    other.release()


def test_a_lock_that_another_process_has_taken_is_left_to_it(tmp_path):
    run = tmp_path / "run"
    other = lock.RunLock(run)
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
    runs.RunFolder.stop(_run_folder(run), "failed", "x")
    assert content() == seen[0]
    if kind == "folder":
        fit(moved)
        assert digest(moved) == digest(whole)


def _run_folder(path):
    """As the one of the run, which was made when the folder was there."""
    folder = runs.RunFolder.__new__(runs.RunFolder)
    folder.path, folder._dataset = path, "caller"
    return folder


def test_the_command_leaves_a_folder_alone_that_takes_the_place(tmp_path, command):
    run = tmp_path / "run"

    def replace():
        run.rename(tmp_path / "moved")
        run.mkdir()
        (run / "result.json").write_text("foreign")

    code, _, err = command("run", "--summary-every", "2", actions={9: replace})
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
    folder = ownership.OwnFolder(tmp_path / "run")
    folder.close()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        folder.ensure()
    assert not (tmp_path / "run").exists()


# Folders that are none of ours.


@pytest.mark.parametrize("kind", ["link", "dangling link", "foreign folder", "file"])
def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path, whole, command, kind):
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
        kind, "which is a link"
    )
    with pytest.raises(kerasdist.KerasdistError, match=f"`run_dir=.*{what}. Expected .*folder"):
        fit(run)
    code, out, err = command("run")
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
    with pytest.raises(kerasdist.KerasdistError, match=r"which is a link or a file. Expected"):
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
    assert "could not write a checkpoint: Received a checkpoint of step 12" in out, out
    assert {k: v for k, v in contents(foreign).items() if "step-0000" not in k} == before
    assert len(links) == 2
    assert all(path.is_symlink() for path in links)
    assert contents(elsewhere) == outside
    assert_like(run, whole)


# A step that is not finite.


def all_arrays(run):
    """Every array of every file and checkpoint of a run."""
    store = Store(run / "checkpoints")
    for step in store.steps():
        path = run / "checkpoints" / f"step-{step:08d}"
        only = path.parent.parent / "only" / "checkpoints"
        only.mkdir(parents=True)
        shutil.copytree(path, only / path.name)
        yield from Store(only).newest().arrays.items()
        shutil.rmtree(only.parent)
    for name in ("best.keras", "final.keras"):
        if (run / name).exists():
            yield from arrays_of_model(run / name)


def arrays_of_model(path):
    with zipfile.ZipFile(path) as archive:
        file = h5py.File(io.BytesIO(archive.read("model.weights.h5")))
    found = []
    file.visititems(lambda key, item: found.append((key, item)))
    return [(key, item[()]) for key, item in found if isinstance(item, h5py.Dataset)]


def where_huge(run):
    """The step and the replica of two that the huge example comes to, in the first epoch."""
    note = json.loads((run / "nan.json").read_text())
    place = note["examples"].index(25)
    return note["step"], 0 if place < len(note["examples"]) // 2 else 1


def test_not_finite_on_one_replica_of_two_stops_the_command_with_3(tmp_path, command):
    run = tmp_path / "run"
    code, _, err = command("run", "--huge", "25", "--devices", "2")
    assert code == 3
    note = json.loads((run / "nan.json").read_text())
    step, replica = where_huge(run)
    assert step > 2  # Else nothing was saved before.
    assert (note["step"], note["replica"]) == (step, replica)
    assert f"step {step}, loss inf" in err
    assert f"on replica {replica}" in err
    assert runs.status(run) == "diverged"
    assert Store(run / "checkpoints").newest().step == (step - 1) // 2 * 2
    arrays = list(all_arrays(run))
    assert len(arrays) > 5
    assert all(np.isfinite(array).all() for _, array in arrays)


def test_not_finite_on_one_replica_of_two_is_left_out_on_both(tmp_path, command):
    command("stopped", "--huge", "25", "--devices", "2")
    step, replica = where_huge(tmp_path / "stopped")
    code, out, _ = command("run", "--huge", "25", "--devices", "2", "--on-nan", "skip")
    assert code == 0
    assert replica in (0, 1)
    assert out.count("left out a step that is not finite") == 4  # once an epoch
    assert f"after step {step - 1}\n" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("finished", STEPS - 4)
    arrays = list(all_arrays(tmp_path / "run"))
    assert len(arrays) > 10
    assert all(np.isfinite(array).all() for _, array in arrays)
    assert command("one", "--huge", "25", "--on-nan", "skip", "--devices", "1")[0] == 0
    assert digest(tmp_path / "one") == digest(tmp_path / "run")
