"""What a training moves and holds on GPUs, by Keras and by kerasdist, counted on fake GPUs.

`python -m tests.gpu.budgets` prints the table of docs/gpus.md. Each row is a process of its own.
Units: B is the size of a batch, P the size of the weights.
"""

import itertools
import json
import os
import subprocess
import sys

from tests.gpu import fake_gpu

MODELS = {"wide": (5, 1024), "deep": (12, 512)}
BATCH, FEATURES = 128, 256
SHORT, LONG = 2, 22


def measure(who, num_devices, model="wide", **options):
    """One row, measured in a new process."""
    environ = {**os.environ, fake_gpu.NUM: str(num_devices), fake_gpu.EXACT: "1"}
    command = [sys.executable, "-m", "tests.gpu.budgets", who, model, json.dumps(options)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def build(kind, optimizer="adam"):
    import keras

    depth, units = MODELS[kind]
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    layers = [dense(units, activation="relu") for _ in range(depth)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # The fake GPUs have no XLA.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def batches():
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    x = random.normal(size=(4 * BATCH, FEATURES)).astype("float32")
    y = random.integers(0, 10, 4 * BATCH)
    with tf.device("CPU:0"):
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat()


def keras_steps(kind, num_devices, options):
    """A function that runs steps of Keras's fit, and the model."""
    import tensorflow as tf

    data = batches()
    names = [f"GPU:{i}" for i in range(num_devices)]
    strategy = tf.distribute.get_strategy()
    if num_devices > 1:
        # Not the default, which needs NCCL itself; its stand-in counts the same.
        strategy = tf.distribute.MirroredStrategy(names, tf.distribute.NcclAllReduce())
    with strategy.scope():
        model = build(kind, **options)
    return lambda steps: model.fit(data, steps_per_epoch=steps, verbose=0), model


def kerasdist_steps(kind, num_devices, options):
    """A function that runs steps of kerasdist in one call, and the model."""
    import kerasdist
    from kerasdist.engine.transfer import exchange
    from kerasdist.training import engines as engines_module

    exchange.BUCKET_BYTES = 2**20  # As small beside these models as it is beside large ones.

    data, engines = batches(), []

    class Kept(engines_module.Engine):
        def __init__(self, *args):
            super().__init__(*args)
            engines.append(self)

        def close(self):
            """It goes on after the fit."""

    model = build(kind, options.pop("optimizer", "adam"))
    keep, engines_module.Engine = engines_module.Engine, Kept
    kerasdist.fit(model, data, steps=1, devices=num_devices, progress=False, **options)
    engines_module.Engine = keep
    iterator = iter(data)
    return lambda steps: engines[0].train(iterator, steps), model


def row(who, kind, options):
    """Copies and bytes of a step, and the peak of each device, in units of B and P."""
    fake_gpu.load()
    import tensorflow as tf

    devices = range(len(tf.config.list_physical_devices("GPU")))
    make = keras_steps if who == "keras" else kerasdist_steps
    run, model = make(kind, len(devices), options)
    size = sum(v.numpy().nbytes for v in model.trainable_variables)
    batch = BATCH * (4 * FEATURES + 8)
    run(SHORT)
    found = [_counts(devices)]
    for steps in (SHORT, LONG):
        run(steps)
        found.append(_counts(devices))
    short, long = (_less(b, a) for a, b in itertools.pairwise(found))
    step = [{k: v / (LONG - SHORT) for k, v in d.items()} for d in _less(long, short)]
    ring = 2 * (len(devices) - 1) / len(devices)  # What NCCL sends of each tensor.
    for i in devices:
        fake_gpu.reset_peak(i)
    run(LONG)
    return {
        "P": size,
        "to_device": sum(d["to_device_bytes"] for d in step) / batch,
        "between": sum(d["between_bytes"] + ring * d["nccl_bytes"] for d in step) / size,
        "to_host_bytes": max(d["to_host_bytes"] for d in step),
        "to_host": max(d["to_host"] for d in step),
        "kernels": max(d["kernels"] for d in step),
        "peaks": [fake_gpu.peak(i) / size for i in devices],
    }


def _counts(devices):
    return [fake_gpu.counts(i) for i in devices]


def _less(b, a):
    return [{k: y[k] - x[k] for k in x} for x, y in zip(a, b, strict=True)]


def table():
    print("| model | devices | | to devices | between | to host | peak |")
    print("|---|---|---|---|---|---|---|")
    for kind in MODELS:
        for num_devices in (1, 2, 4):
            for who, options in (
                ("keras", {}),
                ("kerasdist", {}),
                ("kerasdist", {"deterministic": True}),
            ):
                found = measure(who, num_devices, kind, **options)
                name = f"{who}, deterministic" if options else who
                print(
                    f"| {kind} | {num_devices} | {name} | {found['to_device']:.2f} B "
                    f"| {found['between']:.1f} P | {found['to_host_bytes']:.0f} bytes in "
                    f"{found['to_host']:.0f} copies | {max(found['peaks']):.1f} P |",
                    flush=True,
                )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        table()
    else:
        print(json.dumps(row(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
