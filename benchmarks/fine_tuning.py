"""Compares fine-tuning with training from scratch, with 20 pictures per class.

python benchmarks/fine_tuning.py --data-dir FOLDER   # the folder of CIFAR-10's .bin files

For each seed, a MobileNetV2 is trained on the first five classes of CIFAR-10 and its weights are
saved to a file. Then three networks learn the other five classes from 20 pictures each: one from
scratch; one with the backbone of the file, frozen; and this one again, unfrozen at a lower rate.
All have the same augmentation, and each is evaluated on the 5,000 test pictures of these classes.
The same command resumes where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from facts import about, as_line

import kerasdist

ROOT = Path(__file__).parent.parent
PER_CLASS = 20
WAYS = ("from scratch", "frozen", "frozen, then unfrozen")


def read(folder: Path, names: list[str], classes: range) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels from 0 of some classes."""
    content = np.concatenate([np.fromfile(folder / name, np.uint8) for name in names])
    rows = content.reshape(-1, 3073)
    rows = rows[np.isin(rows[:, 0], classes)]
    pictures = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pictures), rows[:, 0].astype("int32") - classes.start


def few(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """20 pictures of each class."""
    order = np.random.default_rng(seed).permutation(len(y))
    chosen = np.concatenate([order[y[order] == c][:PER_CLASS] for c in range(5)])
    return x[chosen], y[chosen]


def backbone_of(pixels: int) -> keras.Model:
    backbone = keras.applications.MobileNetV2(
        (pixels, pixels, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"
    )
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # Keras's 0.999 is too slow for a training from scratch as short.
    return backbone


def assembled(backbone: keras.Model, pixels: int) -> keras.Model:
    image = keras.Input((32, 32, 3), dtype="uint8")
    x = keras.layers.RandomFlip("horizontal")(image)
    x = keras.layers.Resizing(pixels, pixels)(x)
    x = keras.layers.Rescaling(1 / 127.5, -1)(x)
    x = backbone(x)
    x = keras.layers.Dropout(0.2)(x)
    return keras.Model(image, keras.layers.Dense(5, name="head")(x))


def compiled(model: keras.Model, rate: float, steps: int) -> keras.Model:
    optimizer = kerasdist.optimizer(
        "adamw", learning_rate=rate, schedule="cosine", warmup_steps=10, total_steps=steps
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def fit(model: keras.Model, x: Any, y: Any, rate: float, **options: Any) -> float:
    """Trains a model. Returns the seconds."""
    size, epochs = options["batch_size"], options["epochs"]
    began = time.perf_counter()
    compiled(model, rate, kerasdist.count_steps(len(x), size, epochs))
    kerasdist.fit(model, x, y, verbose=2, save_every="60s", **options)
    return time.perf_counter() - began


def pretrain(given: argparse.Namespace, seed: int) -> Path:
    """Trains a backbone on the first five classes. Returns the file of its weights."""
    file = given.runs / f"backbone-{seed}.weights.h5"
    if file.exists():
        return file
    keras.utils.set_random_seed(seed)
    backbone = backbone_of(given.pixels)
    model = assembled(backbone, given.pixels)
    x, y = read(given.data_dir, [f"data_batch_{i}.bin" for i in range(1, 6)], range(5))
    x, y = x[: given.pictures], y[: given.pictures]
    run = given.runs / f"pretraining-{seed}"
    options = {"batch_size": 128, "epochs": given.epochs, "seed": seed, "run_dir": run}
    seconds = fit(model, x, y, 4e-3, **options)
    accuracy = evaluate(model, given, range(5))
    print(f"pre-trained in {seconds:.0f} s: {accuracy:.1%} of the first five classes", flush=True)
    backbone.save_weights(file)
    return file


def evaluate(model: keras.Model, given: argparse.Namespace, classes: range) -> float:
    x, y = read(given.data_dir, ["test_batch.bin"], classes)
    return kerasdist.evaluate(model, x, y, batch_size=250, verbose=0)["accuracy"]


def compare(given: argparse.Namespace, seed: int) -> dict[str, float]:
    """The accuracy of each way, on the other five classes."""
    result = given.runs / f"result-{seed}.json"
    if result.exists():
        return json.loads(result.read_text())
    file = pretrain(given, seed)
    x, y = read(given.data_dir, [f"data_batch_{i}.bin" for i in range(1, 6)], range(5, 10))
    x, y = few(x, y, seed)
    options = {"batch_size": 20, "seed": seed}
    found = {}

    keras.utils.set_random_seed(seed)
    model = assembled(backbone_of(given.pixels), given.pixels)
    fit(model, x, y, 2e-3, epochs=120, run_dir=given.runs / f"scratch-{seed}", **options)
    found[WAYS[0]] = evaluate(model, given, range(5, 10))

    keras.utils.set_random_seed(seed)
    backbone = backbone_of(given.pixels)
    model = assembled(backbone, given.pixels)
    print(kerasdist.load_weights(backbone, file).summary().splitlines()[0])
    backbone.trainable = False
    fit(model, x, y, 1e-2, epochs=60, run_dir=given.runs / f"frozen-{seed}", **options)
    found[WAYS[1]] = evaluate(model, given, range(5, 10))
    backbone.trainable = True
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False  # Few examples say little about statistics.
    fit(model, x, y, 5e-4, epochs=60, run_dir=given.runs / f"unfrozen-{seed}", **options)
    found[WAYS[2]] = evaluate(model, given, range(5, 10))
    result.write_text(json.dumps(found, indent=2) + "\n")
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pixels", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=4, help="of the pre-training")
    parser.add_argument("--pictures", type=int, default=25_000, help="of the pre-training")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "fine-tuning")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    rows = [compare(given, seed) for seed in given.seeds]
    print(f"\n{as_line(about())}\n")
    print(f"| 20 pictures per class | {' | '.join(f'seed {s}' for s in given.seeds)} | mean |")
    print("|---" * (len(rows) + 2) + "|")
    for way in WAYS:
        values = [row[way] for row in rows]
        cells = [f"{value:.1%}" for value in (*values, statistics.mean(values))]
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
