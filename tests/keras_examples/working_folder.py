"""What example scripts expect in their folder: what their shell commands would have unpacked."""

import numpy as np

from tests.keras_examples.synthetic.words import sentences


def fill(folder, source):
    """Writes the made-up files that a script with this text names into an empty folder."""
    random = np.random.default_rng(0)
    for word, (path, write) in FOLDERS.items():
        if word in source:
            write(folder / path, random)


def _reviews(folder, random):
    for part in ("train/pos", "train/neg", "train/unsup", "test/pos", "test/neg"):
        (folder / part).mkdir(parents=True)
        for row, text in enumerate(sentences(80, random, 40)):
            (folder / part / f"{row}_7.txt").write_text(text, encoding="utf-8")


def _captchas(folder, random):
    for _ in range(160):
        name = "".join(random.choice(list("2345678bcdefgmnpwxy"), 5))
        _picture(folder / f"{name}.png", random.integers(0, 256, (50, 200), dtype="uint8"))


def _cats_and_dogs(folder, random):
    for kind in ("Cat", "Dog"):
        for row in range(80):
            pixels = random.integers(0, 256, (20, 24, 3), dtype="uint8")
            _picture(folder / kind / f"{row}.jpg", pixels)
    # The script asks for this one by its name.
    _picture(folder / "Cat" / "6779.jpg", random.integers(0, 256, (20, 24, 3), dtype="uint8"))


def _pets(folder, random):
    # 1,000 of them are for validation.
    for row in range(1064):
        _picture(
            folder.parents[1] / "images" / f"{row:04}.jpg", np.full((8, 8, 3), row % 256, "uint8")
        )
        _picture(folder / f"{row:04}.png", random.integers(1, 4, (8, 8), dtype="uint8"))


def _picture(path, pixels):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _sentence_pairs(folder, random):
    # The script looks beside the place where Keras 3.15 unpacks the archive.
    folder.mkdir(parents=True)
    pairs = zip(sentences(400, random), sentences(400, random), strict=True)
    lines = [f"{one}\t{other}" for one, other in pairs]
    (folder / "spa.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


# By a word in the script: the folder, and the function that writes it.
FOLDERS = {
    "aclImdb": ("aclImdb", _reviews),
    "captcha_images_v2": ("captcha_images_v2", _captchas),
    "PetImages": ("PetImages", _cats_and_dogs),
    "annotations/trimaps": ("annotations/trimaps", _pets),
    "spa-eng.zip": (".keras/datasets/spa-eng", _sentence_pairs),
}
