"""The checks of `kerasdist doctor --gpu` that train small models."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.cli.findings import Finding
from kerasdist.cli.gpu_report.hardware import are_nvidia, not_here
from kerasdist.devices import gpus
from kerasdist.errors import first_line
from kerasdist.runs.trained_model import weights_sha256
from kerasdist.training import api

_SEND = "Send this report: docs/gpus.md says where to."
_BATCH = 64
# Rounding explains differences up to this after a few steps, relative to the largest weight.
_TOLERANCE = 1e-3
# XLA may round inside its fused operations where TF32 does not, and the other way round.
_XLA_TOLERANCE = 1e-2


def counts() -> list[int]:
    """1, 2, 4 and 8, as far as there are GPUs, and the number of all of them."""
    total = num_gpus()
    return sorted({n for n in (1, 2, 4, 8) if n <= total} | {total})


def num_gpus() -> int:
    """How many GPUs TensorFlow sees."""
    return len(tf.config.get_visible_devices("GPU"))


def _on(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _images(num: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(num, 16, 16, 3)).astype(np.float32)
    return x, random.integers(0, 10, num)


def _conv_net(*, dropout: bool, width: int = 16) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(width, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2 if dropout else 0.0),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def _train(model: Any, devices: Any, **options: Any) -> keras.callbacks.History:
    """Trains a model, or what a function builds; five steps if `data` is not given."""
    defaults = {"batch_size": _BATCH, "epochs": 1, "progress": False}
    data = options.pop("data", None) or _images(5 * _BATCH)
    return api.fit(model, data, devices=devices, **{**defaults, **options})


def _gap(first: keras.Model, second: keras.Model) -> float:
    """The largest difference of two models' weights, relative to the largest weight."""
    pairs = list(zip(first.get_weights(), second.get_weights(), strict=True))
    largest = max(float(np.abs(a).max()) for a, _ in pairs)
    # `np.max` keeps NaN, which then agrees with nothing.
    return float(np.max([np.abs(a - b).max() for a, b in pairs])) / largest


def check_parity() -> Iterator[Finding]:
    """The same training on the CPU, on one GPU and on all, without TF32 and XLA."""
    was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    gaps = {}
    shards = math.lcm(*counts())
    try:
        reference = _conv_net(dropout=False)
        _train(reference, "CPU:0", shards=shards, jit=False)
        for count in counts():
            model = _conv_net(dropout=False)
            _train(model, count, shards=shards, jit=False)
            gaps[_on(count)] = _gap(reference, model)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_enabled)
    text = ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())
    is_close = all(gap < _TOLERANCE for gap in gaps.values())
    yield Finding(
        "parity",
        f"largest difference of the weights from the CPU's after 5 steps: {text}",
        None if is_close else _SEND,
        values={"differences": gaps},
    )


def check_jit() -> Iterator[Finding]:
    """The same training on one GPU with XLA and without, if there is XLA."""
    if not gpus.has_xla():
        return
    models = {}
    for jit in (True, False):
        models[jit] = _conv_net(dropout=False)
        _train(models[jit], 1, jit=jit)
    gap = _gap(models[False], models[True])
    yield Finding(
        "training with XLA",
        f"largest difference of the weights from those without XLA: {gap:.1e}",
        None if gap < _XLA_TOLERANCE else f"Train with `--jit off`. {_SEND}",
        values={"difference": gap},
    )


def check_precision(policy: str) -> Iterator[Finding]:
    """Trains in mixed precision on all GPUs: the loss and the weights are finite."""
    history = _train(lambda: _conv_net(dropout=True), num_gpus(), precision=policy)
    loss, weights = history.history["loss"][-1], history.model.get_weights()
    finite = math.isfinite(loss) and all(np.isfinite(array).all() for array in weights)
    text = f"loss {loss:.3f} after 5 steps" + ("" if finite else ", and the weights are not finite")
    yield Finding(policy, text, None if finite else _SEND, values={"loss": loss})


