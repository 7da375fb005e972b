"""Reads sounds from one folder per class, or makes sounds to try the recipe with."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError

from .config import MADE_CLASSES, NUM_MADE, open_folder

EXAMPLE_SUFFIXES = (".wav", ".wave")


def build_data(config, split: str):
    """`(sound, label)` by index: the sounds of "train", "validation" or "test"."""
    if config.data_dir is not None:
        return getattr(open_folder(config), split)
    if split not in NUM_MADE:
        raise KerasdistError(
            f"Received the split {split!r}, but sounds are made for {', '.join(NUM_MADE)} only. "
            "Expected one of these. Name your sounds with `--data-dir`."
        )
    return make(NUM_MADE[split], reader(config), split)


def find_source(config) -> str:
    """Where the data comes from."""
    return "synthetic" if config.data_dir is None else "files"


def describe(config) -> dict[str, str]:
    """What was found in the data, to say before the training."""
    if config.data_dir is None:
        return {"found": f"no --data-dir: {', '.join(MADE_CLASSES)} tones are made"}
    found = open_folder(config).describe()
    return {**found, "augment": "moved in time, noise"} if config.augment else found


def reader(config) -> kerasdist.SoundReader:
    """How files are read."""
    return kerasdist.SoundReader(config.rate, config.seconds)


def build_augment(config):
    """Changes the training sounds at random. All randomness comes from `seed`."""
    if not config.augment:
        return None

    def augment(batch, seed):
        sounds, label = batch
        num, length = tf.shape(sounds)[0], tf.shape(sounds)[1]
        numbers = tf.random.stateless_uniform((num, 2), seed)
        # Move each sound by up to a tenth; zeros come in at its start or end.
        moved = tf.cast((0.2 * numbers[:, :1] - 0.1) * tf.cast(length, tf.float32), tf.int32)
        place = tf.range(length)[None] + moved
        is_inside = (place >= 0) & (place < length)
        sounds = tf.gather(sounds, tf.clip_by_value(place, 0, length - 1), axis=1, batch_dims=1)
        sounds *= tf.cast(is_inside, tf.float32)
        loudness = tf.reduce_max(tf.abs(sounds), axis=1, keepdims=True)
        noise = tf.random.stateless_normal(tf.shape(sounds), seed)
        return sounds + 0.02 * numbers[:, 1:] * loudness * noise, label

    return augment


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads WAV files as the network gets them, for `kerasdist predict`."""
    return {"samples": np.stack([reader(config).read(path) for path in paths])}


def decode_files(config, contents) -> dict[str, tf.Tensor]:
    """The same in the graph of an exported model, from the bytes of files."""
    return {"samples": reader(config).decode(contents)}


def describe_input(config) -> str:
    """What a program must give to an exported model."""
    return (
        f"samples from -1 to 1, mono, {config.rate:,} per second: {reader(config).length:,} of "
        "them, cut or filled up with zeros at the end; the model does the rest"
    )


def make(num_sounds: int, reader, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Makes tones that fall, rise or stay, with random length, pitch and noise."""
    random = np.random.default_rng(0 if split == "train" else 1)
    labels = random.integers(0, len(MADE_CLASSES), num_sounds)
    sounds = np.zeros((num_sounds, reader.length), np.float32)
    for sound, label in zip(sounds, labels, strict=True):
        length = int(random.uniform(0.4, 1) * reader.length)
        place = np.linspace(0, 1, length)
        change = {"falling": 2 - place, "rising": 1 + place, "steady": 0 * place + 1.5}
        pitch = random.uniform(300, 600) * change[MADE_CLASSES[label]]
        tone = np.sin(2 * np.pi * np.cumsum(pitch) / reader.rate)
        sound[:length] = (tone + random.normal(0, 0.1, length)) / 4
    return sounds, labels
