"""Runs one contestant of speed.py: trains a round of steps for each line on standard input.

python benchmarks/contestants.py CONTESTANT WORKLOAD DEVICES STEPS

The first round starts by itself and compiles. After that, each input line starts a round of STEPS
steps, and the process prints how many seconds it took. All contestants of a workload have the same
layers, optimizer and batch size, and read shuffled batches of the same arrays in memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As kerasdist sets it.


class Rounds:
    """Waits for a line before each round, and prints how long the round took."""

    def __init__(self, steps: int):
        self.steps = steps
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # Everything else that is printed goes to standard error.
        self._began = time.perf_counter()
        self._is_warm = False

    def begin(self) -> bool:
        if self._is_warm and not sys.stdin.readline().strip():
            return False
        self._began = time.perf_counter()
        return True

    def end(self) -> None:
        seconds = time.perf_counter() - self._began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {"seconds": seconds, "memory": memory, "now": _memory_now()}
        print(json.dumps(answer), file=self._answers, flush=True)
        self._is_warm = True

    def callback(self):
        """A callback for Keras and kerasdist, where each epoch is a round."""
        import keras

        rounds = self

        class Callback(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if not rounds.begin():
                    os._exit(0)

            def on_epoch_end(self, epoch, logs=None):
                rounds.end()

        return Callback()


def _memory_now() -> int:
    """Resident memory of this process in bytes; 0 where the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