def check_gru() -> Iterator[Finding]:
    """Trains a GRU on all GPUs, on NVIDIA's with cuDNN."""
    keras.utils.set_random_seed(0)
    cudnn = are_nvidia()
    gru = keras.layers.GRU(16, use_cudnn=True if cudnn else "auto")
    model = keras.Sequential([keras.Input((12, 4)), gru, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    random = np.random.default_rng(0)
    x = random.normal(size=(5 * _BATCH, 12, 4)).astype(np.float32)
    loss = _train(model, num_gpus(), data=(x, x[:, 0, :1])).history["loss"][-1]
    text = f"a GRU trains {'with' if cudnn else 'without'} cuDNN, loss {loss:.3f}"
    if not math.isfinite(loss):
        yield Finding("cuDNN", f"a GRU trains, but its loss is {loss}", _SEND)
    elif cudnn:
        yield Finding("cuDNN", text)
    else:
        yield not_here("cuDNN", text, "It needs NVIDIA GPUs.")


class _Clock(keras.callbacks.Callback):
    """When each epoch ends."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.times.append(time.perf_counter())

    def seconds_per_step(self, num_steps: int) -> float:
        """Of the fastest epoch after the first, which compiles."""
        return min(b - a for a, b in zip(self.times, self.times[1:], strict=False)) / num_steps


def check_speed() -> Iterator[Finding]:
    """Time per step and peak memory of Keras's fit and of kerasdist, on one GPU and on all."""
    times: dict[str, float | str] = {}
    peaks: dict[str, float] = {}
    for count in sorted({1, num_gpus()}):
        for runner in ("Keras", "kerasdist"):
            title = f"{runner} on {_on(count)}"
            for i in range(count):
                tf.config.experimental.reset_memory_stats(f"GPU:{i}")
            try:
                times[title] = _measure(runner, count)
            except Exception as error:  # noqa: BLE001 - the other measurements still run
                times[title] = f"{type(error).__name__}: {first_line(error)}"
                continue
            infos = [tf.config.experimental.get_memory_info(f"GPU:{i}") for i in range(count)]
            peaks[title] = max(info["peak"] for info in infos) / 2**20
    text = ", ".join(
        f"{title} {value * 1000:.2f} ms"
        if isinstance(value, float)
        else f"{title} failed ({value})"
        for title, value in times.items()
    )
    failed = any(isinstance(value, str) for value in times.values())
    yield Finding("time per step", text, _SEND if failed else None, values={"seconds": times})
    text = ", ".join(f"{title} {peak:.1f} MB" for title, peak in peaks.items())
    yield Finding("peak memory of a GPU", text or "not measured", values={"megabytes": peaks})


def _measure(runner: str, count: int) -> float:
    """Seconds per step of a convolutional net with 128 examples per GPU."""
    num_steps, width = (50, 64) if are_nvidia() else (4, 16)
    batch = 128 * count
    data = _images(num_steps * batch)
    clock = _Clock()
    if runner == "kerasdist":
        model = _conv_net(dropout=False, width=width)
        _train(model, count, data=data, batch_size=batch, epochs=4, callbacks=[clock])
        return clock.seconds_per_step(num_steps)
    names = [f"GPU:{i}" for i in range(count)]
    # Plug-in devices have no NCCL.
    ops = None if are_nvidia() else tf.distribute.ReductionToOneDevice()
    one: Any = tf.distribute.OneDeviceStrategy("GPU:0")
    strategy = one if count == 1 else tf.distribute.MirroredStrategy(names, ops)
    with strategy.scope():
        model = _conv_net(dropout=False, width=width)
        if not are_nvidia():
            model.jit_compile = False
    model.fit(*data, batch_size=batch, epochs=4, callbacks=[clock], verbose=0)
    return clock.seconds_per_step(num_steps)


def check_determinism() -> Iterator[Finding]:
    """The same bits twice on one GPU, and on 1, 2, 4 and 8 of them."""
    shards = math.lcm(4, *counts())
    digests = {}
    trainings = [(_on(count), count) for count in counts()]
    for title, count in [*trainings, ("1 GPU again", 1)]:
        model = _conv_net(dropout=True)
        _train(model, count, shards=shards, deterministic=True)
        digests[title] = weights_sha256(model)
    same = len(set(digests.values())) == 1
    short = ", ".join(f"{title} {digest[:12]}" for title, digest in digests.items())
    yield Finding(
        "determinism",
        f"{'the same bits' if same else 'different bits'}: {short}",
        None if same else _SEND,
        values={"weights_sha256": digests},
    )
