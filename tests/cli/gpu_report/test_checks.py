"""The checks of `kerasdist doctor --gpu`: what they say when something is wrong or missing.

They run here on the CPU, which TensorFlow uses if there is no GPU.
"""

import itertools
import subprocess
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cli.gpu_report import hardware, trainings, worker

EXPERIMENTAL = tf.config.experimental


@pytest.fixture
def machine(monkeypatch):
    """Makes the checks see GPUs with these compute capabilities."""

    def make(*capabilities):
        details = {
            i: {"device_name": "A", "compute_capability": c} if c else {}
            for i, c in enumerate(capabilities)
        }
        monkeypatch.setattr(hardware, "_visible", lambda: list(details))
        monkeypatch.setattr(hardware.tf.config, "get_visible_devices", lambda kind: list(details))
        monkeypatch.setattr(EXPERIMENTAL, "get_device_details", details.__getitem__)

    return make


def one(check):
    (finding,) = check()
    return finding


def test_an_error_of_a_check_is_a_finding(monkeypatch):
    def broken():
        raise OSError("it does not\nwork")

    monkeypatch.setattr(worker, "CHECKS", {"copies": broken})
    (finding,) = worker.run("copies")
    assert (finding.text, finding.is_failure) == ("OSError: it does not", True)


def test_the_driver_and_the_libraries(monkeypatch):
    finding = one(hardware.check_libraries)
    assert "TensorFlow is built with CUDA 12" in finding.text
    printed = subprocess.CompletedProcess([], 0, "570.1\n570.1\n")
    monkeypatch.setattr(hardware.subprocess, "run", lambda *args, **options: printed)
    monkeypatch.setattr(hardware.metadata, "version", lambda name: "9.3")
    text = one(hardware.check_libraries).text
    assert text.startswith("driver 570.1; ")
    assert text.endswith("from pip: cuda-runtime 9.3, cublas 9.3, cudnn 9.3, nccl 9.3")
    monkeypatch.setattr(hardware.tf.sysconfig, "get_build_info", dict)
    assert "TensorFlow is built without CUDA" in one(hardware.check_libraries).text


@pytest.mark.parametrize(
    ("capability", "word"), [((5, 2), "older"), ((8, 6), None), ((9, 0), None), ((12, 0), "newer")]
)
def test_gpus_that_are_older_or_newer_than_the_wheel(machine, monkeypatch, capability, word):
    machine(capability)
    monkeypatch.setattr(hardware.gpus, "visible_memory", lambda: [16 * 2**30])
    built = {"cuda_compute_capabilities": ["sm_60", "sm_80", "compute_90"]}
    monkeypatch.setattr(hardware.tf.sysconfig, "get_build_info", lambda: built)
    finding = one(hardware.check_gpus)
    version = ".".join(map(str, capability))
    assert finding.text == f"GPU:0 A, compute capability {version}, 16.0 GB"
    assert not finding.is_failure
    if word is None:
        assert finding.fix is None
    else:
        assert finding.fix.startswith(
            f"GPU:0 ({version}) is {word} than TensorFlow's kernels, which are made for sm_60, "
            "sm_80, compute_90. docs/gpus.md says what that means."
        )


def test_what_plug_in_devices_do_not_have(machine):
    machine(None, None)
    for check in (hardware.check_nccl, hardware.check_memory_limit):
        finding = one(check)
        assert finding.text == "not available here: plug-in devices have none"
        assert not finding.is_failure


def test_nccl_needs_two_gpus(machine):
    machine((8, 0))
    assert one(hardware.check_nccl).text == "not available here: there is one GPU"


@pytest.mark.parametrize(("added", "is_failure"), [(64 * 2**20, False), (0, True)])
def test_memory_that_is_not_counted(monkeypatch, added, is_failure):
    peaks = iter([10, 10 + added])
    monkeypatch.setattr(EXPERIMENTAL, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(EXPERIMENTAL, "get_memory_info", lambda device: {"peak": next(peaks)})
    monkeypatch.setattr(hardware, "_ask_driver", lambda field: ["300 MiB"])
    finding = one(hardware.check_memory)
    assert finding.is_failure == is_failure
    assert finding.text == (
        f"64 MB add {added / 2**20:.0f} MB to the peak; nvidia-smi: 300 MiB in use, with memory "
        "growth"
    )


def test_a_limit_that_does_not_hold(machine, monkeypatch):
    machine((8, 0))
    monkeypatch.setattr(hardware, "LIMIT", 1)
    assert one(hardware.check_memory_limit).text == "2 MB fit into a limit of 1 MB"

    def refused(shape):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    monkeypatch.setattr(hardware.tf, "zeros", refused)
    assert one(hardware.check_memory_limit).text == "with a limit of 1 MB, 2 MB are refused"


def test_copies(machine, monkeypatch):
    machine((8, 0), (8, 0))
    finding = one(hardware.check_copies)
    assert finding.fix is None
    assert len(finding.values["gigabytes_per_second"]) == 6
    monkeypatch.setattr(hardware, "_copied", lambda tensor, device: (tf.zeros_like(tensor), 1.0))
    finding = one(hardware.check_copies)
    assert finding.text == (
        "wrong bytes after copying GPU:0 to GPU:1, GPU:1 to GPU:0, host to GPU:0 and back, host to "
        "GPU:1 and back"
    )
    assert finding.is_failure


def test_products_of_matrices(machine, monkeypatch):
    machine(None)
    product, tf32 = hardware.check_matmul()
    assert product.fix is None
    assert tf32.text == "not available here: float32 has all of its 23 bits"
    machine((8, 0))
    monkeypatch.setattr(hardware, "_matmul", lambda size, dtype: (1.0, 1e-3))
    product, tf32 = hardware.check_matmul()
    assert product.is_failure
    assert list(product.values["teraflops"]) == ["float32", "TF32", "float16", "bfloat16"]
    assert tf32.text == (
        "off by default: float32 products read 10 of 23 bits. The largest error is 1.0e-03, "
        "without TF32 1.0e-03"
    )


def test_xla(monkeypatch):
    monkeypatch.setattr(hardware.gpus, "has_xla", lambda: False)
    assert one(hardware.check_xla).text == (
        "not available here: it has no compiler for these devices"
    )
    assert not list(trainings.check_jit())
    monkeypatch.setattr(hardware.gpus, "has_xla", lambda: True)
    finding = one(hardware.check_xla)
    assert finding.fix is None
    assert finding.text.startswith("compiles in ")
    monkeypatch.setattr(hardware.np, "abs", lambda array: np.linspace(1, 2, 9))
    assert one(hardware.check_xla).fix.startswith("Train with `--jit off`. Send this report")


@pytest.fixture
def untrained(machine, monkeypatch):
    """Two GPUs on which nothing is trained."""
    machine((8, 0), (8, 0))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    history = SimpleNamespace(history={"loss": [1.5]}, model=model)
    monkeypatch.setattr(trainings, "_train", lambda *args, **options: history)
    return history


def test_the_numbers_of_gpus(machine):
    for total, expected in {1: [1], 2: [1, 2], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8]}.items():
        machine(*[(8, 0)] * total)
        assert trainings.counts() == expected


