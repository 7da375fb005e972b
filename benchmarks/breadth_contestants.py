"""Runs one contestant of breadth.py with one model, in a process of its own.

python benchmarks/breadth_contestants.py CONTESTANT MODEL DEVICES

It trains one step in a fit of its own: the first one compiles, the others show what a further fit
costs. Then each line on standard input starts a round of steps, within one long fit. After each of
these it prints the seconds and the memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from breadth_models import MODELS, Whole
from contestants import FOREVER, Rounds

FURTHER = 7
Fit = Callable[..., Any]


def train(whole: Whole, model: Any, rounds: Rounds, fit: Fit) -> None:
    x, y = whole.arrays(whole.batch_size)
    for _ in range(1 + FURTHER):
        if not rounds.begin():
            return
        fit(model, x, y, batch_size=whole.batch_size)
        rounds.end()
    x, y = whole.arrays(whole.batch_size * whole.steps)
    callbacks = [rounds.callback()]
    fit(model, x, y, batch_size=whole.batch_size, epochs=FOREVER, callbacks=callbacks)


def kerasdist(whole: Whole, devices: int, rounds: Rounds, **options: Any) -> None:
    """`kerasdist.fit`."""
    import kerasdist as package

    package.logical_cpus(devices)
    train_model = package.fit  # Loads kerasdist's modules, as `import keras` loads Keras's.

    def fit(*given: Any, **named: Any) -> None:
        train_model(*given, **named, **options, devices=devices, progress=False)

    train(whole, whole.build(), rounds, fit)


def deterministic(whole: Whole, devices: int, rounds: Rounds) -> None:
    """`kerasdist.fit` with `deterministic=True`."""
    kerasdist(whole, devices, rounds, deterministic=True)


def keras_tensorflow(whole: Whole, devices: int, rounds: Rounds) -> None:
    """Keras's own `fit` on TensorFlow, on several devices with MirroredStrategy."""
    from contestants import _strategy

    with _strategy(devices).scope():
        model = whole.build()
    train(whole, model, rounds, keras_fit)


def keras_jax(whole: Whole, devices: int, rounds: Rounds) -> None:
    """Keras's own `fit` on JAX, on several devices with `keras.distribution.DataParallel`."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import keras

    if devices > 1:
        names = keras.distribution.list_devices("cpu")
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=names))
    train(whole, whole.build(), rounds, keras_fit)


def keras_fit(model: Any, *given: Any, **named: Any) -> None:
    model.fit(*given, **named, verbose=0)


CONTESTANTS: dict[str, Callable[[Whole, int, Rounds], None]] = {
    "kerasdist": kerasdist,
    "deterministic": deterministic,
    "keras-tf": keras_tensorflow,
    "keras-jax": keras_jax,
}


def main() -> None:
    contestant, model, devices = sys.argv[1:]
    whole = MODELS[model]
    CONTESTANTS[contestant](whole, int(devices), Rounds(whole.steps))


if __name__ == "__main__":
    main()
