"""Several workers: who they are, what each reads, the bits of one device, faults, and the launcher.

The quick tests start two workers three times. The rest (`-m slow`) kills, stops and cuts off real
workers, and trains the recipes: docs/several-machines.md says what each shows.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from kerasdist import KerasdistError, Sequences
from kerasdist.cli.commands import launch as launching
from kerasdist.data.feed import _part
from kerasdist.data.streams import open_stream
from kerasdist.devices import cluster, loopback, watchdog
from kerasdist.devices.cluster import Cluster
from kerasdist.devices.placement import Placement, Share
from kerasdist.engine.shards import Cut
from kerasdist.models.fields import Example
from kerasdist.runs.processes import is_alive
from tests import classifier_recipe

ROOT = Path(__file__).resolve().parents[2]
slow = pytest.mark.slow


# Who the workers are.


def config(hosts=("a:1", "b:2"), index=0, kind="worker", **more):
    task = {"type": kind, "index": index}
    return json.dumps({"cluster": {"worker": list(hosts), **more}, "task": task})


def test_tf_config_names_the_workers_and_this_one():
    found = cluster.from_tf_config(config(index=1))
    assert (found.hosts, found.index, found.is_chief) == (("a:1", "b:2"), 1, False)
    assert cluster.from_tf_config(found.tf_config()) == found


def test_a_chief_of_tf_config_comes_first():
    assert cluster.from_tf_config(config(kind="chief", chief=["c:3"])).index == 0
    found = cluster.from_tf_config(config(index=1, chief=["c:3"]))
    assert (found.hosts, found.index) == (("c:3", "a:1", "b:2"), 2)


@pytest.mark.parametrize("text", ["", "{}", config(["a:1"])])
def test_a_process_without_others_is_alone(text):
    assert cluster.current({"TF_CONFIG": text}) is None


def test_the_launcher_tells_its_timeout():
    environ = {"TF_CONFIG": config(), cluster.TIMEOUT: "7.5"}
    assert cluster.current(environ).timeout == 7.5
    assert cluster.current({"TF_CONFIG": config()}).timeout <= 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", r"is \[1\]"),
        ('{"cluster": ["a:1"]}', "as its `cluster`"),
        (config(ps=["c:3"]), "the job 'ps'"),
        ('{"cluster": {"worker": "a:1,b:2"}}', "not a list of addresses"),
        (config(chief=["c:3", "d:4"]), "names 2 chiefs"),
        ('{"cluster": {"worker": ["a:1", "b:2"]}}', "None as its `task`"),
        (config(kind="chief"), "task type 'chief', which"),
        (config(index=2), "task index 2, and 2 of"),
        (config(index=True), "task index True, which is no whole number"),
        (config(hosts=["a:1", "b"]), "the address 'b'"),
        (config(hosts=["a:1", "b:70000"]), "the address 'b:70000'"),
        (config(hosts=["a:1", "a:1"]), "the address 'a:1' twice"),
    ],
)
def test_a_malformed_tf_config_says_what_is_wrong(text, message, command, monkeypatch):
    with pytest.raises(KerasdistError, match=message):
        cluster.from_tf_config(text)
    monkeypatch.setenv("TF_CONFIG", text)
    outcome = command("fit", "cifar10")
    assert outcome.code == 2
    assert re.search(message, outcome.err)


def test_other_commands_do_not_wait_for_workers(command, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert command("devices").code == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fit", "cifar10"], "neither `--workers` nor `--hosts`"),
        (["--workers", "2"], "no command to launch"),
        (["--workers", "2", "evaluate", "runs/x"], "'evaluate' to launch"),
        (["--workers", "0", "fit", "cifar10"], "at least 1"),
        (["--worker", "2", "fit", "cifar10"], "Did you mean '--workers'"),
        (["--workers", "2", "--hosts", "a:1,b:1", "fit", "cifar10"], "`--workers` and `--hosts`"),
        (["--hosts", "a:1,b:1", "fit", "cifar10"], "without `--index`"),
        (["--index", "1", "fit", "cifar10"], "without `--hosts`"),
        (["--hosts", "a:1,b:1", "--index", "2", "fit", "cifar10"], "a number from 0 to 1"),
        (["--hosts", "a:1,b", "--index", "0", "fit", "cifar10"], "the address 'b'"),
        (["--workers", "2", "--worker-timeout", "1", "fit", "cifar10"], "at least 2"),
        (["--workers", "2", "fit", "cifar10", "--epoch", "2"], "Did you mean '--epochs'"),
        (["--workers", "2", "fit", "no/recipe"], "no/recipe"),
    ],
)
def test_a_mistake_is_told_once_and_starts_nothing(argv, message, command, monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launching, "WORKER", ["/nothing/is/started"])
    outcome = command("launch", *argv)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("kerasdist:") == 1


def test_a_port_that_is_taken_is_named(command):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = command(
            "launch", "--hosts", f"localhost:{port},b:1", "--index", "0", "fit", "cifar10"
        )
    assert outcome.code == 2
    assert "already in use" in outcome.err


@pytest.fixture
def slurm(monkeypatch):
    """What srun sets for the third of three tasks on two nodes."""
    values = {
        "SLURM_JOB_ID": "17",
        "SLURM_PROCID": "2",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "node[9-10]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_a_slurm_step_names_its_tasks(slurm):
    found = cluster.from_slurm()
    port = cluster._first_port("17")
    assert found.hosts == (f"node9:{port}", f"node9:{port + 1}", f"node10:{port}")
    assert found.index == 2
    assert cluster.in_slurm()


def test_one_slurm_task_is_alone(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert not cluster.in_slurm()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SLURM_STEP_NODELIST", "without SLURM_STEP_NODELIST"),
        ("SLURM_STEP_TASKS_PER_NODE", "TASKS"),
    ],
)
def test_a_slurm_step_without_its_variables_is_told(slurm, monkeypatch, name, message):
    monkeypatch.delenv(name)
    with pytest.raises(KerasdistError, match=message):
        cluster.from_slurm()


def test_jobs_on_one_node_have_different_ports():
    assert cluster._first_port("17") != cluster._first_port("18")
    assert all(1024 < cluster._first_port(str(job)) < 65000 for job in range(2000))


# What each worker reads.

SHARES = [(n, shards, workers) for n in (1, 2, 3, 5, 16) for shards, workers in ((4, 2), (12, 3))]


def shares(shards, workers):
    count = shards // workers
    return [Share(i * count, (i + 1) * count, shards) for i in range(workers)]


@pytest.mark.parametrize(("num_examples", "shards", "num_workers"), SHARES)
def test_a_part_has_the_rows_of_its_shards(num_examples, shards, num_workers):
    """Also those that an empty shard borrows: the cut of a part is the cut of the whole."""
    x = tf.range(num_examples)
    placement = Placement(("CPU:0",), None)
    whole = Cut(Example((x,), x, x, None), shards, placement, 0)
    seen = []
    for share in shares(shards, num_workers):
        (part, _), span = _part(share, (x, x), False)
        first, end = share.rows(num_examples)
        assert part.numpy().tolist() == list(range(first, end))
        cut = Cut(Example((part,), part, part, None), shards, placement, 0, span)
        for i in range(share.first, share.end):
            piece, expected = (each.shard(tf.constant(i)) for each in (cut, whole))
            rows = piece.example.x.numpy().tolist()
            assert int(piece.index) == i
            assert rows == expected.example.x.numpy().tolist()
            assert int(piece.num_examples) == int(expected.num_examples)
            assert int(piece.num_global) == num_examples
            seen += rows[: int(piece.num_examples)]
    assert seen == list(range(num_examples))


class Source:
    """Random access that remembers what was read."""

    def __init__(self, num_examples):
        self.read = []
        self._num_examples = num_examples

    def __len__(self):
        return self._num_examples

    def __getitem__(self, i):
        self.read.append(i)
        return np.float32(i), np.float32(i)


def batches(stream):
    found = [tf.nest.map_structure(np.asarray, batch) for batch in stream.open(0, 0)]
    stream.close()
    return found


@pytest.mark.parametrize("shuffle", [False, True])
def test_random_access_is_read_for_the_part_alone(shuffle):
    whole = batches(open_stream(Source(10), batch_size=4, shuffle=shuffle))
    for share in shares(4, 2):
        source = Source(10)
        stream = open_stream(source, batch_size=4, shuffle=shuffle)
        assert stream.take_share(share)
        parts = batches(stream)
        assert len(parts) == len(whole) == 3
        for (x, _), (all_x, _) in zip(parts, whole, strict=True):
            assert x.tolist() == all_x[slice(*share.rows(len(all_x)))].tolist()
        assert len(source.read) == sum(len(x) for x, _ in parts)


@pytest.mark.parametrize("shuffle", [False, True])
def test_sequences_of_a_part_are_as_long_as_the_batch(shuffle):
    clips = [np.full((1 + i % 5, 2), i, "float32") for i in range(10)]
    data = Sequences({"frames": clips, "label": np.arange(10)})
    whole = batches(open_stream(data, batch_size=4, shuffle=shuffle))
    for share in shares(4, 2):
        stream = open_stream(data, batch_size=4, shuffle=shuffle)
        assert stream.take_share(share)
        for part, batch in zip(batches(stream), whole, strict=True):
            rows = slice(*share.rows(len(batch["label"])))
            assert part["frames"].tolist() == batch["frames"][rows].tolist()


def test_a_stream_that_cannot_be_indexed_is_read_whole():
    stream = open_stream(tf.data.Dataset.range(10).batch(4))
    assert not stream.take_share(Share(0, 2, 4))
    assert len(batches(stream)[0]) == 4


# The port.


def test_only_this_machine_reaches_a_port_on_loopback():
    if not sys.platform.startswith("linux"):
        pytest.skip("the filter is Linux's")
    outside = own_address()
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("::", 0))
        server.listen()
        port = server.getsockname()[1]
        assert connects("127.0.0.1", port)
        assert outside is None or connects(outside, port)
        assert loopback.keep_to_loopback(port)
        assert connects("127.0.0.1", port)
        assert connects("::1", port)
        if outside is None:
            pytest.skip("this machine has no address but loopback")
        assert not connects(outside, port)


def own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing.
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if cluster.is_loopback(address) else address


def connects(host, port):
    try:
        socket.create_connection((host, port), 0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [(["127.0.0.1:1", "localhost:2"], True), (["127.0.0.1:1", "10.0.0.1:2"], False)],
)
def test_a_cluster_is_on_loopback_if_all_of_it_is(hosts, expected):
    assert Cluster(tuple(hosts), 0).is_on_loopback is expected


# The watchdog.


@contextmanager
def watched(**fields):
    """A process that sleeps, and its watchdog."""
    worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    fields = {
        "worker": worker.pid,
        "hosts": ["127.0.0.1:1", "127.0.0.1:9"],
        "index": 0,
        "timeout": 1.0,
        "told": None,
        "line": None,
        **fields,
    }
    passed = [fields["line"]] if fields["line"] is not None else []
    dog = subprocess.Popen(
        [sys.executable, "-S", watchdog.__file__, json.dumps(fields)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=passed,
    )
    try:
        yield worker, dog
    finally:
        for process in (worker, dog):
            process.kill()
            process.communicate()


def test_a_worker_that_nobody_joins_is_ended_with_the_missing_ones_named():
    with watched() as (worker, dog):
        began = time.monotonic()
        assert worker.wait(10) == -signal.SIGKILL
        assert time.monotonic() - began < 5
        assert b"no word from worker 1 (127.0.0.1:9) within 1 s" in dog.communicate()[1]


def test_a_worker_that_joined_is_left_alone_until_its_launcher_is_gone():
    line, end = os.pipe()
    with watched(line=line) as (worker, dog):
        dog.stdin.write(watchdog.JOINED)
        dog.stdin.flush()
        time.sleep(1.5)
        assert worker.poll() is None
        os.close(end)
        assert worker.wait(10) == -signal.SIGKILL
        dog.wait(10)
    os.close(line)


# The launcher, with workers that are small scripts.

WORKER = """
import json, os, signal, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
starts = sys.argv[1]
count = len(os.listdir(starts)) // 2
open(f"{starts}/{count}-{index}-{os.getpid()}", "w").write(" ".join(sys.argv[2:]))
def tell(**fields):
    os.write(int(os.environ["KERASDIST_REPORT"]), (json.dumps(fields) + "\\n").encode())
