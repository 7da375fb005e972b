"""CIFAR-10 from its binary files, from TFDS, or a synthetic set of the same shape."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np

SOURCES = ("auto", "files", "tfds", "synthetic")
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
DOWNLOAD_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
PROBE_SECONDS = 3.0


def build_data(config, split: str) -> dict[str, np.ndarray]:
    """Returns the images and labels of one split.

    Args:
        config: The recipe's `Config`.
        split: `"train"` or `"validation"`.

    Returns:
        `{"image": uint8 [n, 32, 32, 3], "label": int64 [n]}`, and for training the `"index"` of
        each image, by which its flips alternate.

    Example:
        >>> data = build_data(Config(source="synthetic", num_validation=20), "validation")
        >>> data["image"].shape, data["label"].shape
        ((20, 32, 32, 3), (20,))
    """
    if split not in FILES:
        raise _error(
            f"Received `split` {split!r}.",
            f"Expected one of {', '.join(FILES)}.",
            "Ask for one of these.",
        )
    source, folder = _locate(config)
    if source == "files":
        arrays = read_files(folder, split)
    elif source == "tfds":
        arrays = _read_tfds(folder, split)
    else:
        num_images = config.num_train if split == "train" else config.num_validation
        # The split is part of the seed: no image is drawn for both.
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
            return augmentation.translate_and_flip(batch, seed, epoch, first_flips=config.seed)

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
    """Returns the number of training images, without reading them; CIFAR-10's if they are gone.

    A trained model is built again where its data need not be.

    Example:
        >>> num_examples(Config(source="synthetic", num_train=20))
        20
    """
    from kerasdist import KerasdistError

    try:
        source, folder, _ = _find(config)
    except KerasdistError:
        return NUM_TRAIN
    if source == "synthetic":
        return config.num_train
    if source == "tfds":
        return _num_prepared(folder)
    sizes = [(folder / name).stat().st_size for name in FILES["train"] if (folder / name).is_file()]
    return sum(sizes) // RECORD_BYTES or NUM_TRAIN


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Returns image files as the network gets them, for `kerasdist predict`.

    Args:
        config: The recipe's `Config`.
        paths: PNG, JPEG, BMP or GIF files of any size; of a GIF the first frame counts.

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
        # Without the names of TensorFlow's nodes and operations.
        reason = re.sub(r"\{\{.*?\}\} ?|\[Op:.*", "", error.message).strip().rstrip(".")
        raise _error(
            f"Received the file {str(path)!r}, which is no image ({reason}).",
            "Expected a whole PNG, JPEG, BMP or GIF file.",
            "Replace it, or leave it out.",
        ) from error
    # One channel is grey, two are grey and transparency, four are colours and transparency.
    image = image[..., :3] if image.shape[-1] >= 3 else tf.image.grayscale_to_rgb(image[..., :1])
    image = tf.image.resize(image, (IMAGE_SIZE, IMAGE_SIZE), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8).numpy()


def find_source(config) -> str:
    """Returns where the data of `config` comes from, and warns if it is not the real thing.

    Returns:
        `"files"`, `"tfds"` or `"synthetic"`.

    Example:
        >>> find_source(Config(source="synthetic"))
        'synthetic'
    """
    return _locate(config)[0]


def _locate(config) -> tuple[str, Path | None]:
    """The source, and the folder it is in; warns if it is synthetic and nobody asked for that."""
    source, folder, reason = _find(config)
    if reason is not None:
        _warn_synthetic(reason)
    return source, folder


def _find(config) -> tuple[str, Path | None, str | None]:
    """The source, the folder it is in, and why there is no real data where that is missed."""
    if config.source not in SOURCES:
        raise _error(
            f"Received `source` {config.source!r}.",
            f"Expected one of {', '.join(SOURCES)}.",
            "Set `source` to one of these, or leave it out.",
        )
    if config.source == "synthetic":
        return "synthetic", None, None
    if config.data_dir is not None:
        return (*_locate_in(Path(config.data_dir).expanduser(), config.source), None)
    if config.source == "files":
        raise _error(
            "Received `source` 'files' without `data_dir`.",
            "Expected the folder of CIFAR-10's binary files.",
            f"Unpack {DOWNLOAD_URL} and give its folder as `data_dir`.",
        )
    folder = _find_prepared(_default_tfds_folder())
    reason = None
    if folder is None:
        folder, reason = _download()
    if folder is not None:
        return "tfds", folder, None
    if config.source == "tfds":
        raise _error(
            "Received `source` 'tfds', and "
            f"{_default_tfds_folder()} holds no prepared CIFAR-10 and {reason}.",
            "Expected a prepared folder or a network to download from.",
            "Prepare it where there is a network and give that folder as `data_dir`, or set "
            "`source` to synthetic.",
        )
    return "synthetic", None, reason


def _locate_in(data_dir: Path, source: str) -> tuple[str, Path]:
    if source in ("auto", "files"):
        for folder in (data_dir, data_dir / "cifar-10-batches-bin"):
            if any((folder / name).is_file() for name in ALL_FILES):
                return "files", folder
    if source in ("auto", "tfds"):
        folder = _find_prepared(data_dir)
        if folder is not None:
            return "tfds", folder
    files = f"the binary files {', '.join(ALL_FILES)}, there or in cifar-10-batches-bin"
    prepared = "a prepared TFDS folder (cifar10/3.0.2 with its dataset_info.json)"
    expected = {"files": files, "tfds": prepared, "auto": f"{files}, or {prepared}"}[source]
    fix = f"Unpack {DOWNLOAD_URL} there" if source != "tfds" else "Prepare it with TFDS"
    found = "no CIFAR-10 in it" if data_dir.is_dir() else "which is not a folder"
    raise _error(
        f"Received `data_dir` {str(data_dir)!r}, {found}.",
        f"Expected {expected}.",
        f"{fix}, or leave `data_dir` and `source` out to take what there is.",
    )


def read_files(folder: Path, split: str) -> dict[str, np.ndarray]:
    """Reads CIFAR-10's own binary files.

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
        raise _error(
            f"Received the folder {str(folder)!r} without {', '.join(missing)}.",
            f"Expected {', '.join(FILES[split])} for the {split} data.",
            f"Unpack {DOWNLOAD_URL} again.",
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
        raise _error(
            f"Received {str(path)!r} of {values.size} bytes, {found}.",
            f"Expected records of {RECORD_BYTES} bytes that begin with a label of 0 to 9.",
            f"The file is damaged or cut short: unpack {DOWNLOAD_URL} again.",
        )
    return values.reshape(-1, RECORD_BYTES)


def _read_tfds(folder: Path, split: str) -> dict[str, np.ndarray]:
    """A split of a folder that TFDS prepared, such as `~/tensorflow_datasets/cifar10/3.0.2`."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise _error(
            f"Received the prepared TFDS folder {str(folder)!r}, and TFDS is not installed.",
            "Expected the package tensorflow-datasets.",
            "Install it with `pip install tensorflow-datasets`.",
        ) from error
    try:
        builder = tfds.builder_from_directory(folder)
        dataset = builder.as_dataset(split=TFDS_SPLITS[split], batch_size=-1, shuffle_files=False)
        arrays = tfds.as_numpy(dataset)
    except Exception as error:
        raise _error(
            f"Received the folder {str(folder)!r}, which TFDS cannot read ({_first_line(error)}).",
            "Expected all files of a prepared CIFAR-10.",
            "Remove the folder and prepare it again.",
        ) from error
    return {"image": arrays["image"], "label": arrays["label"].astype(np.int64)}


def _default_tfds_folder() -> Path:
    """Where TFDS keeps its data, found without importing it."""
    folder = os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets"
    return Path(folder).expanduser()


def _find_prepared(folder: Path) -> Path | None:
    """The newest prepared CIFAR-10 in a TFDS folder, its `cifar10`, or the version itself."""
    candidates = [folder, *folder.glob("[0-9]*"), *folder.glob("cifar10/[0-9]*")]
    prepared = [path for path in candidates if _is_prepared(path)]
    return max(prepared, key=_version, default=None)


def _is_prepared(folder: Path) -> bool:
    # TFDS writes this file last, into a folder that it then renames.
    try:
        information = json.loads((folder / "dataset_info.json").read_text())
    except (OSError, ValueError):
        return False
    return information.get("name") == "cifar10"


def _num_prepared(folder: Path) -> int:
    """How many training images the description of a prepared folder counts."""
    information = json.loads((folder / "dataset_info.json").read_text())
    lengths = [
        int(length)
        for split in information.get("splits", [])
        if split.get("name") == "train"
        for length in split.get("shardLengths", [])
    ]
    return sum(lengths) or NUM_TRAIN


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name)]


# One try a process: training and validation ask separately.
@functools.cache
def _download() -> tuple[Path | None, str | None]:
    """The folder that TFDS downloaded to and None, or None and why there is none."""
    if importlib.util.find_spec("tensorflow_datasets") is None:
        return None, "the package tensorflow-datasets is not installed"
    reason = _why_unreachable(DOWNLOAD_URL)
    if reason is not None:
        return None, reason
    try:
        import tensorflow_datasets as tfds

        print(f"Downloading CIFAR-10 (162 MB) to {_default_tfds_folder()}", file=sys.stderr)
        builder = tfds.builder("cifar10", data_dir=_default_tfds_folder())
        # TFDS prints its progress, and the standard output is the caller's.
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare()
    except Exception as error:  # noqa: BLE001
        # Whatever goes wrong in a download is the same to the caller: there is no such data.
        return None, f"the download failed ({_first_line(error)})"
    return Path(builder.data_dir), None


def _why_unreachable(url: str) -> str | None:
    """None if a server answers, within seconds also where the resolver never does."""
    # What TFDS downloads with, so that proxies and certificates are those of the download.
    import requests

    outcome: list[str | None] = [f"{url} did not answer in {PROBE_SECONDS:.0f} s"]

    def probe():
        try:
            requests.head(url, timeout=PROBE_SECONDS, allow_redirects=True).raise_for_status()
            outcome[0] = None
        except Exception as error:  # noqa: BLE001 - an answer is asked for, not a reason
            outcome[0] = f"{url} cannot be reached ({type(error).__name__})"

    # The name lookup has no timeout of its own, so it happens where nobody waits for its end.
    thread = threading.Thread(target=probe, name="cifar10-probe", daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return outcome[0]


@functools.cache
def _warn_synthetic(reason: str) -> None:
    lines = (
        "WARNING: THIS IS NOT CIFAR-10. Training on SYNTHETIC images, because",
        f"{reason}.",
        "The accuracy says nothing about CIFAR-10. For the real data give --data-dir,",
        "or say --source synthetic if this is what you want.",
    )
    bar = "!" * 80
    print(bar, *(f"!! {line}" for line in lines), bar, sep="\n", file=sys.stderr, flush=True)


def make_synthetic(num_images: int, seed, chunk: int = 1000) -> dict[str, np.ndarray]:
    """Draws patterned discs: the class is the pattern and its width.

    Position, phase, contrast, colours and background are random, so that neither the mean colour
    nor any single pixel tells the class.

    Args:
        num_images: How many images; the classes are equally frequent.
        seed: What `numpy.random.default_rng` accepts.
        chunk: Images made at a time, to bound the memory; other sizes draw other images.

    Example:
        >>> make_synthetic(20, seed=0)["label"].shape
        (20,)
    """
    if num_images < 1:
        raise _error(
            f"Received {num_images!r} as the number of synthetic images.",
            "Expected at least 1.",
            "Raise `num_train` or `num_validation`.",
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

    # Five patterns, each in a narrow and a wide version. The mirror image of each is of its class,
    # so that flips are as harmless as in photographs.
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
    # Each channel has its own strength and sign, so that only the pattern is common to a class.
    colour = random.choice(np.float32([-1, 1]), (num_images, 1, 1, 3)) * uniform(20, 60, 3)
    disc_colour = uniform(40, 215, 3)
    picture = background + disc * (disc_colour - background + colour * pattern)
    picture += random.normal(0, 20, picture.shape).astype(np.float32)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _error(received: str, expected: str, fix: str) -> Exception:
    from kerasdist import KerasdistError

    return KerasdistError(f"{received} {expected} {fix}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