class Mlp:
    """16-64-10, Adam, batches of 32: so small that a step is almost only overhead."""

    batch_size, num_examples = 32, 64_000

    @staticmethod
    def data() -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(0)
        x = random.normal(size=(Mlp.num_examples, 16)).astype("float32")
        return x, random.integers(0, 10, Mlp.num_examples)

    @staticmethod
    def keras():
        import keras

        model = keras.Sequential(
            [
                keras.Input((16,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
        return model

    @staticmethod
    def torch():
        import torch

        return torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )


class Convolutions:
    """The layers of the CIFAR-10 tutorial without its normalisation, batches of 128 images."""

    batch_size, num_examples = 128, 12_800

    @staticmethod
    def data() -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(0)
        x = random.normal(size=(Convolutions.num_examples, 24, 24, 3)).astype("float32")
        return x, random.integers(0, 10, Convolutions.num_examples)

    @staticmethod
    def keras():
        import keras

        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((24, 24, 3)),
                layers.Conv2D(64, 5, padding="same", activation="relu"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Conv2D(64, 5, padding="same", activation="relu"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Flatten(),
                layers.Dense(384, activation="relu"),
                layers.Dense(192, activation="relu"),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
        return model

    @staticmethod
    def torch():
        import torch
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(3, 64, 5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Conv2d(64, 64, 5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * 36, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, 10),
        ).to(memory_format=torch.channels_last)


class Recurrent:
    """The recurrent layers of recipes/audio on 2,700 clips of equal length, batches of 64."""

    batch_size, num_examples = 64, 2_700

    @staticmethod
    def data() -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(0)
        x = random.normal(size=(Recurrent.num_examples, 30, 160)).astype("float32")
        return x, random.integers(0, 10, Recurrent.num_examples)

    @staticmethod
    def keras():
        import keras

        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((30, 160)),
                layers.Bidirectional(layers.GRU(96, return_sequences=True)),
                layers.Bidirectional(layers.GRU(96, return_sequences=True)),
                layers.GlobalAveragePooling1D(),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
        return model

    @staticmethod
    def torch():
        from torch import nn

        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.recurrent = nn.GRU(160, 96, 2, batch_first=True, bidirectional=True)
                self.logits = nn.Linear(192, 10)

            def forward(self, x):
                return self.logits(self.recurrent(x)[0].mean(1))

        return Network()


def deep(num_variables: int) -> type:
    """A chain of small layers that has `num_variables` variables in all."""

    class Deep(Mlp):
        @staticmethod
        def keras():
            import keras

            hidden = [keras.layers.Dense(16) for _ in range(num_variables // 2 - 1)]
            model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(10)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(1e-4), loss, metrics=["accuracy"])
            return model

    return Deep


WORKLOADS = {
    "mlp": Mlp,
    "convolutions": Convolutions,
    "recurrent": Recurrent,
    **{f"variables-{n}": deep(n) for n in (10, 100, 1000)},
}
# More epochs than are ever run: the process exits when its input ends.
FOREVER = 1_000_000


def kerasdist(workload: Any, devices: int, rounds: Rounds, **options: Any) -> None:
    """`kerasdist.fit` on arrays."""
    import kerasdist as package

    package.logical_cpus(devices)
    # Repeat rows so that each pass over the data is a whole number of rounds.
    x, y = workload.data()
    num_rows = rounds.steps * workload.batch_size
    rows = np.arange(max(1, len(x) // num_rows) * num_rows) % len(x)
    package.fit(
        workload.keras(),
        (x[rows], y[rows]),
        batch_size=workload.batch_size,
        steps_per_epoch=rounds.steps,
        epochs=FOREVER,
        devices=devices,
        **options,
        callbacks=[rounds.callback()],
        progress=False,
    )


def four_shards(workload: Any, devices: int, rounds: Rounds) -> None:
    """`kerasdist.fit` with the 4 shards of `deterministic=True`, but not deterministic."""
    kerasdist(workload, devices, rounds, shards=4)


def deterministic(workload: Any, devices: int, rounds: Rounds) -> None:
    """`kerasdist.fit` with `deterministic=True`."""
    kerasdist(workload, devices, rounds, deterministic=True)


def keras(workload: Any, devices: int, rounds: Rounds) -> None:
    """Keras's own `fit`, on several devices with MirroredStrategy."""
    strategy = _strategy(devices)
    with strategy.scope():
        model = workload.keras()
    model.fit(
        _dataset(workload),
        steps_per_epoch=rounds.steps,
        epochs=FOREVER,
        verbose=0,
        callbacks=[rounds.callback()],
    )


def _strategy(devices: int):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, logical)
    if devices == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def _dataset(workload: Any):
    import tensorflow as tf

    x, y = workload.data()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(workload.batch_size)
    return data.repeat().prefetch(tf.data.AUTOTUNE)


def bare(workload: Any, devices: int, rounds: Rounds) -> None:
    """A compiled loop over a dataset, written by hand: forward pass, gradient, Keras's optimizer,
    loss, accuracy and a check that all is finite. On several devices it uses `strategy.run`."""
    import tensorflow as tf

    strategy = _strategy(devices)
    with strategy.scope():
        model = workload.keras()
        model.optimizer.build(model.trainable_variables)
        total, correct, count = (tf.Variable(0.0, trainable=False) for _ in range(3))
    variables = model.trainable_variables
    loss_of = model.loss

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
        gradients = tape.gradient(loss, [v.value for v in variables])
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
        tf.debugging.Assert(finite & tf.math.is_finite(loss), ["not finite"])
        model.optimizer.apply(gradients, variables)
        total.assign_add(loss)
        right = tf.equal(tf.argmax(logits, axis=1), tf.cast(y, tf.int64))
        correct.assign_add(tf.reduce_sum(tf.cast(right, tf.float32)))
        count.assign_add(tf.cast(tf.shape(y)[0], tf.float32))

    data = _dataset(workload)
    if devices > 1:
        data = strategy.experimental_distribute_dataset(data)
    iterator = iter(data)

    @tf.function
    def loop(iterator, steps):
        for _ in tf.range(steps):
            strategy.run(step, args=(next(iterator),))

    while rounds.begin():
        loop(iterator, tf.constant(rounds.steps))
        (correct / count).numpy()
        rounds.end()


def _torch_parts(workload: Any):
    import torch

    torch.manual_seed(0)
    x, y = (torch.from_numpy(array) for array in workload.data())
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    model = workload.torch()
    kind = torch.optim.SGD if workload is Convolutions else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=0.01 if workload is Convolutions else 0.001)
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, workload.batch_size, shuffle=True)
    return model, optimizer, loader


def _endless(loader):
    while True:
        yield from loader


def torch(workload: Any, devices: int, rounds: Rounds, *, by_accelerate: bool = False) -> None:
    """The loop of PyTorch's tutorial, with a DataLoader."""
    from torch.nn.functional import cross_entropy

    model, optimizer, loader = _torch_parts(workload)
    backward = None
    if by_accelerate:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        backward = accelerator.backward
    batches = _endless(loader)
    while rounds.begin():
        total, right, count = 0.0, 0, 0
        for _, (x, y) in zip(range(rounds.steps), batches, strict=False):
            optimizer.zero_grad()
            logits = model(x)
            loss = cross_entropy(logits, y)
            backward(loss) if backward is not None else loss.backward()
            optimizer.step()
            total += loss.detach()
            right += (logits.argmax(1) == y).sum()
            count += len(y)
        float(total), float(right) / count
        rounds.end()


def accelerate(workload: Any, devices: int, rounds: Rounds) -> None:
    """The loop of `torch`, prepared by Accelerate."""
    torch(workload, devices, rounds, by_accelerate=True)


def lightning(workload: Any, devices: int, rounds: Rounds) -> None:
    """Lightning's Trainer with default settings, but without files and without a progress bar."""
    import lightning as package
    from torch.nn.functional import cross_entropy

    model, optimizer, loader = _torch_parts(workload)

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            x, y = batch
            logits = self.model(x)
            loss = cross_entropy(logits, y)
            self.log("loss", loss, on_step=False, on_epoch=True)
            right = (logits.argmax(1) == y).float().mean()
            self.log("accuracy", right, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return optimizer

    class Callback(package.Callback):
        def on_train_epoch_start(self, trainer, module):
            if not rounds.begin():
                os._exit(0)

        def on_train_epoch_end(self, trainer, module):
            rounds.end()

    class Endless:
        def __iter__(self):
            return _endless(loader)

    trainer = package.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        limit_train_batches=rounds.steps,
        callbacks=[Callback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), Endless())


CONTESTANTS: dict[str, Callable] = {
    "kerasdist": kerasdist,
    "four-shards": four_shards,
    "deterministic": deterministic,
    "keras": keras,
    "bare": bare,
    "torch": torch,
    "accelerate": accelerate,
    "lightning": lightning,
}


def main() -> None:
    contestant, workload, devices, steps = sys.argv[1:]
    rounds = Rounds(int(steps))
    CONTESTANTS[contestant](WORKLOADS[workload], int(devices), rounds)


if __name__ == "__main__":
    main()