time.sleep(0.3)
"""


@pytest.fixture
def launched(command, tmp_path, monkeypatch):
    """Launches two workers of the lines given: the outcome, and `(start, index, arguments)`."""
    starts = tmp_path / "starts"
    starts.mkdir()

    def run(lines, *options, arguments=()):
        script = WORKER + textwrap.dedent(lines)
        monkeypatch.setattr(launching, "WORKER", [sys.executable, "-c", script, str(starts)])
        outcome = command("launch", "--workers", "2", *options, "fit", "cifar10", *arguments)
        begun = []
        for path in sorted(starts.iterdir()):
            start, index, pid = map(int, path.name.split("-"))
            assert not is_alive(pid)
            begun.append((start, index, path.read_text()))
        return outcome, begun

    return run


def test_workers_that_end_well_end_the_launcher(launched):
    outcome, begun = launched("", arguments=["--epochs", "3"])
    assert outcome.code == 0
    assert begun == [(0, 0, "cifar10 --epochs 3"), (0, 1, "cifar10 --epochs 3")]


def test_a_killed_worker_is_named_and_the_other_one_ended(launched, monkeypatch):
    monkeypatch.setattr(launching, "_GRACE_SECONDS", 0.5)
    outcome, begun = launched(
        "if index: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)", "--worker-timeout", "2"
    )
    assert outcome.code == 1
    assert re.search(r"worker 1 \(127.0.0.1:\d+\), process \d+, was killed by SIGKILL", outcome.err)
    assert len(begun) == 2


def test_a_worker_that_the_others_miss_is_ended_at_once(launched):
    outcome, _ = launched(
        """
        if index:
            signal.pause()
        tell(by=0, lost=[1], message="worker 1 does not answer")
        sys.exit(1)
        """
    )
    assert outcome.code == 1
    assert outcome.err == "kerasdist: worker 1 does not answer\n"


def test_what_a_quiet_worker_said_is_shown_if_nobody_else_did(launched):
    outcome, _ = launched("if index: sys.exit('the disk is full')")
    assert outcome.code == 1
    assert "worker 1" in outcome.err
    assert "the disk is full" in outcome.err


@pytest.mark.parametrize(("code", "restarts"), [(2, 0), (3, 0), (143, 0), (1, 2), (77, 2)])
def test_only_a_failure_is_tried_again(launched, code, restarts):
    outcome, begun = launched(f"sys.exit({code})", "--max-restarts", "2")
    assert outcome.code == code
    assert len(begun) == 2 * (1 + restarts)


def test_a_restart_goes_on_with_the_run_that_had_begun(launched):
    outcome, begun = launched(
        """
        if index == 0:
            tell(run="runs/cifar10/0007")
        sys.exit(0 if count else 1)
        """,
        "--max-restarts",
        "1",
        arguments=["--no-resume", "--run-dir", "x", "--seed", "3"],
    )
    assert outcome.code == 0
    assert "1 of 1" in outcome.err
    assert begun[0][2] == "cifar10 --no-resume --run-dir x --seed 3"
    assert begun[-1][2] == "cifar10 --seed 3 --run-dir runs/cifar10/0007"


def test_a_restart_of_a_run_that_had_not_begun_is_the_same_command(launched):
    _, begun = launched("sys.exit(1)", "--max-restarts", "1", arguments=["--no-resume"])
    assert {arguments for *_, arguments in begun} == {"cifar10 --no-resume"}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_reaches_every_worker_once(launched, tmp_path, number, code):
    lines = f"""
    def stop(received, frame):
        open("{tmp_path}/stopped-" + str(index), "a").write("x")
        time.sleep(0.3)
        os._exit({code})
    signal.signal({int(number)}, stop)
    if index == 0:
        time.sleep(0.3)
        os.kill(os.getppid(), {int(number)})
    time.sleep(60)
    """
    outcome, begun = launched(lines, "--max-restarts", "3")
    assert outcome.code == code
    assert len(begun) == 2
    assert [(tmp_path / f"stopped-{i}").read_text() for i in (0, 1)] == ["x", "x"]


def test_gpus_are_shared_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3,5")
    assert launching._gpu_shares(2, ["cifar10"]) == ["0,2", "3,5"]
    assert launching._gpu_shares(3, ["cifar10"]) == ["0", "2", "3"]
    assert launching._gpu_shares(2, ["cifar10", "--devices", "cpu"]) is None
    with pytest.raises(KerasdistError, match="with 4 GPUs"):
        launching._gpu_shares(5, ["cifar10"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert launching._gpu_shares(2, ["cifar10"]) is None


# Real workers.


@pytest.fixture
def recipe(tmp_path):
    return classifier_recipe.write(tmp_path / "small", model=classifier_recipe.BLOCKS)


FIT = ("--deterministic", "--shards", "4", "--save-every", "5")


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ("KERASDIST_LOGICAL_CPUS", "TF_CONFIG")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def kerasdist(*argv, **more):
    """A command in a process of its own, which has begun."""
    return subprocess.Popen(
        [sys.executable, "-m", "kerasdist", *map(str, argv)],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, seconds=240):
    """Its output and exit code; nothing that it started is left."""
    own = descendants(process.pid)
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    deadline = time.monotonic() + 10
    while (left := [pid for pid in own if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, output
    return output, process.returncode


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def workers_of(process, count=2):
    """The process ids of the workers of a launcher, by index."""
    found = {}
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for pid in descendants(process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            task = re.search(rb'TF_CONFIG=.*?"index": (\d+)', environ)
            if task and b"fit" in words:
                found[int(task[1])] = pid
        time.sleep(0.05)
    return found


def wait_for_steps(run, process, count=2, seconds=120):
    """Until so many lines of a run are logged."""
    deadline = time.monotonic() + seconds
    path = run / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if path.is_file() and len(path.read_text().splitlines()) >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"no step: {process.communicate(timeout=20)[0] if process.poll() else ''}")


def result(run):
    return json.loads((run / "result.json").read_text())


def trained(run):
    """The weights of a run, with what was logged of them, on one or several workers."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("examples_per_second", "input_wait")
    logged = [{k: v for k, v in line.items() if k not in clock} for line in lines]
    assert result(run)["status"] == "finished"
    return result(run)["weights_sha256"], logged


