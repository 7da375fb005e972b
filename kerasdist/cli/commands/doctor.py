"""`kerasdist doctor`: checks the installation with a short training, or the GPUs with `--gpu`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist.cli.findings import Finding, exit_code, show
from kerasdist.cli.gpu_report import command as gpu_report
from kerasdist.devices import gpus
from kerasdist.devices.names import list_devices, logical_cpus_if_more
from kerasdist.errors import first_line
from kerasdist.phases.phase import phase
from kerasdist.runs import provenance
from kerasdist.training import api


def doctor(options: dict[str, Any]) -> int:
    """`kerasdist doctor`."""
    if options["gpu"]:
        return gpu_report.gpu_report(options)
    logical_cpus_if_more(2)
    return exit_code(show(examine(), json=options["json"], quiet=options["quiet"]))


def examine() -> Iterator[Finding]:
    """Runs the checks one after the other."""
    facts = provenance.describe([])
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    yield Finding("versions", f"Python {facts['python']}, {packages}")
    names = [f"{device.name} ({device.description})" for device in list_devices()]
    yield Finding("devices", f"{', '.join(names)}; {facts['cpus']} CPU cores")
    unusable = gpus.unusable_gpus()
    if unusable is not None:
        yield Finding("GPU", "TensorFlow does not see it", unusable, is_needed=False)
    yield _tried("one device", "a training step gives the right weights", lambda: check_replicas(1))
    yield _tried(
        "two replicas", "they compute the same step as one device", lambda: check_replicas(2)
    )
    yield _tried(
        "writing here", str(Path.cwd()), check_writing, "Go to a folder that you can write to."
    )
    yield _package("TensorBoard", "tensorboard", "pip install tensorboard")
    yield _package("TFDS", "tensorflow_datasets", "pip install 'kerasdist[tfds]'")
    yield _onnx()


def _tried(
    name: str, text: str, check: Callable[[], None], fix: str = "Report this as a bug."
) -> Finding:
    try:
        with phase(f"checking: {name}"):
            check()
    except Exception as error:  # noqa: BLE001 - the other checks still run
        return Finding(name, f"{type(error).__name__}: {first_line(error)}", fix)
    return Finding(name, text)


def check_replicas(num_replicas: int) -> None:
    """Trains one step of a linear model on three examples, and compares it with NumPy."""
    x = np.array([[1, 2], [3, 4], [5, 7]], np.float32)
    y = np.array([[1], [2], [4]], np.float32)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    api.fit(model, (x, y), batch_size=3, steps=1, devices=num_replicas, progress=False)
    expected = 0.1 * 2 / len(x) * x.T @ y
    found = layer.kernel.numpy()
    if not np.allclose(found, expected, atol=1e-5):
        raise ValueError(f"the weights are {found.ravel()}, not {expected.ravel()}")


def check_writing() -> None:
    """Writes a temporary file into the current folder."""
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(b"kerasdist")


def _onnx() -> Finding:
    """The packages that an export to ONNX needs, as one finding."""
    install = "pip install 'kerasdist[onnx]'"
    found = [_package(module, module, install) for module in ("tf2onnx", "onnx", "onnxruntime")]
    missing = [each.name for each in found if each.fix is not None]
    if not missing:
        return Finding("export to ONNX", ", ".join(f"{each.name} {each.text}" for each in found))
    text = f"not installed: {', '.join(missing)}"
    return Finding("export to ONNX", text, f"To use it: {install}", is_needed=False)


def _package(name: str, module: str, install: str) -> Finding:
    """Looks for a package without importing it, because some take seconds."""
    if util.find_spec(module) is None:
        return Finding(name, "not installed", f"To use it: {install}", is_needed=False)
    try:
        version = metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        version = "installed"
    return Finding(name, version)
