"""Writes folders of images and of WAV files that are easy to tell apart, for tests."""

import wave
from pathlib import Path

import numpy as np
from PIL import Image

IMAGE_CLASSES = ("bar", "disc", "ring")


def drawn(name, random, shape=(24, 28)):
    """An image of a bar, a disc or a ring."""
    height, width = shape
    y, x = np.mgrid[:height, :width] / np.reshape(shape, (2, 1, 1))
    centre_y, centre_x = random.uniform(0.4, 0.6, 2)
    distance = np.hypot(y - centre_y, x - centre_x)
    inside = {
        "bar": np.abs(x - centre_x) < 0.08,
        "disc": distance < 0.3,
        "ring": np.abs(distance - 0.3) < 0.06,
    }[name]
    picture = np.where(inside, random.uniform(150, 255), random.uniform(0, 90))
    noise = random.normal(0, 15, (height, width, 3))
    return np.clip(picture[..., None] + noise, 0, 255).astype(np.uint8)


def write_images(folder, count, suffixes=(".png",), seed=0):
    """Writes `count` images of each class, in files with these suffixes in turn."""
    random = np.random.default_rng(seed)
    for name in IMAGE_CLASSES:
        (Path(folder) / name).mkdir(parents=True)
        for i in range(count):
            image = Image.fromarray(drawn(name, random))
            image.save(Path(folder) / name / f"{i}{suffixes[i % len(suffixes)]}")
    return Path(folder)


def write_wav(path, samples, rate, width=2, channels=1):
    """Writes samples from -1 to 1 as integers of `width` bytes."""
    values = np.clip(samples, -1, 1 - 1e-9)
    if width == 1:
        content = ((values + 1) * 128).astype(np.uint8).reshape(-1, 1)
    else:
        whole = (values * 2.0**31).astype("<i4").view(np.uint8).reshape(-1, 4)
        content = whole[:, 4 - width :]
    repeated = np.repeat(content[:, None], channels, axis=1)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(repeated.tobytes())


def write_sounds(folder, count, kinds=((8000, 2, 1),), seed=0):
    """Writes `count` low and high tones, in files of each `(rate, width, channels)` in turn."""
    random = np.random.default_rng(seed)
    for name, lowest in (("low", 200), ("high", 900)):
        (Path(folder) / name).mkdir(parents=True)
        for i in range(count):
            rate, width, channels = kinds[i % len(kinds)]
            time = np.arange(int(random.uniform(0.12, 0.2) * rate)) / rate
            tone = np.sin(2 * np.pi * random.uniform(1, 1.5) * lowest * time)
            noise = random.normal(0, 0.05, len(time))
            write_wav(Path(folder) / name / f"{i}.wav", 0.5 * tone + noise, rate, width, channels)
    return Path(folder)
