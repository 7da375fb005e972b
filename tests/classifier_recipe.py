"""A recipe of three small files that classifies 6 by 6 images."""

CONFIG = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    batch_size: int = 16
    epochs: int = 3
    data_is_gone: str = ""
"""
# The class is the row with the bright stripe; every third example is hard.
DATA = """
from pathlib import Path

import numpy as np

CLASS_NAMES = ("low", "middle", "high")
EXAMPLE_SUFFIXES = (".txt",)


def build_data(config, split):
    if config.data_is_gone and Path(config.data_is_gone).exists():
        raise FileNotFoundError("the data is gone")
    random = np.random.default_rng(split == "train")
    label = random.integers(0, 3, 100)
    image = random.integers(0, 100, (100, 6, 6, 1))
    image[np.arange(100), 2 * label] += np.where(np.arange(100) % 3, 100, 20)[:, None, None]
    return {"image": image.astype("uint8"), "label": label}


def build_groups(config, split):
    return {"speaker": ["ann" if i % 3 else "bob" for i in range(100)]}


def build_views(config):
    return lambda image: [image, image[:, :, ::-1], (image + 3,)]


def read_examples(config, paths):
    images = [np.loadtxt(path).reshape(6, 6, 1) for path in paths]
    return {"image": np.stack(images).astype("uint8")}
"""
MODEL = '''
"""A small classifier."""
import keras

import kerasdist


@keras.saving.register_keras_serializable("classifier_recipe")
class Small(kerasdist.Model):
    features = "image"
    targets = "label"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.out = keras.layers.Dense(3)

    def call(self, image):
        return self.out(keras.ops.reshape(image, (-1, 36)) / 100)

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return dict(optimizer=keras.optimizers.Adam(0.05), loss=loss, metrics=["accuracy"])


def build_model(config):
    return Small()
'''
# With layers of its own, for exports.
BLOCKS = '''
"""A small classifier with layers of its own."""
import keras

import kerasdist


class Scaled(keras.layers.Layer):
    """Has a weight of its own, and a layer that is called "dense" in each copy."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(8, name="dense")
        self.norm = keras.layers.BatchNormalization(name="norm")

    def build(self, shape):
        self.scale = self.add_weight(shape=(8,), initializer="ones", name="scale")

    def call(self, x, training=False):
        return keras.ops.gelu(self.norm(self.dense(x), training=training)) * self.scale


@keras.saving.register_keras_serializable("classifier_recipe")
class Blocks(kerasdist.Model):
    features = "image"
    targets = "label"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv = keras.layers.Conv2D(8, 3, padding="same")
        self.blocks = [Scaled(), Scaled()]
        self.dropout = keras.layers.Dropout(0.1)
        self.out = keras.layers.Dense(3, name="logits")

    def call(self, image, training=False):
        x = self.conv((keras.ops.cast(image, "float32") - 50.0) / 100.0)
        for block in self.blocks:
            x = block(x, training=training)
        x = keras.ops.reshape(keras.ops.max(x, axis=2), (-1, 6 * 8))
        return self.out(self.dropout(x, training=training))

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return dict(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])


def build_model(config):
    return Blocks()
'''


def write(folder, **other):
    """Writes the recipe, with other files in the place of some."""
    folder.mkdir()
    for name, content in {"config": CONFIG, "data": DATA, "model": MODEL, **other}.items():
        (folder / f"{name}.py").write_text(content)
    return folder
