"""Reads CIFAR-10 from its binary files or TFDS, or draws synthetic images of that shape."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kerasdist import KerasdistError, PublicData

NUM_CLASSES = 10
NUM_TRAIN = 50_000
CLASS_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
EXAMPLE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
IMAGE_SIZE = 32
RECORD_BYTES = 1 + IMAGE_SIZE * IMAGE_SIZE * 3
FILES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "validation": ("test_batch.bin",),
}
ALL_FILES = (*FILES["train"], *FILES["validation"])
TFDS_SPLITS = {"train": "train", "validation": "test"}


def _find_files(folder: Path) -> Path | None:
    for path in (folder, folder / "cifar-10-batches-bin"):
        if any((path / name).is_file() for name in ALL_FILES):
            return path
    return None


CIFAR10 = PublicData(
    title="CIFAR-10",
    tfds="cifar10",
    version="3.0.2",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    megabytes=162,
    files=f"the binary files {', '.join(ALL_FILES)}, there or in cifar-10-batches-bin",
    find_files=_find_files,
    synthetic="images",
    # As TFDS publishes it (url_checksums/cifar10.txt).
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def build_data(config, split: str) -> dict[str, np.ndarray]:
    """Returns the images and labels of one split.

    Args:
        config: The recipe's `Config`.
        split: `"train"` or `"validation"`.

    Returns:
        `{"image": uint8 [n, 32, 32, 3], "label": int64 [n]}`, and for training the `"index"` of
        each image, which augmentation needs for its flips.

    Example:
        >>> data = build_data(Config(source="synthetic", num_validation=20), "validation")
        >>> data["image"].shape, data["label"].shape
        ((20, 32, 32, 3), (20,))
    """
    if split not in FILES:
        raise KerasdistError(
            f"Received `split` {split!r}. Expected one of {', '.join(FILES)}. Use one of these."
        )
    source, folder = CIFAR10.locate(config.source, config.data_dir)
    if source == "files":
        arrays = read_files(folder, split)
    elif source == "tfds":
        found = CIFAR10.read_prepared(folder, TFDS_SPLITS[split])
        arrays = {"image": found["image"], "label": found["label"].astype(np.int64)}
    else:
        num_images = config.num_train if split == "train" else config.num_validation
        # The split is part of the seed, so both splits have different images.
        arrays = make_synthetic(num_images, (config.synthetic_seed, list(FILES).index(split)))
    if split == "train":
        arrays["index"] = np.arange(len(arrays["label"]))
    return arrays


def build_augment(config):
    """Returns `augment(batch, seed)` for the training images; None for `augmentation` "none".

    Example:
        >>> build_augment(Config(augmentation="none")) is None
        True
    """
    from . import augmentation

    if config.augmentation == "shift":

        def augment(batch, seed, epoch):
            return augmentation.translate_and_flip(
                batch, seed, epoch, first_flips=config.seed, cutout=config.cutout
            )

        return augment
    if config.augmentation == "tutorial":
        return lambda batch, seed: augmentation.tutorial(batch, seed, config.crop_size)
    return None


def build_views(config):
    """Returns the function that makes views of test images, for `kerasdist evaluate RUN --tta`.

    Example:
        >>> build_views(Config()).__name__
        'views'
    """
    from . import augmentation

    return augmentation.views


def num_examples(config) -> int:
    """Returns the number of training images, without reading them; 50,000 if they are not found.

    A trained model can be built again on a machine without the data.

    Example:
        >>> num_examples(Config(source="synthetic", num_train=20))
        20
    """
    try:
        source, folder = CIFAR10.locate(config.source, config.data_dir, warn=False)
    except KerasdistError:
        return NUM_TRAIN
    if source == "synthetic":
        return config.num_train
    if source == "tfds":
        return CIFAR10.num_prepared(folder, "train") or NUM_TRAIN
    sizes = [(folder / name).stat().st_size for name in FILES["train"] if (folder / name).is_file()]
    return sum(sizes) // RECORD_BYTES or NUM_TRAIN


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads image files as the network gets them, for `kerasdist predict`.

    Args:
        config: The recipe's `Config`.
        paths: PNG, JPEG, BMP or GIF files of any size. Of a GIF, only the first frame is used.

    Returns:
        `{"image": uint8 [n, 32, 32, 3]}`.

    Example:
        >>> import tempfile, tensorflow as tf
        >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
        ...     tf.io.write_file(file.name, tf.io.encode_png(tf.zeros((64, 48, 1), tf.uint8)))
        ...     read_examples(Config(), [file.name])["image"].shape
        (1, 32, 32, 3)
    """
    return {"image": np.stack([_read_image(path) for path in paths])}


def _read_image(path) -> np.ndarray:
    import tensorflow as tf

    try:
        image = tf.io.decode_image(tf.io.read_file(str(path)), expand_animations=False)
    except tf.errors.OpError as error:
        # Remove the names of TensorFlow's nodes and operations.
        reason = re.sub(r"\{\{.*?\}\} ?|\[Op:.*", "", error.message).strip().rstrip(".")
        raise KerasdistError(
            f"Received the file {str(path)!r}, which is not an image ({reason}). "
            "Expected a complete PNG, JPEG, BMP or GIF file. "
            "Replace it, or leave it out."
        ) from error
    # 1 channel is grey, 2 are grey and transparency, 4 are colours and transparency.
    image = image[..., :3] if image.shape[-1] >= 3 else tf.image.grayscale_to_rgb(image[..., :1])
    image = tf.image.resize(image, (IMAGE_SIZE, IMAGE_SIZE), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8).numpy()


