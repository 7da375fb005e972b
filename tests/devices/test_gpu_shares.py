"""Which GPUs each worker of a machine gets, without a GPU."""

import pytest

from kerasdist import KerasdistError
from kerasdist.devices import gpu_shares
from kerasdist.devices.cluster import Cluster

FOUR = [f"0000:0{i}:00.0" for i in range(4)]
HOSTS = ("a:1", "b:1", "a:2", "b:2")


def shares(hosts, devices="auto", machine=FOUR, **environ):
    """What each worker gets, if each is started by itself."""
    return [
        gpu_shares.share_of_launched(Cluster(hosts, i), devices, environ, machine)
        for i in range(len(hosts))
    ]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("cpu", True),
        ("cpu:2", True),
        ("/CPU:0", True),
        ("/device:CPU:0,CPU:1", True),
        (["CPU:0"], True),
        ("auto", False),
        ("2", False),
        (2, False),
        (None, False),
        ("GPU:0", False),
        ("0,1", False),
        ([], False),
    ],
)
def test_devices_that_name_cpus(devices, expected):
    assert gpu_shares.names_cpus(devices) is expected


def test_the_driver_lists_the_gpus_of_the_machine(tmp_path):
    assert gpu_shares.machine_gpus(tmp_path / "missing") == []
    for name in reversed(FOUR):
        (tmp_path / name).mkdir()
    assert gpu_shares.machine_gpus(tmp_path) == FOUR


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles"])
def test_cuda_and_slurm_can_hide_all_gpus(text):
    assert gpu_shares.visible_gpus({"CUDA_VISIBLE_DEVICES": text}, FOUR) == []
    assert shares(("a:1", "a:2"), CUDA_VISIBLE_DEVICES=text) == [None, None]


def test_workers_of_one_host_divide_its_gpus_in_their_order():
    assert shares(HOSTS) == [["0", "1"], ["0", "1"], ["2", "3"], ["2", "3"]]
    assert shares(("a:1", "a:2", "a:3")) == [["0"], ["1"], ["2"]]
    assert shares(("127.0.0.1:1", "127.0.0.1:2"))[1] == ["2", "3"]
    assert shares(("[::1]:1", "[::1]:2"))[1] == ["2", "3"]


def test_one_worker_per_host_keeps_all_gpus():
    assert shares(("a:1", "b:1")) == [None, None]


def test_workers_on_cpus_or_without_gpus_keep_what_they_see():
    assert shares(("a:1", "a:2"), "cpu:2") == [None, None]
    assert shares(("a:1", "a:2"), machine=[]) == [None, None]


def test_too_few_gpus_for_the_workers_of_a_host_are_an_error():
    with pytest.raises(KerasdistError, match=r"2 workers .* with 1 GPUs \(a\).*--devices cpu"):
        shares(("a:1", "a:2"), machine=FOUR[:1])


def test_gpus_that_somebody_chose_may_be_for_one_worker():
    """Only if they are all GPUs of the machine, they are for all of its workers."""
    assert shares(("a:1", "a:2"), CUDA_VISIBLE_DEVICES="2,3") == [None, None]
    assert shares(("a:1", "a:2"), CUDA_VISIBLE_DEVICES="2,3", machine=[]) == [None, None]
    assert shares(("a:1", "a:2"), CUDA_VISIBLE_DEVICES="0", machine=FOUR[:1]) == [None, None]
    all_of_them = shares(("a:1", "a:2"), CUDA_VISIBLE_DEVICES="3,2,1,0")
    assert all_of_them == [["3", "2"], ["1", "0"]]


def slurm(task, **more):
    """The GPUs of a task of four, two on each of two nodes. `more` is what Slurm says of GPUs."""
    environ = {
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task % 2),
        "SLURM_STEP_NUM_TASKS": "4",
        **more,
    }
    cluster = Cluster(("n1:1", "n1:2", "n2:1", "n2:2"), task)
    return gpu_shares.share_of_launched(cluster, "auto", environ, FOUR)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_GPUS": "0,1,2,3"},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_GPUS": "4-7"},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_GPUS_ON_NODE": "4"},
        {
            "CUDA_VISIBLE_DEVICES": "0,1,2,3",
            "SLURM_GPUS_PER_TASK": "2",
            "SLURM_GPU_BIND": "verbose,none",
        },
    ],
)
def test_slurm_tasks_that_see_the_same_gpus_divide_them(said):
    assert [slurm(task, **said) for task in range(4)] == [["0", "1"], ["2", "3"]] * 2


def test_slurm_tasks_divide_the_gpus_of_their_step_only():
    said = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "2,3"}
    assert [slurm(task, **said) for task in range(2)] == [["0"], ["1"]]
    with pytest.raises(KerasdistError, match=r"2 workers .* with 1 GPUs"):
        slurm(0, CUDA_VISIBLE_DEVICES="0", SLURM_STEP_GPUS="2")


@pytest.mark.parametrize(
    "said",
    [
        {"SLURM_GPUS_PER_TASK": "2"},
        {"SLURM_TRES_PER_TASK": "cpu:4,gres/gpu:2"},
        {"SLURM_GPU_BIND": "map_gpu:0,1"},
        {"SLURM_NTASKS_PER_GPU": "1"},
        {"SLURM_STEP_GPUS": "0,1,2,3"},
        {"SLURM_STEP_GPUS": "4-7"},
        {"SLURM_GPUS_ON_NODE": "4"},
    ],
)
def test_a_slurm_task_keeps_the_gpus_that_it_is_bound_to(said):
    assert slurm(1, CUDA_VISIBLE_DEVICES="2,3", **said) is None


def test_the_local_number_of_a_slurm_task_decides():
    """Not the order of hosts: tasks may be dealt out to nodes in turns."""
    environ = {"SLURM_PROCID": "2", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    cluster = Cluster(("n1:1", "n1:2", "n2:1", "n2:2"), 2)
    assert gpu_shares.share_of_launched(cluster, "auto", environ, FOUR) == ["2", "3"]


def refuse(first, second, hosts=("a:1", "a:2"), machines=(FOUR, FOUR), indices=(0,)):
    """Two workers with these environments compare the GPUs that they use."""
    found = [
        gpu_shares.keys(Cluster(hosts, i), indices, environ, machine)
        for i, (environ, machine) in enumerate(zip((first, second), machines, strict=True))
    ]
    gpu_shares.refuse_shared(Cluster(hosts, 0), found)


def test_a_gpu_that_two_workers_use_is_an_error():
    both = {"CUDA_VISIBLE_DEVICES": "2,3"}
    message = r"same GPU in worker 0 \(a:1\) and worker 1 \(a:2\).*different.*CUDA_VISIBLE_DEVICES"
    with pytest.raises(KerasdistError, match=message):
        refuse(both, both)
    with pytest.raises(KerasdistError, match="the same GPU"):
        refuse({"CUDA_VISIBLE_DEVICES": "0"}, {})


def test_different_gpus_hosts_and_containers_are_accepted():
    one, other = ({"CUDA_VISIBLE_DEVICES": text} for text in ("0,1", "2,3"))
    refuse(one, other, indices=(0, 1))
    refuse(one, one, hosts=("a:1", "b:1"))
    refuse({}, {}, machines=(FOUR[:1], FOUR[1:2]))  # Each container has its own "0".
    refuse({}, {}, machines=([], []))  # Nothing is known.


def test_slurm_may_number_the_gpus_of_each_task_from_zero():
    task = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_GPUS_PER_TASK": "1"}
    refuse({**task, "CUDA_VISIBLE_DEVICES": "0"}, {**task, "CUDA_VISIBLE_DEVICES": "0"})
