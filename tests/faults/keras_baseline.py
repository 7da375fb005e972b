"""The recipe of the fault tests trained by Keras's own `fit` with BackupAndRestore.

It prints and writes what the harness reads of `kerasdist fit`: a line a step, what it went on
from, result.json with the hash of the weights.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

import kerasdist
from kerasdist.runs.trained_model import weights_sha256

RECIPE = Path(__file__).parent / "recipe"


class ForKeras(keras.Model):
    """The recipe's model. Keras's `fit` gives all fields in one argument."""

    def __init__(self, inner: keras.Model):
        super().__init__()
        self.inner = inner

    def call(self, fields, training=False):
        return self.inner(fields["image"], fields["index"], training=training)


class Backup(keras.callbacks.BackupAndRestore):
    """Keras's own, and a mark in the run's folder while it writes: the harness aims at it."""

    def __init__(self, run: Path, save_freq: int | str):
        # With the double checkpoint: the most that Keras offers against a kill while it writes.
        super().__init__(str(run / "backup"), save_freq=save_freq, double_checkpoint=True)
        self._mark = run / "checkpoints" / f"tmp-keras-{os.getpid()}"

    def _save_model(self):
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        super()._save_model()
        self._mark.unlink()


class Lines(keras.callbacks.Callback):
    """Says what happens. Comes after the backup, which restores in `on_train_begin`."""

    def on_train_begin(self, logs=None):
        if step := int(self.model.optimizer.iterations):
            epoch = self.model._initial_epoch or 0
            print(f"continuing after step {step} in epoch {epoch}", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        print(f"step {step}, loss = {logs['loss']:.4f}", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch + 1}", flush=True)


def build_dataset(recipe: kerasdist.Recipe, split: str) -> tf.data.Dataset:
    """Shuffled by a seed, augmented by a seed for each batch: nothing in it needs to be saved."""
    dataset = tf.data.Dataset.from_tensor_slices(recipe.build_data(split))
    config = recipe.config
    if split == "train":
        dataset = dataset.shuffle(config.num_train, seed=config.seed)
    dataset = dataset.batch(config.batch_size)
    if split == "train":
        augment = recipe.build_augment()
        dataset = dataset.enumerate().map(lambda i, batch: augment(batch, tf.stack([0, i])))
    return dataset.map(lambda batch: (batch, batch["label"]))


def build_model(recipe: kerasdist.Recipe, dataset: tf.data.Dataset) -> keras.Model:
    """The recipe's model, built: BackupAndRestore needs its variables."""
    inner = recipe.build_model()
    model = ForKeras(inner)
    options = inner.defaults()
    schedule = keras.optimizers.schedules.deserialize(
        options["optimizer"].get_config()["learning_rate"]
    )
    options["optimizer"] = keras.optimizers.Adam(
        schedule, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9
    )
    # XLA cannot compile the note of the examples.
    model.compile(**options, jit_compile=False)
    model(next(iter(dataset))[0])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--trained-on", default="")
    parser.add_argument("--save-freq", default="3", help="batches, or epoch")
    arguments = parser.parse_args()
    run, save_freq = arguments.run_dir, arguments.save_freq
    recipe = kerasdist.load_recipe(RECIPE, trained_on=arguments.trained_on, pause=0.005)
    keras.utils.set_random_seed(recipe.config.seed)
    tf.config.experimental.enable_op_determinism()
    dataset = build_dataset(recipe, "train")
    model = build_model(recipe, dataset)
    backup = Backup(run, save_freq if save_freq == "epoch" else int(save_freq))
    model.fit(
        dataset,
        validation_data=build_dataset(recipe, "validation"),
        epochs=recipe.config.epochs,
        callbacks=[backup, Lines()],
        verbose=0,
    )
    result = {
        "status": "finished",
        "steps": int(model.optimizer.iterations),
        "weights_sha256": weights_sha256(model),
    }
    run.mkdir(parents=True, exist_ok=True)
    draft = run / ".result.json"
    draft.write_text(json.dumps(result))
    draft.rename(run / "result.json")


if __name__ == "__main__":
    main()
