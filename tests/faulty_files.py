"""File systems for tests of checkpoints: they stop, fail or forget at a chosen call.

No TensorFlow here: processes that are to be killed import this. None of them waits for the disk,
which shows nothing that these tests could see; `ForgetfulFiles` checks that syncs are asked for.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from kerasdist.runs.checkpoints import Files

DEAD_PID = 2**22 + 1  # More than the largest process id of Linux.
CHANGING = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")


class Crash(BaseException):
    """The process is dead: no cleaning up."""


def stop_before(name, call, args):
    raise Crash


def stop_after(name, call, args):
    with contextlib.suppress(OSError):
        call(*args)
    raise Crash


def stop_midway(name, call, args):
    """Half of what is to be written; other calls cannot be cut in two."""
    if name == "write":
        call(args[0], args[1][: len(args[1]) // 2])
    raise Crash


def killed(act):
    """The same with a real SIGKILL."""

    def kill(name, call, args):
        try:
            act(name, call, args)
        except Crash:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def fail_with(number):
    def fail(name, call, args):
        raise OSError(number, os.strerror(number))

    return fail


class QuickFiles(Files):
    """The real ones, without the waiting."""

    fsync = staticmethod(lambda file: None)


class FaultyFiles(QuickFiles):
    """Counts the calls that can change the disk, and acts at number `at`, or at all from there."""

    def __init__(self, at=None, act=stop_before, onward=False):
        self.calls = []
        self.at = at
        self.onward = onward
        self.act = act
        self.crashed = False
        for name in CHANGING:
            setattr(self, name, self._watched(name))

    def _watched(self, name):
        real = getattr(QuickFiles, name)

        def call(*args):
            if self.crashed:
                raise Crash
            index = len(self.calls)
            self.calls.append(name)
            if self.at is None or index < self.at or (index > self.at and not self.onward):
                return self.do(name, real, args)
            try:
                return self.act(name, lambda *args: self.do(name, real, args), args)
            except Crash:
                self.crashed = True
                raise

        return call

    def do(self, name, real, args):
        return real(*args)

    @property
    def reached(self):
        return self.at is not None and len(self.calls) > self.at


class ForgetfulFiles(FaultyFiles):
    """After a loss of power, what was not synced is gone: bytes, and names in folders.

    What was removed stays removed, which is the worst for whoever relied on it.
    """

    def __init__(self, at=None, act=stop_before):
        super().__init__(at, act)
        self._unsynced = {}
        self._undo = []

    def do(self, name, real, args):
        result = real(*args)
        if name == "fsync":
            self._sync(os.fstat(args[0]).st_ino)
        elif name == "write":
            self._unsynced.setdefault(os.fstat(args[0]).st_ino, os.dup(args[0]))
        elif name == "open" and args[1] & os.O_CREAT:
            self._remember(os.unlink, args[0])
        elif name == "mkdir":
            self._remember(shutil.rmtree, args[0])
        elif name == "rename":
            self._remember(os.rename, args[1], args[0])
        return result

    def _remember(self, call, *paths):
        """How to undo a change of a folder's names. By descriptor: folders are renamed, too."""
        folder = os.open(Path(paths[0]).parent, os.O_RDONLY)
        inside = [f"/proc/self/fd/{folder}/{Path(path).name}" for path in paths]
        self._undo.append((folder, os.fstat(folder).st_ino, call, inside))

    def _sync(self, inode):
        if inode in self._unsynced:
            os.close(self._unsynced.pop(inode))
        for entry in [entry for entry in self._undo if entry[1] == inode]:
            os.close(entry[0])
            self._undo.remove(entry)

    def restart(self):
        """The process died and another one begins, on the same disk."""
        self.at, self.crashed = None, False

    def lose_power(self):
        for file in self._unsynced.values():
            os.ftruncate(file, 0)
            os.close(file)
        for folder, _, call, paths in reversed(self._undo):
            with contextlib.suppress(FileNotFoundError):  # It was removed since.
                call(*paths)
            os.close(folder)


def small_arrays(seed, num_floats=4_000):
    """About 100 KB as the tests of damage use it, by default less."""
    random = np.random.default_rng(seed)
    return {
        "dense/kernel": random.normal(size=(num_floats // 4, 4)).astype("float32"),
        "dense/bias": random.normal(size=(5,)).astype("float32"),
        "step": np.int64(seed),
        "mask": random.random(7) > 0.5,
    }


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        array = np.asarray(array)
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), name


def contents(folder):
    """Every file below, by its path, with its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names(folder):
    return sorted(os.listdir(folder))


def without_tensorflow():
    """The environment of processes that start in a moment, because nothing asks for devices."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KERASDIST_")}
    tests = Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent)])
    return environment


def run_script(script, *arguments, prefix=()):
    """Runs Python code in a process of its own."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", script, *map(str, arguments)],
        env=without_tensorflow(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