@pytest.fixture
def on_one_device(command, recipe):
    """Trains the recipe in this process: its weights and logs."""

    def train(run, *options):
        outcome = command("fit", recipe, *FIT, *options, "--devices", "cpu", "--run-dir", run)
        assert outcome.code == 0, outcome.err
        return trained(run)

    return train


def on_workers(num_workers, recipe, run, *options, launch=()):
    launcher = kerasdist(
        "launch", "--workers", num_workers, *launch, "fit", recipe, *options, "--run-dir", run
    )
    output, code = finish(launcher)
    assert code == 0, output
    return trained(run)


def test_two_workers_train_the_bits_of_one_device(recipe, on_one_device, tmp_path):
    """Dropout, BatchNorm, Adam, an average of the weights, validation, an uneven last batch."""
    options = ("--epochs", "2", "--ema", "0.9", "--summary-every", "3", "--log-every", "1")
    one = on_one_device(tmp_path / "one", *options)
    run = tmp_path / "two"
    two = on_workers(2, recipe, run, *FIT, *options)
    assert two == one
    assert result(run)["devices"] == ["worker 0 CPU:0", "worker 1 CPU:0"]
    assert {p.name for p in run.iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "small", "two"]


def test_sigterm_to_one_worker_saves_and_stops_all_and_one_device_goes_on(
    recipe, on_one_device, tmp_path
):
    options = (*FIT, "--epochs", "8", "--log-every", "1")
    whole = on_one_device(tmp_path / "whole", *options)
    run = tmp_path / "run"
    launcher = kerasdist("launch", "--workers", 2, "fit", recipe, *options, "--run-dir", run)
    wait_for_steps(run, launcher)
    os.kill(workers_of(launcher)[1], signal.SIGTERM)
    output, code = finish(launcher)
    assert code == 143, output
    assert "saved after step" in output
    assert result(run)["status"] == "interrupted"
    assert on_one_device(run, *options) == whole


