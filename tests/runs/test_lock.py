"""The lock of a run: two processes are kept apart, dead ones are not waited for."""

import doctest
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from kerasdist import KerasdistError
from kerasdist.runs import lock as lock_module
from kerasdist.runs.lock import RunLock, RunLockedError, is_alive, is_locked
from tests.faulty_files import DEAD_PID, run_script, without_tensorflow

HOLD = """
import sys, time
from kerasdist.runs.lock import RunLock
lock = RunLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=without_tensorflow(),
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def no_flock(monkeypatch):
    """A file system that has none."""

    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(lock_module, "_SETTLE_SECONDS", 0.05)


def write_lock(folder, **content):
    fields = {"host": socket.gethostname(), "pid": DEAD_PID, "started": "2026-01-01", **content}
    (folder / "lock").write_text(json.dumps(fields) + "\n")


def test_the_file_says_who_holds_the_lock(tmp_path):
    with RunLock(tmp_path) as lock:
        assert lock.held
        content = json.loads((tmp_path / "lock").read_text())
        assert (content["host"], content["pid"]) == (socket.gethostname(), os.getpid())
        assert content["started"].startswith("20")
    assert not lock.held
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_second_process_is_refused_with_host_and_process_id(tmp_path, holder):
    before = (tmp_path / "lock").read_bytes()
    with pytest.raises(RunLockedError) as caught:
        RunLock(tmp_path).acquire()
    assert (caught.value.host, caught.value.pid) == (socket.gethostname(), holder.pid)
    assert str(caught.value) == (
        f"The run {str(tmp_path)!r} is in use by process {holder.pid} on host "
        f"{socket.gethostname()!r}. Expected a run that no other process uses. Wait until that "
        "process ends, stop it, or choose another run."
    )
    assert (tmp_path / "lock").read_bytes() == before


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == holder.pid
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_the_lock_of_a_process_that_ended_is_taken_over(tmp_path, holder):
    holder.communicate()
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"host": "another-host", "pid": 1},
        {"pid": os.getpid()},
        {"pid": "text"},
        {"host": None, "pid": -1},
    ],
)
def test_a_file_whose_lock_is_free_is_taken_over(tmp_path, content):
    write_lock(tmp_path, **content)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"\0" * 90, b'{"host": "a', b'{"host": "a"}\n'])
def test_a_file_after_a_loss_of_power_is_taken_over(tmp_path, content):
    (tmp_path / "lock").write_bytes(content)
    with RunLock(tmp_path):
        pass


def test_one_process_does_not_take_it_twice(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.acquire()
    with pytest.raises(RunLockedError, match=f"process {os.getpid()} on host"):
        RunLock(tmp_path).acquire()
    lock.release()
    lock.release()
    with RunLock(tmp_path):
        pass


def test_a_holder_that_has_not_written_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "_PATIENCE_SECONDS", 0.1)
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunLockedError, match=r"in use by another process. Expected"):
            RunLock(tmp_path).acquire()


def test_a_holder_that_is_writing_its_name_is_waited_for(tmp_path, holder):
    content = (tmp_path / "lock").read_bytes()
    write_lock(tmp_path)  # A dead process's name, which the holder is about to replace.
    timer = threading.Timer(0.1, (tmp_path / "lock").write_bytes, [content])
    timer.start()
    with pytest.raises(RunLockedError, match=f"process {holder.pid} "):
        RunLock(tmp_path).acquire()
    timer.join()


def test_a_file_removed_while_it_is_being_locked(tmp_path, monkeypatch):
    real = fcntl.flock
    calls = []

    def flock(file, operation):
        if not calls:
            os.unlink(tmp_path / "lock")
        calls.append(file)
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunLock(tmp_path), pytest.raises(RunLockedError):
        RunLock(tmp_path).acquire()


RACE = """
import os, sys, time
from kerasdist.runs.lock import RunLock, RunLockedError
for turn in range(int(sys.argv[2])):
    begin = time.time() + 0.05
    children = []
    reader, writer = os.pipe()
    for _ in range(6):
        child = os.fork()
        if not child:
            os.close(writer)
            while time.time() < begin:
                pass
            try:
                RunLock(sys.argv[1]).acquire()
            except RunLockedError as error:
                os._exit(2 if error.pid in (None, os.getpid()) else 1)
            os.read(reader, 1)  # Holds it until all have tried.
            os._exit(0)
        children.append(child)
    os.close(reader)
    ended = []
    while len(ended) < 5:
        ended.append(os.waitstatus_to_exitcode(os.wait()[1]))
    os.close(writer)
    ended.append(os.waitstatus_to_exitcode(os.wait()[1]))
    assert ended == [1, 1, 1, 1, 1, 0], ended
