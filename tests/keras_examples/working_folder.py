"""What example scripts expect in their folder: what their shell commands would have unpacked."""

import numpy as np

from tests.keras_examples.synthetic.words import sentences


def fill(folder):
    """Writes made-up reviews and pictures of captchas into an empty folder."""
    random = np.random.default_rng(0)
    _reviews(folder / "aclImdb", random)
    _captchas(folder / "captcha_images_v2", random)


def _reviews(folder, random):
    for part in ("train/pos", "train/neg", "train/unsup", "test/pos", "test/neg"):
        (folder / part).mkdir(parents=True)
        for row, text in enumerate(sentences(80, random, 40)):
            (folder / part / f"{row}_7.txt").write_text(text, encoding="utf-8")


def _captchas(folder, random):
    from PIL import Image

    folder.mkdir()
    for _ in range(160):
        name = "".join(random.choice(list("2345678bcdefgmnpwxy"), 5))
        pixels = random.integers(0, 256, (50, 200), dtype="uint8")
        Image.fromarray(pixels).save(folder / f"{name}.png")
