"""Memory of GPUs and GPUs that cannot be used: the decisions, on a machine without one."""

import subprocess
from types import SimpleNamespace

import pytest
import tensorflow as tf

from kerasdist import KerasdistError
from kerasdist.devices import gpus, private_tensorflow
from kerasdist.devices.placement import place
from tests.devices import fake_gpus

GB = 2**30


@pytest.fixture
def two(monkeypatch):
    """Two GPUs; returns what was set for them."""
    done = []
    config = tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind=None: ["first", "second"])
    monkeypatch.setattr(
        config.experimental, "set_memory_growth", lambda gpu, value: done.append((gpu, value))
    )
    monkeypatch.setattr(
        config,
        "set_logical_device_configuration",
        lambda gpu, made: done.append((gpu, made[0].memory_limit)),
    )
    return done


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GB", 4 * GB),
        ("512mb", GB // 2),
        ("1.5 GB", 3 * GB // 2),
        (".25", 2 * GB),
        ("0.5", 4 * GB),
    ],
)
def test_sizes_and_fractions(text, expected):
    assert gpus.limit_bytes(text, 8 * GB) == expected


@pytest.mark.parametrize("text", ["4", "0", "1", "1.0", "-1GB", "4TB", "many", "", "0GB", "1..2GB"])
def test_other_texts_are_refused(text):
    with pytest.raises(KerasdistError, match="Expected a size such as 4GB, or a fraction"):
        gpus.limit_bytes(text, 8 * GB)
    with pytest.raises(KerasdistError, match="`--memory-limit"):  # Also without a GPU.
        gpus.set_memory(False, text)


def test_growth_is_set_for_every_gpu(two):
    assert gpus.set_memory(True, None)
    assert two == [("first", True), ("second", True)]


def test_a_limit_is_set_for_every_gpu_by_its_own_size(two):
    assert gpus.set_memory(False, "0.5", totals=lambda: [8 * GB, 24 * GB])
    assert two == [("first", 4096), ("second", 12288)]
    two.clear()
    gpus.set_memory(False, "4GB", totals=list)
    assert two == [("first", 4096), ("second", 4096)]


def test_only_the_chosen_gpus_are_set(two):
    gpus.set_memory(True, None, chosen=[1])
    gpus.set_memory(False, "0.5", totals=lambda: [8 * GB, 24 * GB], chosen=[1])
    assert two == [("second", True), ("second", 12288)]


def test_the_size_of_a_gpu_is_that_of_the_visible_one(two, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setattr(gpus, "total_memory", lambda: [8 * GB, 16 * GB, 24 * GB])
    gpus.set_memory(False, "0.5")
    assert two == [("first", 12288), ("second", 4096)]


def test_memory_grows_if_not_all_gpus_are_used(monkeypatch):
    """TensorFlow has one setting for all GPUs that it sees."""
    done = fake_gpus.present(monkeypatch, 3)
    gpus.spare_others([0, 1, 2])
    assert done.growth == []
    gpus.spare_others([1])
    assert done.growth == [0, 1, 2]


@pytest.mark.parametrize("case", ["it has started", "logical GPUs"])
def test_memory_is_left_as_it_is_if_it_cannot_be_set(monkeypatch, case):
    done = fake_gpus.present(monkeypatch, 3)
    if case == "logical GPUs":
        done.limits[0] = [1024, 1024]
    else:
        monkeypatch.setattr(private_tensorflow, "has_started", lambda: True)
    gpus.spare_others([1])
    assert done.growth == []


def test_a_placement_on_some_gpus_lets_their_memory_grow(monkeypatch):
    done = fake_gpus.present(monkeypatch, 3)
    assert place("GPU:1").names == ("GPU:1",)
    assert (done.growth, done.visible) == ([0, 1, 2], [0, 1, 2])


def test_nothing_asked_for_is_nothing_set(two):
    assert gpus.set_memory(False, None)
    assert two == []


def test_a_fraction_of_an_unknown_size_is_an_error(two):
    with pytest.raises(KerasdistError, match="nvidia-smi does not tell"):
        gpus.set_memory(False, "0.5", totals=lambda: [8 * GB])


def test_both_are_an_error():
    with pytest.raises(KerasdistError, match="Expected one of them"):
        gpus.set_memory(True, "4GB")


def test_after_tensorflow_has_started_it_is_too_late(two, monkeypatch):
    def too_late(*_):
        raise RuntimeError("Physical devices cannot be modified")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", too_late)
    with pytest.raises(KerasdistError, match="before TensorFlow starts: Physical devices"):
        gpus.set_memory(True, None)


def test_without_a_gpu_there_is_nothing_to_set():
    assert not gpus.set_memory(True, None)


def test_nvidia_smi_is_asked_for_sizes():
    def run(command, **options):
        assert command[0] == "nvidia-smi"
        return SimpleNamespace(stdout="8192\n24576\n")

    assert gpus.total_memory(run) == [8 * GB, 24 * GB]

    def missing(command, **options):
        raise FileNotFoundError

    def broken(command, **options):
        raise subprocess.CalledProcessError(9, command)

    assert gpus.total_memory(missing) == gpus.total_memory(broken) == []
    assert gpus.total_memory(lambda *_, **__: SimpleNamespace(stdout="[N/A]\n")) == []


def test_a_gpu_that_tensorflow_does_not_see_is_told_with_the_fix(monkeypatch):
    assert gpus.unusable_gpus(visible=["GPU:0"], has_driver=lambda: True) is None
    assert gpus.unusable_gpus(visible=[], has_driver=lambda: False) is None
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: False)
    told = gpus.unusable_gpus(visible=[], has_driver=lambda: True)
    assert "built without CUDA: install it with `pip install 'tensorflow[and-cuda]'`" in told
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
    told = gpus.unusable_gpus(visible=[], has_driver=lambda: True)
    assert "driver is too old" in told


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [10, 20]),
        ("1", [20]),
        ("1,0", [20, 10]),
        ("", []),
        ("-1", []),
        ("GPU-3f", []),
        ("7", []),
    ],
)
def test_the_memory_of_gpus_that_are_let_through(visible, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus.visible_memory(environ, lambda: [10, 20]) == expected


def test_xla_compiles_for_gpus_with_a_compute_capability(monkeypatch):
    nvidia, plugged_in = {"device_name": "A", "compute_capability": (8, 0)}, {"device_name": "B"}
    assert gpus.has_xla([nvidia, nvidia], lambda gpu: gpu)
    assert not gpus.has_xla([nvidia, plugged_in], lambda gpu: gpu)
    assert not gpus.has_xla([], lambda gpu: gpu)
    assert not gpus.has_xla()  # This machine has none.
    monkeypatch.setattr(tf.test, "is_built_with_rocm", lambda: True)
    assert gpus.has_xla([plugged_in], lambda gpu: gpu)


def test_whether_a_machine_has_more_than_cpus(monkeypatch):
    assert not gpus.has_accelerator()
    devices = [SimpleNamespace(device_type=kind) for kind in ("CPU", "GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
    assert gpus.has_accelerator()
