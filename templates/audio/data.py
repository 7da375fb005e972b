"""Reads sounds from one folder per class, or makes sounds to try the recipe with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError

# Your classes. Each is the name of a folder in --data-dir.
CLASS_NAMES = ("falling", "rising", "steady")
EXAMPLE_SUFFIXES = (".wav",)
# Every tenth file is for validation.
VALIDATION_EVERY = 10
NUM_MADE = {"train": 600, "validation": 200}


def build_data(config, split: str) -> kerasdist.Sequences:
    """The sounds of "train" or "validation" as frames, with their lengths and labels."""
    if config.data_dir is None:
        sounds, labels = make(NUM_MADE[split], config.rate, split)
    else:
        paths, labels = find_files(config, split)
        sounds = [read_sound(path, config.rate) for path in paths]
    frames = [log_mel(sound, config) for sound in sounds]
    return kerasdist.Sequences({"frames": frames, "label": np.array(labels)})


def num_examples(config) -> int:
    """The number of training sounds, which the learning rate schedule needs."""
    return NUM_MADE["train"] if config.data_dir is None else len(find_files(config, "train")[0])


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
    """Changes the training sounds at random. All randomness comes from `seed`."""

    def augment(batch, seed):
        # Silence four bands.
        num = tf.shape(batch["frames"])[0]
        first = tf.random.stateless_uniform((num, 1), seed, 0, config.mels, tf.int32)
        band = tf.range(config.mels)[None]
        heard = (band < first) | (band >= first + 4)
        return {**batch, "frames": batch["frames"] * tf.cast(heard, tf.float32)[:, None]}

    return augment


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads WAV files as the network gets them, for `kerasdist predict`."""
    frames = [log_mel(read_sound(path, config.rate), config) for path in paths]
    lengths = np.array([len(clip) for clip in frames], np.int32)
    padded = [np.pad(clip, ((0, lengths.max() - len(clip)), (0, 0))) for clip in frames]
    return {"frames": np.stack(padded), "length": lengths}


def read_sounds(config, split: str, positions) -> list[tuple[np.ndarray, int]]:
    """The sounds of some examples and their rate, for the players of the report."""
    if config.data_dir is None:
        sounds, _ = make(NUM_MADE[split], config.rate, split)
        return [(sounds[i], config.rate) for i in positions]
    paths, _ = find_files(config, split)
    return [(read_sound(paths[i], config.rate), config.rate) for i in positions]


def read_sound(path, rate: int) -> np.ndarray:
    """Reads the samples of a WAV file with one channel."""
    samples, found = tf.audio.decode_wav(tf.io.read_file(str(path)))
    if int(found) != rate or samples.shape[1] != 1 or not samples.shape[0]:
        raise KerasdistError(
            f"Received the file {str(path)!r} with {samples.shape[1]} channels of "
            f"{samples.shape[0]} samples, {int(found)} per second. Expected one channel, {rate} "
            "per second. Convert the file, or set `rate`."
        )
    return samples[:, 0].numpy()


def log_mel(samples: np.ndarray, config) -> np.ndarray:
    """Turns a sound into frames of 25 ms every 10 ms, with mean 0 and deviation 1."""
    length, step = config.rate // 40, config.rate // 100
    spectrum = tf.abs(tf.signal.stft(tf.constant(samples), length, step, pad_end=True))
    bands = tf.signal.linear_to_mel_weight_matrix(
        config.mels, spectrum.shape[-1], config.rate, 60.0, 0.48 * config.rate
    )
    frames = np.log(spectrum.numpy() ** 2 @ bands.numpy() + 1e-6)
    return ((frames - frames.mean()) / (frames.std() + 1e-3)).astype(np.float32)


def make(num_sounds: int, rate: int, split: str) -> tuple[list[np.ndarray], list[int]]:
    """Makes tones that fall, rise or stay, with random length, pitch and noise."""
    random = np.random.default_rng(0 if split == "train" else 1)
    sounds, labels = [], []
    for _ in range(num_sounds):
        label = int(random.integers(0, len(CLASS_NAMES)))
        place = np.linspace(0, 1, int(random.uniform(0.2, 0.5) * rate))
        change = {"falling": 2 - place, "rising": 1 + place, "steady": 0 * place + 1.5}
        pitch = random.uniform(300, 600) * change[CLASS_NAMES[label]]
        tone = np.sin(2 * np.pi * np.cumsum(pitch) / rate)
        sounds.append((tone + random.normal(0, 0.1, len(place))).astype(np.float32) / 4)
        labels.append(label)
    return sounds, labels