# The rest takes minutes.


@slow
@pytest.mark.parametrize(
    ("num_workers", "shards", "devices"),
    [(2, 4, "1"), (2, 4, "2"), (3, 12, "1"), (3, 12, "2")],
)
@pytest.mark.parametrize("name", ["cifar10", "audio"])
def test_recipes_train_to_the_bits_of_one_device(name, num_workers, shards, devices, tmp_path):
    settings = {
        "cifar10": ("--preset", "tutorial", "--num-train", "96", "--num-validation", "40"),
        "audio": ("--steps", "4"),
    }[name]
    options = ("--source", "synthetic", "--batch-size", "48", *settings, "--epochs", "1")
    options += ("--deterministic", "--shards", str(shards))
    output, code = finish(kerasdist("fit", name, *options, "--run-dir", tmp_path / "one"), 900)
    assert code == 0, output
    run = tmp_path / "several"
    launcher = kerasdist(
        *("launch", "--workers", num_workers, "--worker-timeout", "120"),
        *("fit", name, *options, "--devices", devices, "--run-dir", run),
    )
    output, code = finish(launcher, 900)
    assert code == 0, output
    assert trained(run) == trained(tmp_path / "one")


@slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_stopped_worker_is_named_within_the_timeout(index, recipe, tmp_path):
    run = tmp_path / "run"
    launcher = kerasdist(
        *("launch", "--workers", 2, "--worker-timeout", "30"),
        *("fit", recipe, *FIT, "--epochs", "2000", "--log-every", "1", "--run-dir", run),
    )
    wait_for_steps(run, launcher, 20)  # All functions are compiled.
    own = workers_of(launcher)
    began = time.monotonic()
    os.kill(own[index], signal.SIGSTOP)
    assert any(f"no answer from worker {index} (" in line for line in launcher.stdout)
    assert time.monotonic() - began < 30
    assert finish(launcher)[1] == 1


@slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_never_starts_is_named(index, recipe, tmp_path):
    hosts = ",".join(f"localhost:{port}" for port in launching._free_ports(2))
    launcher = kerasdist(
        *("launch", "--hosts", hosts, "--index", 1 - index, "--worker-timeout", "10"),
        *("fit", recipe, "--run-dir", tmp_path / "run"),
    )
    output, code = finish(launcher)
    assert code == 1
    assert f"no word from worker {index} ({hosts.split(',')[index]}) within 10 s" in output


@slow
def test_an_error_of_one_worker_is_told_by_all(recipe, tmp_path):
    data = (recipe / "data.py").read_text() + textwrap.dedent(
        """

        def build_data(config, split, whole=build_data):
            import json, os

            index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            if index == 1:
                raise RuntimeError("the disk of this worker is broken")
            return whole(config, split)
        """
    )
    (recipe / "data.py").write_text(data)
    launcher = kerasdist(
        "launch", "--workers", 2, "fit", recipe, *FIT, "--run-dir", tmp_path / "run"
    )
    output, code = finish(launcher)
    assert code == 1
    assert re.search(r"worker 1 \(.*\) failed: .*the disk of this worker is broken", output)


@slow
def test_a_step_that_is_not_finite_ends_all_workers_and_names_the_replica(recipe, tmp_path):
    model = (recipe / "model.py").read_text()
    (recipe / "model.py").write_text(model.replace("Adam(0.01)", "SGD(1e30)"))
    run = tmp_path / "run"
    launcher = kerasdist("launch", "--workers", 2, "fit", recipe, *FIT, "--run-dir", run)
    output, code = finish(launcher)
    assert code == 3, output
    assert "a step that is not finite" in output
    assert result(run)["status"] == "diverged"
    assert (run / "nan.json").is_file()


