"""What `devices=` means, on the six logical CPUs of the tests."""

import os
import platform
import re
import subprocess
import sys

import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.devices.names import resolve_names

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("auto", "CPU:0"),
        (None, "CPU:0"),
        (1, "CPU:0"),
        (3, "CPU:0 CPU:1 CPU:2"),
        (np.int64(2), "CPU:0 CPU:1"),
        ("2", "CPU:0 CPU:1"),
        ("cpu", "CPU:0"),
        ("cpu:0", "CPU:0"),
        ("cpu:4", "CPU:0 CPU:1 CPU:2 CPU:3"),
        ("CPU:4", "CPU:4"),
        ("/cpu:4", "CPU:4"),
        ("/device:CPU:4", "CPU:4"),
        ([0, 2], "CPU:0 CPU:2"),
        ((np.int32(1),), "CPU:1"),
        ("0,2", "CPU:0 CPU:2"),
        (["CPU:1", "cpu:3"], "CPU:1 CPU:3"),
        ("CPU:5, /cpu:1", "CPU:5 CPU:1"),
    ],
)
def test_devices_by_number_index_and_name(devices, names):
    assert resolve_names(devices) == tuple(names.split())


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (0, "Ask for 1 or more"),
        (-2, "Ask for 1 or more"),
        (True, "Expected"),
        (1.5, "Expected"),
        ([], "Expected"),
        ({}, "Expected"),
        ([0, 0], "twice"),
        (["CPU:0", 0], "twice"),
        ([0, None], "item None"),
        (["cpu"], "item 'cpu'"),
        ("gpus", "Did you mean 'gpu'"),
        ("GPU:0", "no device 'GPU:0'.*this machine has CPU:0, .*CPU:5.*--soft-placement"),
        ("gpu", "no device 'GPU:0'"),
        ([7], r"no device 'CPU:7'.*kerasdist.logical_cpus\(8\)"),
        ("CPU:9", "no device 'CPU:9'"),
    ],
)
def test_wrong_devices_are_refused_by_name(devices, message):
    with pytest.raises(KerasdistError, match=message):
        resolve_names(devices)


def test_more_logical_cpus_after_the_start_says_what_to_call():
    for ask in (lambda: resolve_names(7), lambda: resolve_names("cpu:7")):
        with pytest.raises(KerasdistError, match=r"kerasdist.logical_cpus\(7\).*after the import"):
            ask()
    with pytest.raises(KerasdistError, match="7 logical CPUs after TensorFlow started with 6"):
        kerasdist.logical_cpus(7)
    kerasdist.logical_cpus(6)
    kerasdist.logical_cpus(2)  # There are more than enough.
    for wrong in (0, -1, 2.0, True, "2"):
        with pytest.raises(KerasdistError, match="whole number of at least 1"):
            kerasdist.logical_cpus(wrong)


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("GPU:3", "CPU:3"),
        ("GPU:99", "CPU:5"),
        (9, "CPU:0 CPU:1 CPU:2 CPU:3 CPU:4 CPU:5"),
        ([0, 9, 10], "CPU:0 CPU:5"),
        ("cpu:8", "CPU:0 CPU:1 CPU:2 CPU:3 CPU:4 CPU:5"),
    ],
)
def test_soft_placement_takes_the_nearest(devices, names):
    assert resolve_names(devices, soft=True) == tuple(names.split())


def test_list_devices_says_what_auto_takes():
    devices = kerasdist.list_devices()
    assert [d.name for d in devices] == [f"CPU:{i}" for i in range(6)]
    assert [d.used_by_auto for d in devices] == [True] + [False] * 5


PROGRAM = """
import sys
import kerasdist
print("tensorflow" in sys.modules)
if sys.argv[1:]:
    import keras
    keras.optimizers.SGD()  # Starts TensorFlow.
print(len([d for d in kerasdist.list_devices() if d.kind == "CPU"]))
"""


def test_the_environment_sets_logical_cpus_before_the_caller_starts_tensorflow():
    environment = {**os.environ, "KERASDIST_LOGICAL_CPUS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "start"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == "3"


def test_a_wrong_number_in_the_environment_is_named(monkeypatch):
    from kerasdist.devices.names import logical_cpus_from_environment

    monkeypatch.setenv("KERASDIST_LOGICAL_CPUS", "four")
    with pytest.raises(KerasdistError, match="KERASDIST_LOGICAL_CPUS='four'"):
        logical_cpus_from_environment()
    monkeypatch.delenv("KERASDIST_LOGICAL_CPUS")
    logical_cpus_from_environment()


def test_the_command_shows_memory_logical_cpus_and_what_cuda_may_see(command, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    done = command("devices")
    assert done.code == 0
    assert done.lines[-2:] == [
        "logical CPUs: 6; `--devices cpu:4` splits this processor into four",
        "CUDA_VISIBLE_DEVICES: 1",
    ]
    assert re.search(r"CPU:0 .* CPU .* \d+\.\d GB .* yes", done.out)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert command("devices").lines[-1] == "CUDA_VISIBLE_DEVICES: not set"
    first, *_ = command("devices", "--json").objects
    assert first["memory_bytes"] > 2**28
    assert first["cuda_visible_devices"] is None


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN is for x86 here")
@pytest.mark.parametrize(
    ("imports", "given", "expected"),
    [
        ("kerasdist", {}, "1"),
        ("kerasdist", {ONEDNN: "0"}, "0"),
        ("tensorflow, kerasdist", {}, "None"),
    ],
)
def test_onednn_is_on_where_kerasdist_comes_before_tensorflow(imports, given, expected, tmp_path):
    # A module of that name will do: TensorFlow takes seconds.
    (tmp_path / "tensorflow.py").touch()
    left_out = (ONEDNN, "KERASDIST_LOGICAL_CPUS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", f"import {imports}, os; print(os.environ.get({ONEDNN!r}))"],
        env={**environment, **given, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
