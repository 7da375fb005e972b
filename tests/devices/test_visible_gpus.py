"""GPUs that are hidden from TensorFlow keep their numbers for the user. Without a GPU."""

import pytest

from kerasdist import KerasdistError
from kerasdist.cli import job
from kerasdist.devices import private_tensorflow, visible_gpus
from kerasdist.devices.names import expected_gpus, kind_of, resolve_names
from kerasdist.devices.placement import Placement
from kerasdist.training.progress import placement_log
from tests.devices import fake_gpus


@pytest.fixture
def four(monkeypatch):
    return fake_gpus.present(monkeypatch, 4)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("auto", [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
        ("gpu", [0, 1, 2, 3]),
        (2, [0, 1]),
        ("2", [0, 1]),
        ("GPU:1", [1]),
        ("3,1", [3, 1]),
        (["GPU:2"], [2]),
        ("cpu", []),
        ("cpu:2", []),
        (["CPU:0"], []),
        ("GPU:7", [0, 1, 2, 3]),
        (9, [0, 1, 2, 3]),
        ("nonsense", [0, 1, 2, 3]),
    ],
)
def test_the_gpus_of_devices_are_known_before_tensorflow_starts(four, devices, expected):
    assert expected_gpus(devices) == expected


def test_soft_placement_keeps_the_nearest_gpu(four):
    assert expected_gpus("GPU:7", soft=True) == [3]
    visible_gpus.keep([3])
    assert resolve_names("GPU:7", soft=True) == ("GPU:3",)


def test_a_gpu_keeps_its_number_if_others_are_hidden(four):
    visible_gpus.keep([3, 1])
    assert four.visible == [1, 3]
    assert resolve_names("auto") == resolve_names("1,3") == ("GPU:1", "GPU:3")
    assert resolve_names(["GPU:3"]) == ("GPU:3",)
    assert visible_gpus.in_tensorflow(["GPU:3", "GPU:1"]) == ("GPU:1", "GPU:0")
    assert visible_gpus.in_tensorflow(["CPU:1"]) == ("CPU:1",)
    assert [visible_gpus.shown(name) for name in ("GPU:0", "GPU:1", "CPU:1", "?")] == [
        *("GPU:1", "GPU:3", "CPU:1", "?")
    ]
    with pytest.raises(KerasdistError, match=r"no device 'GPU:0'.*this machine has GPU:1, GPU:3"):
        resolve_names("GPU:0")


def test_users_see_the_numbers_of_the_machine(four):
    visible_gpus.keep([2])
    assert Placement(("GPU:0",), None).titles == ("GPU:2",)
    assert placement_log._short("/job:localhost/replica:0/task:0/device:GPU:0") == "GPU:2"
    assert visible_gpus.positions(["GPU:0"]) == [2]


def test_nothing_is_hidden_if_all_are_used_or_tensorflow_has_started(four, monkeypatch):
    visible_gpus.keep([0, 1, 2, 3])
    monkeypatch.setattr(private_tensorflow, "has_started", lambda: True)
    visible_gpus.keep([1])
    assert four.visible == [0, 1, 2, 3]
    assert visible_gpus.shown("GPU:0") == "GPU:0"


@pytest.mark.parametrize(
    ("devices", "kind"), [("auto", "GPU"), (2, "GPU"), ("0,1", "GPU"), ("cpu:2", "CPU")]
)
def test_the_kind_of_devices_is_known_before_tensorflow_starts(four, devices, kind):
    assert kind_of(devices) == kind


@pytest.mark.parametrize("devices", ["auto", "GPU:0", 2])
def test_without_a_visible_gpu_all_devices_are_cpus(four, devices):
    four.visible = []
    assert kind_of(devices) == "CPU"
    assert resolve_names("auto") == ("CPU:0",)


@pytest.mark.parametrize(
    ("options", "visible", "growth", "limits"),
    [
        ({}, [1], [], {}),
        ({"memory_growth": True}, [1], [1], {}),
        ({"memory_limit": "1GB"}, [1], [], {1: [1024]}),
        ({"devices": "cpu"}, [], [], {}),
        ({"devices": "auto"}, [0, 1, 2, 3], [], {}),
    ],
)
def test_a_command_takes_memory_only_on_its_gpus(four, options, visible, growth, limits):
    run = {"devices": "GPU:1", "soft_placement": False}
    run |= {"memory_growth": False, "memory_limit": None}
    names = job.names_of({**run, **options})
    assert names == [f"GPU:{i}" for i in visible] or names == ["CPU:0"]
    assert (four.visible, four.growth, four.limits) == (visible, growth, limits)