@pytest.mark.parametrize(("gap", "is_failure"), [(1e-6, False), (0.1, True), (np.nan, True)])
def test_parity(untrained, monkeypatch, gap, is_failure):
    monkeypatch.setattr(trainings, "_gap", lambda first, second: gap)
    monkeypatch.setattr(trainings.gpus, "has_xla", lambda: True)
    parity = one(trainings.check_parity)
    assert parity.is_failure == is_failure
    assert parity.text == (
        "largest difference of the weights from the CPU's after 5 steps: "
        f"1 GPU {gap:.1e}, 2 GPUs {gap:.1e}"
    )
    jit = one(trainings.check_jit)
    assert jit.text == f"largest difference of the weights from those without XLA: {gap:.1e}"
    assert jit.is_failure == is_failure


def test_a_gap_with_nan_is_nan():
    models = [keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]) for _ in range(2)]
    for model in models:
        model.set_weights([np.array([[2.0]]), np.array([0.0])])
    assert trainings._gap(*models) == 0
    models[1].set_weights([np.array([[2.0]]), np.array([np.nan])])
    assert np.isnan(trainings._gap(*models))


def test_mixed_precision_that_is_not_finite(untrained):
    finding = one(lambda: trainings.check_precision("mixed_float16"))
    assert (finding.name, finding.text) == ("mixed_float16", "loss 1.500 after 5 steps")
    untrained.model.set_weights([np.array([[np.inf]]), np.array([0.0])])
    finding = one(lambda: trainings.check_precision("mixed_float16"))
    assert finding.text == "loss 1.500 after 5 steps, and the weights are not finite"
    assert finding.is_failure


def test_a_gru(untrained, machine):
    assert one(trainings.check_gru).text == "a GRU trains with cuDNN, loss 1.500"
    machine(None)
    assert one(trainings.check_gru).text == (
        "not available here: a GRU trains without cuDNN, loss 1.500"
    )
    untrained.history["loss"] = [np.nan]
    assert one(trainings.check_gru).text == "a GRU trains, but its loss is nan"


def test_a_measurement_that_fails_leaves_the_others(machine, monkeypatch):
    machine((8, 0), (8, 0))

    def measure(runner, count):
        if runner == "Keras" and count == 2:
            raise OSError("no NCCL")
        return 0.002

    monkeypatch.setattr(trainings, "_measure", measure)
    monkeypatch.setattr(EXPERIMENTAL, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(EXPERIMENTAL, "get_memory_info", lambda device: {"peak": 2**20})
    times, peaks = trainings.check_speed()
    assert times.text == (
        "Keras on 1 GPU 2.00 ms, kerasdist on 1 GPU 2.00 ms, Keras on 2 GPUs failed (OSError: no "
        "NCCL), kerasdist on 2 GPUs 2.00 ms"
    )
    assert times.is_failure
    assert (
        peaks.text == "Keras on 1 GPU 1.0 MB, kerasdist on 1 GPU 1.0 MB, kerasdist on 2 GPUs 1.0 MB"
    )


def test_determinism(untrained, monkeypatch):
    monkeypatch.setattr(trainings, "weights_sha256", lambda model: "0123456789abcdef")
    finding = one(trainings.check_determinism)
    assert finding.text == (
        "the same bits: 1 GPU 0123456789ab, 2 GPUs 0123456789ab, 1 GPU again 0123456789ab"
    )
    numbers = itertools.count()
    monkeypatch.setattr(trainings, "weights_sha256", lambda model: str(next(numbers)))
    finding = one(trainings.check_determinism)
    assert finding.text == "different bits: 1 GPU 0, 2 GPUs 1, 1 GPU again 2"
    assert finding.is_failure
