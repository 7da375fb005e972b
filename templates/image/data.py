"""Reads images from one folder per class, or draws images to try the recipe with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from kerasdist import KerasdistError

# Your classes. Each is the name of a folder in --data-dir.
CLASS_NAMES = ("bar", "disc", "ring")
EXAMPLE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
# Every tenth file is for validation.
VALIDATION_EVERY = 10
NUM_DRAWN = {"train": 600, "validation": 200}


def build_data(config, split: str) -> dict[str, np.ndarray]:
    """The images and labels of "train" or "validation"."""
    if config.data_dir is None:
        return draw(NUM_DRAWN[split], config.image_size, split)
    paths, labels = find_files(config, split)
    return {**read_examples(config, paths), "label": np.array(labels)}


def num_examples(config) -> int:
    """The number of training images, which the learning rate schedule needs."""
    return NUM_DRAWN["train"] if config.data_dir is None else len(find_files(config, "train")[0])


def find_files(config, split: str) -> tuple[list[Path], list[int]]:
    """The files of a split and their classes."""
    paths, labels = [], []
    for label, name in enumerate(CLASS_NAMES):
        folder = Path(config.data_dir).expanduser() / name
        found = sorted(p for p in folder.glob("*") if p.suffix.lower() in EXAMPLE_SUFFIXES)
        validation = found[::VALIDATION_EVERY]
        chosen = validation if split == "validation" else sorted({*found} - {*validation})
        if not chosen:
            raise KerasdistError(
                f"Received `data_dir` {config.data_dir!r}, whose folder {name!r} has no file for "
                f"the {split} data. Expected one folder of files per class. Correct `data_dir`, or "
                "`CLASS_NAMES` in data.py."
            )
        paths += chosen
        labels += [label] * len(chosen)
    return paths, labels


def build_augment(config):
    """Changes the training images at random. All randomness comes from `seed`."""

    def augment(batch, seed):
        flipped = tf.image.stateless_random_flip_left_right(batch["image"], seed)
        return {**batch, "image": flipped}

    return augment


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads image files as the network gets them, also for `kerasdist predict`."""
    images = []
    for path in paths:
        image = tf.io.decode_image(tf.io.read_file(str(path)), channels=3, expand_animations=False)
        image = tf.image.resize(image, (config.image_size, config.image_size), antialias=True)
        images.append(tf.cast(tf.round(image), tf.uint8).numpy())
    return {"image": np.stack(images)}


def draw(num_images: int, size: int, split: str) -> dict[str, np.ndarray]:
    """Draws bars, discs and rings at random places, in random colours, with noise."""
    random = np.random.default_rng(0 if split == "train" else 1)
    labels = random.integers(0, len(CLASS_NAMES), num_images)
    y, x = np.mgrid[:size, :size] / size
    images = np.empty((num_images, size, size, 3), np.uint8)
    for image, label in zip(images, labels, strict=True):
        centre_y, centre_x = random.uniform(0.35, 0.65, 2)
        radius = random.uniform(0.2, 0.3)
        distance = np.hypot(y - centre_y, x - centre_x)
        inside = {
            "bar": (np.abs(x - centre_x) < 0.08) & (np.abs(y - centre_y) < radius),
            "disc": distance < radius,
            "ring": np.abs(distance - radius) < 0.06,
        }[CLASS_NAMES[label]]
        ground, colour = random.uniform(0, 90, 3), random.uniform(140, 255, 3)
        picture = np.where(inside[..., None], colour, ground)
        image[:] = np.clip(picture + random.normal(0, 20, image.shape), 0, 255)
    return {"image": images, "label": labels}