@slow
def test_tf_config_by_hand_starts_a_run(recipe, on_one_device, tmp_path):
    """A chief with a folder that the other one does not write to, and no launcher."""
    one = on_one_device(tmp_path / "one", "--epochs", "2")
    hosts = [f"localhost:{port}" for port in launching._free_ports(2)]
    own = [
        kerasdist(
            *("fit", recipe, *FIT, "--epochs", "2", "--run-dir", tmp_path / f"run{i}"),
            TF_CONFIG=Cluster(tuple(hosts), i).tf_config(),
        )
        for i in range(2)
    ]
    outputs = [finish(process) for process in own]
    assert [code for _, code in outputs] == [0, 0], outputs
    assert trained(tmp_path / "run0") == one
    assert not (tmp_path / "run1").exists()


@slow
def test_twenty_kills_change_nothing(recipe, on_one_device, tmp_path):
    """Random workers at random moments, of runs that are started again until they end."""
    options = (*FIT, "--epochs", "40", "--log-every", "1")
    whole = on_one_device(tmp_path / "whole", *options)
    chance = random.Random(0)
    kills = 0
    while kills < 20:
        run = tmp_path / f"after-{kills}"
        launcher = kerasdist(
            *("launch", "--workers", 2, "--max-restarts", 100),
            *("fit", recipe, *options, "--run-dir", run),
        )
        before = None
        for _ in range(min(4, 20 - kills)):
            wait_for_steps(run, launcher)
            while (run / "metrics.jsonl").stat().st_mtime_ns == before:  # Until it goes on.
                time.sleep(0.05)
                assert launcher.poll() is None
            time.sleep(chance.uniform(0, 0.5))
            own = workers_of(launcher)
            if launcher.poll() is not None:
                break
            os.kill(own[chance.randrange(2)], signal.SIGKILL)
            kills += 1
            time.sleep(1)
            before = (run / "metrics.jsonl").stat().st_mtime_ns
        output, code = finish(launcher, 400)
        assert code == 0, output
        assert trained(run) == whole
        ports = set(re.findall(r"(?:127\.0\.0\.1|localhost):(\d+)", output))
        assert ports, output
        for port in ports:
            assert not connects("127.0.0.1", int(port))