def find_source(config) -> str:
    """Returns where the data of `config` comes from. Warns if it is not the real data.

    Returns:
        `"files"`, `"tfds"` or `"synthetic"`.

    Example:
        >>> find_source(Config(source="synthetic"))
        'synthetic'
    """
    return CIFAR10.locate(config.source, config.data_dir)[0]


def read_files(folder: Path, split: str) -> dict[str, np.ndarray]:
    """Reads the binary files of CIFAR-10.

    A record is a label byte, then the red, the green and the blue plane, row by row.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "test_batch.bin").write_bytes(bytes([7]) + bytes(3072))
        >>> read_files(folder, "validation")["label"]
        array([7])
    """
    missing = [name for name in FILES[split] if not (folder / name).is_file()]
    if missing:
        raise KerasdistError(
            f"Received the folder {str(folder)!r} without {', '.join(missing)}. "
            f"Expected {', '.join(FILES[split])} for the {split} data. "
            f"Unpack {CIFAR10.url} again."
        )
    records = np.concatenate([_read_records(folder / name) for name in FILES[split]])
    planes = records[:, 1:].reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE)
    return {
        "image": np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        "label": records[:, 0].astype(np.int64),
    }


def _read_records(path: Path) -> np.ndarray:
    values = np.fromfile(path, np.uint8)
    whole, rest = divmod(values.size, RECORD_BYTES)
    found = None
    if not values.size:
        found = "which is empty"
    elif rest:
        found = f"whose record {whole} (from 0) has {rest} bytes"
    else:
        labels = values[::RECORD_BYTES]
        wrong = np.flatnonzero(labels >= NUM_CLASSES)
        if wrong.size:
            found = f"whose record {wrong[0]} (from 0) has the label {labels[wrong[0]]}"
    if found is not None:
        raise KerasdistError(
            f"Received {str(path)!r} of {values.size} bytes, {found}. "
            f"Expected records of {RECORD_BYTES} bytes that begin with a label of 0 to 9. "
            f"The file is damaged or cut short: unpack {CIFAR10.url} again."
        )
    return values.reshape(-1, RECORD_BYTES)


def make_synthetic(num_images: int, seed, chunk: int = 1000) -> dict[str, np.ndarray]:
    """Draws patterned discs: the class is the pattern and its width.

    Position, phase, contrast, colours and background are random, so neither the mean colour nor
    any single pixel tells the class.

    Args:
        num_images: The number of images. All classes have the same share.
        seed: A seed for `numpy.random.default_rng`.
        chunk: How many images are made at a time, to limit memory. It changes the images.

    Example:
        >>> make_synthetic(20, seed=0)["label"].shape
        (20,)
    """
    if num_images < 1:
        raise KerasdistError(
            f"Received {num_images!r} as the number of synthetic images. "
            "Expected at least 1. "
            "Raise `num_train` or `num_validation`."
        )
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(num_images) % NUM_CLASSES)
    images = np.empty((num_images, IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    for start in range(0, num_images, chunk):
        images[start : start + chunk] = _draw(labels[start : start + chunk], random)
    return {"image": images, "label": labels.astype(np.int64)}


def _draw(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    num_images = len(labels)

    def uniform(low, high, channels=1):
        return random.uniform(low, high, (num_images, 1, 1, channels)).astype(np.float32)

    pixels = np.arange(IMAGE_SIZE, dtype=np.float32)
    y, x = pixels[None, :, None, None], pixels[None, None, :, None]
    center_y, center_x = uniform(12, 20), uniform(12, 20)

    # Five patterns, each in a narrow and a wide version. A mirror image has the same class, so
    # flips are as harmless as in photographs.
    label = labels.astype(np.float32)[:, None, None, None]
    angle = uniform(-0.12, 0.12)
    number = (
        2
        * np.float32(np.pi)
        / (np.where(label < 5, np.float32(3.6), np.float32(7.0)) * uniform(0.9, 1.1))
    )
    right, down = x - center_x, y - center_y
    along = number * (right * np.cos(angle) + down * np.sin(angle))
    across = number * (down * np.cos(angle) - right * np.sin(angle))
    phase, other = uniform(0, 2 * np.pi), uniform(0, 2 * np.pi)
    rising, falling = (along + across) / np.sqrt(2), (along - across) / np.sqrt(2)
    pattern = np.choose(
        labels[:, None, None, None] % 5,
        [
            np.sin(along + phase),
            np.sin(across + phase),
            np.sin(np.hypot(along, across) + phase),
            np.sin(along + phase) * np.sin(across + other) * np.sqrt(2),
            np.sin(rising + phase) * np.sin(falling + other) * np.sqrt(2),
        ],
    ).astype(np.float32)

    distance = np.sqrt((x - center_x) ** 2 + (y - center_y) ** 2)
    disc = np.clip(uniform(7, 11) - distance, 0, 1)
    slope_x, slope_y = uniform(-2, 2, 3), uniform(-2, 2, 3)
    background = uniform(40, 215, 3) + slope_x * (x - 15.5) + slope_y * (y - 15.5)
    # Each channel has its own strength and sign, so only the pattern is common to a class.
    colour = random.choice(np.float32([-1, 1]), (num_images, 1, 1, 3)) * uniform(20, 60, 3)
    disc_colour = uniform(40, 215, 3)
    picture = background + disc * (disc_colour - background + colour * pattern)
    picture += random.normal(0, 20, picture.shape).astype(np.float32)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)
