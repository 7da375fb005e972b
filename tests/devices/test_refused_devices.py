"""Devices that do not exist: a clear error, or with soft placement the nearest one."""

import pytest

import kerasdist
from kerasdist.devices.names import resolve_names
from tests.bad_input import X, Y, refusal, regressor


@pytest.mark.parametrize(
    ("devices", "missing"),
    [("GPU:0", "'GPU:0'"), (["CPU:0", "CPU:9"], "'CPU:9'"), ([7], "'CPU:7'"), ("gpu", "'GPU:0'")],
)
def test_a_device_that_does_not_exist(devices, missing, not_compiled):
    message = refusal(regressor(), (X, Y), devices=devices)
    assert f"`devices={devices!r}`" in message
    assert f"no device {missing}" in message
    assert "CPU:0, CPU:1, CPU:2, CPU:3, CPU:4, CPU:5" in message
    assert '`devices="auto"`' in message
    assert "command line, `--soft-placement`" in message


def test_the_hint_adds_as_many_cpus_as_the_highest_one_needs():
    with pytest.raises(kerasdist.KerasdistError) as caught:
        resolve_names("6,9")
    assert "no device 'CPU:6'" in str(caught.value)
    assert "`--devices cpu:10` on the command line" in str(caught.value)
    assert "`kerasdist.logical_cpus(10)` right after the import" in str(caught.value)


@pytest.mark.parametrize("devices", ["fpga", 0, -1, 1.5, [], ["TPU:0"], "cpu:0x", [None]])
def test_devices_that_mean_nothing(devices, not_compiled):
    message = refusal(regressor(), (X, Y), devices=devices)
    assert f"`devices={devices!r}`" in message
    assert "this machine has CPU:0, CPU:1" in message


def test_soft_placement_takes_the_nearest_device():
    assert resolve_names("GPU:1", soft=True) == ("CPU:1",)
    assert resolve_names("/device:CPU:9", soft=True) == ("CPU:5",)
    assert resolve_names(["CPU:4", "CPU:5", "CPU:6"], soft=True) == ("CPU:4", "CPU:5")
    assert resolve_names(9, soft=True) == tuple(f"CPU:{i}" for i in range(6))
    assert resolve_names("cpu:8", soft=True) == tuple(f"CPU:{i}" for i in range(6))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: kerasdist.logical_cpus(7),
        lambda: kerasdist.fit(regressor(), (X, Y), batch_size=5, devices=7),
        lambda: kerasdist.fit(regressor(), (X, Y), batch_size=5, devices="cpu:7"),
    ],
    ids=["logical_cpus", "number", "name"],
)
def test_logical_cpus_after_tensorflow_started(ask, not_compiled):
    with pytest.raises(kerasdist.KerasdistError) as caught:
        ask()
    message = str(caught.value)
    assert "7 logical CPUs after TensorFlow started with 6" in message
    assert "Call `kerasdist.logical_cpus(7)` right after the import" in message
    assert "KERASDIST_LOGICAL_CPUS=7" in message
