"""Reads images from one folder per class, or draws images to try the recipe with."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError

from .config import DRAWN_CLASSES, NUM_DRAWN, open_folder

EXAMPLE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def build_data(config, split: str):
    """`(image, label)` by index: the images of "train", "validation" or "test"."""
    if config.data_dir is not None:
        return getattr(open_folder(config), split)
    if split not in NUM_DRAWN:
        raise KerasdistError(
            f"Received the split {split!r}, but images are drawn for {', '.join(NUM_DRAWN)} only. "
            "Expected one of these. Name your images with `--data-dir`."
        )
    return draw(NUM_DRAWN[split], config.shape, split)


def find_source(config) -> str:
    """Where the data comes from."""
    return "synthetic" if config.data_dir is None else "files"


def describe(config) -> dict[str, str]:
    """What was found in the data, to say before the training."""
    if config.data_dir is None:
        return {"found": f"no --data-dir: images of {', '.join(DRAWN_CLASSES)} are drawn"}
    found = open_folder(config).describe()
    changes = "shifts, zoom and brightness" + (", left and right swapped" if config.flip else "")
    return {**found, "augment": changes} if config.augment else found


def build_augment(config):
    """Changes the training images at random. All randomness comes from `seed`."""
    if not config.augment:
        return None
    height, width = config.shape

    def augment(batch, seed):
        images, label = batch
        images = tf.cast(images, tf.float32)
        if config.flip:
            images = tf.image.stateless_random_flip_left_right(images, seed)
        num = tf.shape(images)[0]
        # Cut a box with 85% of each side or more, anywhere, and resize it.
        numbers = tf.random.stateless_uniform((num, 4), seed)
        side = 0.85 + 0.15 * numbers[:, :1]
        corner = numbers[:, 1:3] * (1 - side)
        boxes = tf.concat([corner, corner + side], axis=1)
        images = tf.image.crop_and_resize(images, boxes, tf.range(num), (height, width))
        images *= 0.8 + 0.4 * numbers[:, 3, None, None, None]
        return tf.cast(tf.clip_by_value(tf.round(images), 0, 255), tf.uint8), label

    return augment


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads image files as the network gets them, for `kerasdist predict`."""
    reader = kerasdist.ImageReader(config.shape)
    return {"image": np.stack([reader.read(path) for path in paths])}


def decode_files(config, contents) -> dict[str, tf.Tensor]:
    """The same in the graph of an exported model, from the bytes of files."""
    return {"image": kerasdist.ImageReader(config.shape).decode(contents)}


def describe_input(config) -> str:
    """What a program must give to an exported model."""
    height, width = config.shape
    return (
        f"RGB images as bytes (0 to 255), resized to {width} x {height} (width x height); the "
        "model does the rest"
    )


def draw(num_images: int, shape: tuple[int, int], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Draws bars, discs and rings at random places, in random colours, with noise."""
    random = np.random.default_rng(0 if split == "train" else 1)
    labels = random.integers(0, len(DRAWN_CLASSES), num_images)
    height, width = shape
    y, x = np.mgrid[:height, :width] / np.reshape(shape, (2, 1, 1))
    images = np.empty((num_images, height, width, 3), np.uint8)
    for image, label in zip(images, labels, strict=True):
        centre_y, centre_x = random.uniform(0.35, 0.65, 2)
        radius = random.uniform(0.2, 0.3)
        distance = np.hypot(y - centre_y, x - centre_x)
        inside = {
            "bar": (np.abs(x - centre_x) < 0.08) & (np.abs(y - centre_y) < radius),
            "disc": distance < radius,
            "ring": np.abs(distance - radius) < 0.06,
        }[DRAWN_CLASSES[label]]
        ground, colour = random.uniform(0, 90, 3), random.uniform(140, 255, 3)
        picture = np.where(inside[..., None], colour, ground)
        image[:] = np.clip(picture + random.normal(0, 20, image.shape), 0, 255)
    return images, labels
