"""A small training on fake GPUs, in a process of its own, in which one GPU fails.

`python -m tests.gpu.faulty_run '{"run_dir": ..., "fault": "stop", "device": 1, "step": 5}'` prints
the weights' hash at the end. Without a fault it trains undisturbed.
"""

import json
import os
import sys
import threading
import time

from tests.gpu import fake_gpu

if __name__ == "__main__":
    fake_gpu.load()  # Before TensorFlow starts.

import keras
import numpy as np
import tensorflow as tf

import kerasdist

_taken = []
_seen = []  # Not in the callback, whose numbers are saved and restored.


def take_memory(device):
    """As another program would. TensorFlow waits 10 s in vain for what does not fit (2.21)."""
    total = int(os.environ["KERASDIST_FAKE_GPU_MB"]) * 2**20
    while tf.config.experimental.get_memory_info(f"GPU:{device}")["current"] < total - 2**19:
        try:
            with tf.device(f"GPU:{device}"):
                _taken.append(tf.zeros([2**16]))
        except tf.errors.ResourceExhaustedError:
            return  # What is left is in smaller pieces.


class Fault(keras.callbacks.Callback):
    def __init__(self, *, fault, device, step, delay=None, **_):
        super().__init__()
        self.strike = {"stop": fake_gpu.stop, "memory": take_memory}[fault]
        self.device, self.step, self.delay = device, step, delay

    def on_train_batch_end(self, batch, logs=None):
        _seen.append(batch)
        if len(_seen) != self.step:
            return
        if self.delay is None:
            self.now()
        else:
            threading.Timer(self.delay, self.now).start()

    def now(self):
        self.strike(self.device)
        # The clock of all processes.
        print(json.dumps({"struck": time.monotonic()}), flush=True)


def build():
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(1024, "relu"), keras.layers.Dense(10)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def data(count=512):
    random = np.random.default_rng(0)
    x = random.normal(size=(count, 64)).astype("float32")
    return x, x[:, :10].copy()


def main(options):
    callbacks = [Fault(**options)] if options.get("fault") else []
    kerasdist.fit(
        build,
        data(),
        batch_size=64,
        epochs=2,
        seed=0,
        deterministic=True,
        devices=options.get("devices", "auto"),
        run_dir=options["run_dir"],
        save_every=4,
        callbacks=callbacks,
        progress=False,
    )
    print(json.dumps({"ended": True}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