@slow
def test_workers_in_network_namespaces_notice_a_cut_link(recipe, on_one_device, tmp_path):
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and `ip netns`")
    with namespaces() as (first, second):
        options = (*FIT, "--epochs", "12", "--log-every", "1")
        whole = on_one_device(tmp_path / "whole", *options)
        run = tmp_path / "run"

        def begin():
            return [
                kerasdist_in(
                    name,
                    *("launch", "--hosts", "10.77.0.1:2222,10.77.0.2:2222", "--index", i),
                    *("--worker-timeout", "20", "fit", recipe, *options, "--run-dir", run),
                )
                for i, name in enumerate((first, second))
            ]

        own = begin()
        wait_for_steps(run, own[0])
        subprocess.run(["ip", "-n", first, "link", "set", "kdv0", "down"], check=True)
        began = time.monotonic()
        outputs = [finish(process) for process in own]
        assert time.monotonic() - began < 25
        assert [code for _, code in outputs] == [1, 1], outputs
        assert "no answer from worker 1 (10.77.0.2:2222)" in outputs[0][0]
        assert "no answer from worker 0 (10.77.0.1:2222)" in outputs[1][0]
        subprocess.run(["ip", "-n", first, "link", "set", "kdv0", "up"], check=True)
        outputs = [finish(process) for process in begin()]
        assert [code for _, code in outputs] == [0, 0], outputs
        assert trained(run) == whole


