"""Workers that are killed, stopped, cut off, or raise an error.

The slow tests start real workers and take minutes. docs/several-machines.md says what each shows.
"""

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

import pytest
import tensorflow as tf

from kerasdist.devices import failures
from kerasdist.devices.cluster import Cluster
from kerasdist.devices.ports import free_ports
from tests.devices.real_workers import (
    FIT,
    connects,
    environment,
    finish,
    kerasdist,
    result,
    trained,
    wait_for_steps,
    workers_of,
)

slow = pytest.mark.slow


@pytest.fixture
def others():
    """A cluster of three, of which this process is worker 1 and worker 2 listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ports = (free_ports(1)[0], 9, listening.getsockname()[1])
        yield Cluster(tuple(f"127.0.0.1:{port}" for port in ports), 1)


@pytest.mark.parametrize(
    ("kind", "text", "lost"),
    [
        (tf.errors.AbortedError, "kerasdist-worker 2: the disk is full\nmore", [2]),
        (tf.errors.UnavailableError, "Connection reset by peer", [0]),
        (tf.errors.InternalError, "heartbeat of /job:worker/replica:0/task:2 timed out", [0]),
        (tf.errors.InternalError, "CoordinationService is not there", [0]),
        (tf.errors.InternalError, "Collective ops is aborted", [0]),
        (tf.errors.InvalidArgumentError, "shapes do not match", None),
        (tf.errors.InternalError, "kerasdist-worker 1: this one's own", None),
    ],
)
def test_an_error_of_tensorflow_names_the_worker_that_caused_it(kind, text, lost, others):
    found = failures.find_lost_worker(others, kind(None, None, text))
    assert (found and list(found.workers)) == lost


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (tf.errors.ResourceExhaustedError, "OOM when allocating tensor with shape[9]", True),
        (tf.errors.InvalidArgumentError, "indices[0] = 7 is not in [0, 3)", True),
        (tf.errors.InternalError, "cuDNN launch failure on /job:worker/task:1/device:GPU:0", True),
        (tf.errors.UnknownError, "ValueError: the camera is off", True),
        (tf.errors.InternalError, "Collective ops is aborted by: something", False),
        (
            tf.errors.InternalError,
            "NCCL: remote process exited or there was a network error",
            False,
        ),
        (tf.errors.InvalidArgumentError, "from /job:worker/replica:0/task:2: shapes", False),
        (tf.errors.InternalError, "CoordinationService is not there", False),
        (tf.errors.InternalError, "kerasdist-worker 2: the disk is full", False),
        (tf.errors.AbortedError, "Stopping", False),
        (tf.errors.CancelledError, "RPC Request was cancelled", False),
        (tf.errors.UnavailableError, "Connection reset by peer", False),
        (tf.errors.DeadlineExceededError, "too late", False),
    ],
)
def test_an_error_is_of_a_workers_own_making_if_nothing_points_to_others(
    kind, text, expected, others
):
    assert failures.is_own(others, kind(None, None, text)) is expected


GRAPH_ERROR = """Graph execution error:

Detected at node while/Assert defined at (most recent call last):
  File "model.py", line 11, in call

assertion failed: [the camera is off] [47]
\t [[{{node while/Assert}}]] [Op:__inference__train_loop_1109]"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            tf.errors.InvalidArgumentError(None, None, GRAPH_ERROR),
            "assertion failed: [the camera is off] [47]",
        ),
        (tf.errors.InternalError(None, None, ""), "InternalError"),
        (ValueError("bad shape\nwith a long story"), "bad shape"),
    ],
)
def test_the_reason_of_an_error_is_one_line(error, expected):
    assert failures.reason(error) == expected


BROKEN = """
import json, os
import keras, numpy as np, tensorflow as tf
import kerasdist

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
x = np.arange(64, dtype="float32")[:, None]

class Camera(keras.layers.Layer):
    def call(self, x):
        if index == 1:  # It fails in the third step.
            with tf.control_dependencies([tf.debugging.Assert(x[0, 0] < 32, ["camera is off"])]):
                x = tf.identity(x)
        return x

def build():
    model = keras.Sequential([keras.Input((1,)), Camera(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

try:
    kerasdist.fit(build, (x, x), batch_size=16, shuffle=False, progress=False)
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0], flush=True)
os._exit(0)
"""


def test_a_workers_own_error_of_tensorflow_is_told_to_the_others():
    hosts = tuple(f"localhost:{port}" for port in free_ports(2))
    own = [
        subprocess.Popen(
            [sys.executable, "-c", BROKEN],
            env=environment(TF_CONFIG=Cluster(hosts, i).tf_config()),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    first, second = (finish(process, 120)[0] for process in own)
    told = f"worker 1 ({hosts[1]}) failed: assertion failed: [camera is off]"
    assert f"WorkerLostError {told}" in first
    assert "InvalidArgumentError Graph execution error:" in second


def test_a_stopped_worker_still_listens_and_is_named_by_the_error():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        hosts = (f"127.0.0.1:{listening.getsockname()[1]}", "127.0.0.1:9")
        error = tf.errors.UnavailableError(None, None, "/job:worker/task:0 is silent")
        found = failures.find_lost_worker(Cluster(hosts, 1), error)
        assert found.workers == (0,)
        assert f"no answer from worker 0 ({hosts[0]})" in str(found)
        error = tf.errors.CancelledError(None, None, "for another reason")
        assert failures.find_lost_worker(Cluster(hosts, 1), error) is None


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
    hosts = ",".join(f"localhost:{port}" for port in free_ports(2))
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
    assert "is not finite" in output
    assert result(run)["status"] == "diverged"
    assert (run / "nan.json").is_file()


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
