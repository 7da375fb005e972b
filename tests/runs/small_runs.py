"""A small model trained in a run's folder, and what to compare of two runs."""

import json
import shutil
import time

import keras
import numpy as np

import kerasdist
from kerasdist.runs.checkpoints import Store

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(40, 4)).astype("float32")
Y = RANDOM.integers(0, 3, 40)
STEPS = 20  # 4 epochs of 5


def build():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


def fit(folder, **options):
    defaults = {
        "batch_size": 8,
        "epochs": 4,
        "save_every": 2,
        "log_every": 1,
        "deterministic": True,
        "seed": 0,
        "devices": 1,
        "shards": 1,  # compiles sooner
        "progress": "auto",
    }
    return kerasdist.fit(build, (X, Y), run_dir=folder, **{**defaults, **options})


class At(keras.callbacks.Callback):
    """Does something after some steps."""

    def __init__(self, actions):
        super().__init__()
        self.actions = actions

    def on_train_batch_end(self, batch, logs=None):
        self.actions.get(int(self.model.optimizer.iterations), lambda: None)()


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def remove_tree(folder):
    """Also while somebody else removes files in it."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def saved(folder, step):
    """Whether a checkpoint is there, and what was to be removed after it is gone."""

    def is_saved():
        checkpoints = folder / "checkpoints"
        steps = Store(checkpoints).steps()
        return step in steps and len(steps) <= 2 and not list(checkpoints.glob("tmp-*"))

    return is_saved


def digest(folder):
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished"
    return result["weights_sha256"]


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = ("examples_per_second", "input_wait")
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


def assert_like(folder, whole):
    assert digest(folder) == digest(whole)
    for name in ("best.keras", "final.keras"):
        weights = [keras.models.load_model(run / name).get_weights() for run in (folder, whole)]
        for a, b in zip(*weights, strict=True):
            np.testing.assert_array_equal(a, b)