@contextmanager
def namespaces():
    """Two network namespaces with an address each, and a link between them."""
    names = (f"kd{os.getpid()}a", f"kd{os.getpid()}b")
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        link = ["ip", "link", "add", "kdv0", "netns", names[0], "type", "veth"]
        subprocess.run([*link, "peer", "name", "kdv1", "netns", names[1]], check=True)
        for i, name in enumerate(names):
            address = f"10.77.0.{i + 1}/24"
            subprocess.run(["ip", "-n", name, "addr", "add", address, "dev", f"kdv{i}"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", f"kdv{i}", "up"], check=True)
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot make network namespaces here: {error}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def kerasdist_in(namespace, *argv):
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-m", "kerasdist", *map(str, argv)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@slow
def test_a_slurm_job_starts_a_run(recipe, on_one_device, tmp_path):
    """One node and two tasks, on a Slurm of its own."""
    with slurm_on_loopback(tmp_path / "slurm") as environ:
        one = on_one_device(tmp_path / "one", "--epochs", "2")
        run = tmp_path / "run"
        job = subprocess.run(
            [
                *("srun", "--ntasks", "2", "--overcommit"),
                *(sys.executable, "-m", "kerasdist", "launch"),
                *("fit", str(recipe), *FIT, "--epochs", "2", "--run-dir", str(run)),
            ],
            env=environment(**environ),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        assert trained(run) == one
        assert result(run)["devices"] == ["worker 0 CPU:0", "worker 1 CPU:0"]


def program(name):
    found = shutil.which(name) or shutil.which(f"{name}-wlm")  # Debian's, without its alternatives
    if found is None:
        pytest.skip(f"Slurm and munge are not installed: there is no {name}")
    return found


@contextmanager
def slurm_on_loopback(folder):
    """Munge, a controller and one node, all on this machine: what `srun` needs in its environment.

    The packages slurmctld, slurmd, slurm-client and munge must be there; nothing runs before.
    """
    if os.geteuid():
        pytest.skip("needs root: Slurm's daemons start jobs as their users")
    munged, controller, node = (program(name) for name in ("munged", "slurmctld", "slurmd"))
    program("srun")
    folder.mkdir()
    socket_path = f"/tmp/kerasdist-munge-{os.getpid()}"  # A long path would not fit a socket.
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    plugins = next((Path(controller).parents[1] / "lib").glob("*/slurm-wlm"), None)
    ports = launching._free_ports(2)
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
        "SlurmUser": "root",
        "SlurmctldPort": ports[0],
        "SlurmdPort": ports[1],
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={socket_path}",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/linear",
        "SchedulerType": "sched/builtin",
        "ReturnToService": 2,
        "NodeName": f"localhost NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 CPUs=2",
        "PartitionName": "main Nodes=localhost Default=YES State=UP",
        **({"PluginDir": plugins} if plugins is not None else {}),
    }
    (folder / "slurm.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    environ = {"SLURM_CONF": str(folder / "slurm.conf")}
    keeper = [munged, "-F", "-f", "--key-file", str(key), "--socket", socket_path]
    keeper += [f"--{name}-file={folder / name}" for name in ("log", "pid", "seed")]
    step = shutil.which("slurmstepd") or shutil.which("slurmstepd-wlm")
    own = []
    try:
        for words in (keeper, [controller, "-D"], [node, "-D", *(("-d", step) if step else ())]):
            log = (folder / f"{Path(words[0]).name}.log").open("w")
            own.append(
                subprocess.Popen(words, env={**os.environ, **environ}, stdout=log, stderr=log)
            )
            log.close()
            time.sleep(1)
        words = ["srun", "--immediate=20", "true"]
        tried = subprocess.run(
            words, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
        )
        if tried.returncode:
            logs = "".join(path.read_text()[-600:] for path in folder.glob("*.log"))
            pytest.skip(f"Slurm does not start here: {tried.stderr}{logs}")
        yield environ
    finally:
        for process in reversed(own):
            process.terminate()
            process.wait(20)


PROGRAM = """
import hashlib, json, os, random, sys
import keras, numpy as np, tensorflow as tf
import kerasdist

index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
random.seed(index)  # Seeds of trainings are the chief's.
numbers = np.random.default_rng(0)
x, y = numbers.normal(size=(42, 6)).astype("float32"), numbers.integers(0, 3, 42)
options = dict(batch_size=16, epochs=3, shards=4, deterministic=True, progress=False)

class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))
    def result(self):
        return self.value

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and index == stopper:
            self.model.stop_training = True

stopper = 1 if "TF_CONFIG" in os.environ else 0

def build(metrics=("accuracy",)):
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=list(metrics))
    return model

def noise(batch, seed):
    x, y = batch
    return x + tf.random.stateless_normal(tf.shape(x), seed), y

def show(name, history):
    weights = b"".join(w.tobytes() for w in history.model.get_weights())
    print(name, hashlib.sha256(weights).hexdigest()[:12], history.history, flush=True)

stream = tf.data.Dataset.from_tensor_slices
show("augment", kerasdist.fit(build, (x, y), augment=noise, class_weight={0: 2.0}, **options))
show("stream", kerasdist.fit(build, stream((x, y)), validation_data=(x, y), **options))
show("gather", kerasdist.fit(lambda: build([Largest()]), (x, y), **options))
history = kerasdist.fit(build, (x, y), callbacks=[Stop()], **options)
show("stopped", history)
assert len(history.epoch) == 2
model = history.model
outputs = kerasdist.predict(model, x, batch_size=5)
np.testing.assert_allclose(outputs, model(x).numpy(), rtol=1e-4, atol=1e-5)
results = kerasdist.evaluate(model, (x, y), batch_size=9)
print("evaluated", {k: round(v, 4) for k, v in results.items()}, outputs.shape)
"""


@slow
def test_a_program_of_ones_own_trains_streams_and_stops_on_all_workers(tmp_path):
    """Also augmentation, class weights, a metric that does not add up, predict and evaluate."""
    hosts = tuple(f"localhost:{port}" for port in launching._free_ports(2))
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(**environ):
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")],
            env=environment(TF_CPP_MIN_LOG_LEVEL="3", **environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines(process):
        output, code = finish(process)
        assert code == 0, output
        names = ("augment", "stream", "gather", "stopped", "evaluated")
        return [line for line in output.splitlines() if line.startswith(names)]

    own = [start(TF_CONFIG=Cluster(hosts, i).tf_config()) for i in range(2)]
    first, second = (lines(process) for process in own)
    assert len(first) == 5
    assert first == second == lines(start())