"""


def test_of_racing_processes_one_wins(tmp_path):
    done = run_script(RACE, tmp_path, 10)
    assert done.returncode == 0, done.stderr


def race_of_threads(folder):
    """How many of eight threads took the lock."""
    barrier = threading.Barrier(8)
    winners, refused = [], []

    def race():
        lock = RunLock(folder)
        barrier.wait()
        try:
            lock.acquire()
        except RunLockedError:
            refused.append(lock)
        else:
            winners.append(lock)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) + len(refused) == 8
    for lock in winners:
        lock.release()
    return len(winners)


def test_of_racing_threads_one_wins(tmp_path):
    assert [race_of_threads(tmp_path) for _ in range(10)] == [1] * 10


FORK = """
import os, sys, time
from kerasdist.runs.lock import RunLock
lock = RunLock(sys.argv[1])
lock.acquire()
child = os.fork()
if not child:
    assert not lock.held
    lock.release()
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_forked_child_does_not_hold_the_lock(tmp_path):
    """As the workers of a data set, which may outlive a training that is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORK, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=without_tensorflow(),
    )
    child = int(process.stdout.readline())
    try:
        with pytest.raises(RunLockedError, match=f"process {process.pid} "):
            RunLock(tmp_path).acquire()
        process.kill()
        process.wait()
        assert is_alive(child)
        with RunLock(tmp_path):
            pass
    finally:
        process.kill()
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_a_foreign_file_stays_as_it_is(tmp_path):
    (tmp_path / "lock").write_text("the combination is 1234")
    with pytest.raises(KerasdistError, match=r"'lock' that kerasdist did not write. Expected"):
        RunLock(tmp_path).acquire()
    assert (tmp_path / "lock").read_text() == "the combination is 1234"


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(KerasdistError, match="cannot be used: Too many levels of symbolic links"):
        RunLock(tmp_path).acquire()
    assert not (tmp_path / "target").exists()


def test_a_folder_that_is_not_there(tmp_path):
    lock = RunLock(tmp_path / "missing")
    with pytest.raises(KerasdistError, match=r"used: No such file or directory. Expected"):
        lock.acquire()
    assert not lock.held


def test_a_folder_with_the_name_of_the_lock(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(KerasdistError, match="cannot be used: Is a directory"):
        RunLock(tmp_path).acquire()


def test_a_full_disk_does_not_prevent_the_lock(tmp_path, monkeypatch):
    def pwrite(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(lock_module, "_PATIENCE_SECONDS", 0.1)
    with RunLock(tmp_path), pytest.raises(RunLockedError, match="in use by another process"):
        RunLock(tmp_path).acquire()


def test_without_flock_a_living_holder_is_respected(tmp_path, holder, no_flock):
    with pytest.raises(RunLockedError, match=f"process {holder.pid} on host .* has already ended"):
        RunLock(tmp_path).acquire()
    holder.send_signal(signal.SIGKILL)
    # It stays a zombie until somebody waits for it, as in containers without an init process.
    for _ in range(500):
        if not is_alive(holder.pid):
            break
        time.sleep(0.01)
    with RunLock(tmp_path), pytest.raises(RunLockedError, match=f"process {os.getpid()} on host"):
        RunLock(tmp_path).acquire()
    assert (tmp_path / "lock").read_bytes() == b""


def test_without_flock_a_holder_on_another_host_is_respected(tmp_path, no_flock):
    write_lock(tmp_path, host="another-host")
    with pytest.raises(RunLockedError, match=r"on host 'another-host'.* remove '.*lock'"):
        RunLock(tmp_path).acquire()


@pytest.mark.parametrize("content", [{}, {"pid": os.getpid()}, {"pid": 0}, {"pid": 10**30}])
def test_without_flock_a_dead_holder_is_replaced(tmp_path, no_flock, content):
    write_lock(tmp_path, **content)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_without_flock_one_of_racing_threads_wins(tmp_path, no_flock, monkeypatch):
    monkeypatch.setattr(lock_module, "_SETTLE_SECONDS", 0.3)
    assert [race_of_threads(tmp_path) for _ in range(3)] == [1] * 3


def test_without_flock_only_the_own_content_is_emptied(tmp_path, no_flock):
    lock = RunLock(tmp_path)
    lock.acquire()
    write_lock(tmp_path, host="another-host")
    lock.release()
    assert "another-host" in (tmp_path / "lock").read_text()


def test_without_flock_a_full_disk_is_an_error(tmp_path, no_flock, monkeypatch):
    def pwrite(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(KerasdistError, match="cannot be used: No space left on device"):
        RunLock(tmp_path).acquire()


def test_other_failures_of_flock_are_errors(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(KerasdistError, match="cannot be used: Input/output error"):
        RunLock(tmp_path).acquire()


def test_living_and_dead_processes():
    assert is_alive(os.getpid())
    assert is_alive(1)
    assert not any(is_alive(pid) for pid in (0, -1, DEAD_PID, 10**30))
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    with process.stdout:
        process.stdout.read()
    for _ in range(500):
        if not is_alive(process.pid):
            break
        time.sleep(0.01)
    assert not is_alive(process.pid)
    assert process.wait() == 0
    process.stdout.close()
    assert not is_alive(process.pid)


def test_the_example_runs():
    result = doctest.testmod(lock_module)
    assert result.attempted
    assert not result.failed


def test_is_locked_asks_without_changing_anything(tmp_path):
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with RunLock(tmp_path):
        before = (tmp_path / "lock").read_bytes()
        assert is_locked(tmp_path)
        assert (tmp_path / "lock").read_bytes() == before
    assert not is_locked(tmp_path)


def test_without_flock_is_locked_reads_who_holds_the_run(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(lock_module, "_SETTLE_SECONDS", 0.0)
    with RunLock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    for host, pid, expected in (
        (socket.gethostname(), 2**22 + 1, False),
        ("another-host", 1, True),  # It cannot be asked, so it counts as alive.
    ):
        (tmp_path / "lock").write_text(json.dumps({"host": host, "pid": pid}))
        assert is_locked(tmp_path) is expected
    (tmp_path / "lock").write_text("nonsense")
    assert not is_locked(tmp_path)
