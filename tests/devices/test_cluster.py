"""Who the workers are: TF_CONFIG and Slurm."""

import json
import re

import pytest

from kerasdist import KerasdistError
from kerasdist.devices import cluster
from kerasdist.devices.cluster import Cluster


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
        ("{", "is not JSON"),
        ("[1]", r"is \[1\]"),
        ('{"cluster": ["a:1"]}', "as its `cluster`"),
        (config(ps=["c:3"]), "the job 'ps'"),
        ('{"cluster": {"worker": "a:1,b:2"}}', "not a list of addresses"),
        (config(chief=["c:3", "d:4"]), "names 2 chiefs"),
        ('{"cluster": {"worker": ["a:1", "b:2"]}}', "None as its `task`"),
        (config(kind="chief"), "task type 'chief', which"),
        (config(index=2), "task index 2, but 2 of"),
        (config(index=True), "task index True, which is not a whole number"),
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
    ("hosts", "expected"),
    [(["127.0.0.1:1", "localhost:2"], True), (["127.0.0.1:1", "10.0.0.1:2"], False)],
)
def test_a_cluster_is_on_loopback_if_all_of_it_is(hosts, expected):
    assert Cluster(tuple(hosts), 0).is_on_loopback is expected


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
