"""Several workers train the same bits as one device, however they are started.

The quick tests start two workers twice. The slow ones train recipes, and start workers by hand
and in a user's program. docs/several-machines.md says what each shows.
"""

import os
import signal
import subprocess
import sys

import pytest

from kerasdist.devices.cluster import Cluster
from kerasdist.devices.ports import free_ports
from tests.devices.real_workers import (
    FIT,
    environment,
    finish,
    kerasdist,
    result,
    trained,
    wait_for_steps,
    workers_of,
)

slow = pytest.mark.slow


def on_workers(num_workers, recipe, run, *options, launch=()):
    launcher = kerasdist(
        "launch", "--workers", num_workers, *launch, "fit", recipe, *options, "--run-dir", run
    )
    output, code = finish(launcher)
    assert code == 0, output
    return trained(run)


def test_two_workers_train_the_bits_of_one_device(recipe, on_one_device, tmp_path):
    """Dropout, BatchNorm, Adam, an average of the weights, validation, an uneven last batch."""
    options = ("--epochs", "2", "--ema", "0.9", "--summary-every", "3", "--log-every", "1")
    one = on_one_device(tmp_path / "one", *options)
    run = tmp_path / "two"
    two = on_workers(2, recipe, run, *FIT, *options)
    assert two == one
    assert result(run)["devices"] == ["worker 0 CPU:0", "worker 1 CPU:0"]
    assert {p.name for p in run.iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "small", "two"]


def test_sigterm_to_one_worker_saves_and_stops_all_and_one_device_goes_on(
    recipe, on_one_device, tmp_path
):
    options = (*FIT, "--epochs", "8", "--log-every", "1")
    whole = on_one_device(tmp_path / "whole", *options)
    run = tmp_path / "run"
    launcher = kerasdist("launch", "--workers", 2, "fit", recipe, *options, "--run-dir", run)
    wait_for_steps(run, launcher)
    os.kill(workers_of(launcher)[1], signal.SIGTERM)
    output, code = finish(launcher)
    assert code == 143, output
    assert "saved after step" in output
    assert result(run)["status"] == "interrupted"
    assert on_one_device(run, *options) == whole


@slow
@pytest.mark.parametrize(
    ("num_workers", "shards", "devices"),
    [(2, 4, "1"), (2, 4, "2"), (3, 12, "1"), (3, 12, "2")],
)
@pytest.mark.parametrize("name", ["cifar10", "audio"])
def test_recipes_train_to_the_bits_of_one_device(name, num_workers, shards, devices, tmp_path):
    settings = {
        "cifar10": ("--preset", "tutorial", "--num-train", "96", "--num-validation", "40"),
        "audio": ("--steps", "4"),
    }[name]
    options = ("--source", "synthetic", "--batch-size", "48", *settings, "--epochs", "1")
    options += ("--deterministic", "--shards", str(shards))
    output, code = finish(kerasdist("fit", name, *options, "--run-dir", tmp_path / "one"), 900)
    assert code == 0, output
    run = tmp_path / "several"
    launcher = kerasdist(
        *("launch", "--workers", num_workers, "--worker-timeout", "120"),
        *("fit", name, *options, "--devices", devices, "--run-dir", run),
    )
    output, code = finish(launcher, 900)
    assert code == 0, output
    assert trained(run) == trained(tmp_path / "one")


@slow
def test_tf_config_by_hand_starts_a_run(recipe, on_one_device, tmp_path):
    """A chief with a folder that the other one does not write to, and no launcher."""
    one = on_one_device(tmp_path / "one", "--epochs", "2")
    hosts = [f"localhost:{port}" for port in free_ports(2)]
    own = [
        kerasdist(
            *("fit", recipe, *FIT, "--epochs", "2", "--run-dir", tmp_path / f"run{i}"),
            TF_CONFIG=Cluster(tuple(hosts), i).tf_config(),
        )
        for i in range(2)
    ]
    outputs = [finish(process) for process in own]
    assert [code for _, code in outputs] == [0, 0], outputs
    assert trained(tmp_path / "run0") == one
    assert not (tmp_path / "run1").exists()


PROGRAM = """
import hashlib, json, os, random, sys
import keras, numpy as np, tensorflow as tf
import kerasdist

index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
random.seed(index)  # Seeds of trainings are the chief's.
numbers = np.random.default_rng(0)
x, y = numbers.normal(size=(42, 6)).astype("float32"), numbers.integers(0, 3, 42)
options = dict(batch_size=16, epochs=3, shards=4, deterministic=True, progress=False)

class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))
    def result(self):
        return self.value

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and index == stopper:
            self.model.stop_training = True

stopper = 1 if "TF_CONFIG" in os.environ else 0

def build(metrics=("accuracy",), loss=None):
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=list(metrics))
    return model

def noise(batch, seed):
    x, y = batch
    return x + tf.random.stateless_normal(tf.shape(x), seed), y

def show(name, history):
    weights = b"".join(w.tobytes() for w in history.model.get_weights())
    print(name, hashlib.sha256(weights).hexdigest()[:12], history.history, flush=True)

stream = tf.data.Dataset.from_tensor_slices
show("augment", kerasdist.fit(build, (x, y), augment=noise, class_weight={0: 2.0}, **options))
show("stream", kerasdist.fit(build, stream((x, y)), validation_data=(x, y), **options))
show("gather", kerasdist.fit(lambda: build([Largest()]), (x, y), **options))
circle = lambda: build(loss=keras.losses.Circle())
show("whole", kerasdist.fit(circle, (x, y), validation_data=(x, y), **options))
history = kerasdist.fit(build, (x, y), callbacks=[Stop()], **options)
show("stopped", history)
assert len(history.epoch) == 2
model = history.model
outputs = kerasdist.predict(model, x, batch_size=5)
np.testing.assert_allclose(outputs, model(x).numpy(), rtol=1e-4, atol=1e-5)
results = kerasdist.evaluate(model, (x, y), batch_size=9)
print("evaluated", {k: round(v, 4) for k, v in results.items()}, outputs.shape)
"""


@slow
def test_a_program_of_ones_own_trains_streams_and_stops_on_all_workers(tmp_path):
    """Also augmentation, class weights, metrics and losses of whole batches, predict, evaluate."""
    hosts = tuple(f"localhost:{port}" for port in free_ports(2))
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(**environ):
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")],
            env=environment(TF_CPP_MIN_LOG_LEVEL="3", **environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines(process):
        output, code = finish(process)
        assert code == 0, output
        names = ("augment", "stream", "gather", "whole", "stopped", "evaluated")
        return [line for line in output.splitlines() if line.startswith(names)]

    own = [start(TF_CONFIG=Cluster(hosts, i).tf_config()) for i in range(2)]
    first, second = (lines(process) for process in own)
    assert len(first) == 6
    assert first == second == lines(start())
