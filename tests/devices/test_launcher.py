"""The launcher, with workers that are small scripts."""

import json
import re
import signal
import sys
import textwrap

import pytest

from kerasdist.devices import launcher
from kerasdist.devices.cluster import Cluster
from kerasdist.devices.ports import free_ports
from kerasdist.runs.lock import is_alive

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

    def run(lines, *options, arguments=(), recipe="cifar10"):
        script = WORKER + textwrap.dedent(lines)
        monkeypatch.setattr(launcher, "WORKER", [sys.executable, "-c", script, str(starts)])
        outcome = command("launch", "--workers", "2", *options, "fit", recipe, *arguments)
        begun = []
        for path in sorted(starts.iterdir()):
            start, index, pid = map(int, path.name.split("-"))
            assert not is_alive(pid)
            begun.append((start, index, path.read_text().removeprefix("fit ")))
        return outcome, begun

    return run


def test_workers_that_end_well_end_the_launcher(launched):
    outcome, begun = launched("", arguments=["--epochs", "3"])
    assert outcome.code == 0
    assert begun == [(0, 0, "cifar10 --epochs 3"), (0, 1, "cifar10 --epochs 3")]


def test_a_killed_worker_is_named_and_the_other_one_ended(launched, monkeypatch):
    monkeypatch.setattr(launcher, "_GRACE_SECONDS", 0.5)
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


SHOW_GPUS = """
open(f"{starts}/../gpus-{index}", "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
"""


@pytest.fixture
def gpus_of(launched, tmp_path, monkeypatch):
    """What CUDA_VISIBLE_DEVICES is in each of two local workers."""

    def run(visible, *arguments, recipe="cifar10"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        outcome, _ = launched(SHOW_GPUS, arguments=arguments, recipe=recipe)
        assert outcome.code == 0, outcome.err
        return [(tmp_path / f"gpus-{i}").read_text() for i in range(2)]

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--run-dir", "cpu_vs_gpu"),
        ("--run-dir=cpu",),
        ("--run_dir", "cpu"),
        ("--devices", "2"),
        ("--devices=GPU:0",),
    ],
)
def test_workers_divide_the_gpus(gpus_of, arguments):
    assert gpus_of("0,2,3,5", *arguments) == ["0,2", "3,5"]


@pytest.mark.parametrize(
    "arguments", [("--devices", "cpu:2"), ("--devices=cpu",), ("--devices", "/device:CPU:0")]
)
def test_workers_on_cpus_do_not_divide_the_gpus(gpus_of, arguments):
    assert gpus_of("0,2,3,5", *arguments) == ["0,2,3,5"] * 2


def test_the_devices_of_a_repeated_run_count(gpus_of, tmp_path):
    """`kerasdist launch fit RUN` trains again with the options of the run."""
    saved = {"recipe": "cifar10", "settings": {}, "options": {"devices": "cpu:2"}}
    run = tmp_path / "earlier"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(saved))
    assert gpus_of("0,1", recipe=run) == ["0,1"] * 2


def test_too_few_gpus_are_an_error_before_a_worker_starts(launched, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    outcome, begun = launched("")
    assert outcome.code == 2
    assert "Received 2 workers on a machine with 1 GPUs" in outcome.err
    assert "--devices cpu" in outcome.err
    assert not begun


@pytest.mark.parametrize("by", ["hosts", "TF_CONFIG"])
@pytest.mark.parametrize(("index", "expected"), [(0, "0,1"), (1, "2,3")])
def test_workers_that_are_launched_one_by_one_divide_the_gpus_of_their_host(
    command, tmp_path, monkeypatch, by, index, expected
):
    (tmp_path / "starts").mkdir()
    script = [sys.executable, "-c", WORKER + SHOW_GPUS, str(tmp_path / "starts")]
    monkeypatch.setattr(launcher, "WORKER", script)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launcher.gpu_shares, "machine_gpus", lambda: ["a", "b", "c", "d"])
    hosts = tuple(f"localhost:{port}" for port in free_ports(2))
    if by == "hosts":
        outcome = command("launch", "--hosts", ",".join(hosts), "--index", index, "fit", "cifar10")
    else:
        monkeypatch.setenv("TF_CONFIG", Cluster(hosts, index).tf_config())
        outcome = command("fit", "cifar10")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / f"gpus-{index}").read_text() == expected
