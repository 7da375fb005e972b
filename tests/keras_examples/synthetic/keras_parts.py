"""Keras's data sets, pretrained weights and drawings, replaced by what needs no network."""

import functools
import importlib
import inspect
import os
import pkgutil
import types

import numpy as np

ROWS = int(os.environ.get("KERAS_EXAMPLES_ROWS", "256"))
TEST_ROWS = min(ROWS // 2, 10_000)  # The real sets of 50,000 and 60,000 rows have 10,000 more.


def _images(height, width, channels, num_classes, label_shape=()):
    shape = (height, width, channels) if channels else (height, width)

    def load_data(*args, **kwargs):
        random = np.random.default_rng(0)

        def part(rows):
            labels = np.resize(np.arange(num_classes), rows).astype("uint8")
            images = random.integers(0, 256, size=(rows, *shape), dtype="uint8")
            return images, random.permutation(labels).reshape(rows, *label_shape)

        return part(ROWS), part(TEST_ROWS)

    return load_data


def _imdb(path="imdb.npz", num_words=None, maxlen=None, **kwargs):
    random = np.random.default_rng(0)

    def part(rows):
        reviews = np.empty(rows, dtype=object)
        for row in range(rows):
            length = random.integers(20, 200)
            reviews[row] = [1, *random.integers(4, num_words or 1000, length).tolist()]
        return reviews, random.integers(0, 2, rows)

    return part(ROWS), part(TEST_ROWS)


def _housing(*args, **kwargs):
    random = np.random.default_rng(0)

    def part(rows):
        return random.normal(size=(rows, 13)), random.normal(20, 5, size=rows)

    return part(ROWS), part(TEST_ROWS)


DATASETS = {
    "mnist": _images(28, 28, 0, 10),
    "fashion_mnist": _images(28, 28, 0, 10),
    "cifar10": _images(32, 32, 3, 10, (1,)),
    "cifar100": _images(32, 32, 3, 100, (1,)),
    "imdb": _imdb,
    "reuters": _imdb,
    "boston_housing": _housing,
    "california_housing": _housing,
}


def _without_pretrained(function):
    """`weights="imagenet"` becomes random weights: the network is there, the download is not."""

    @functools.wraps(function)
    def made(*args, **kwargs):
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
        bound.arguments["weights"] = None
        if not bound.arguments.get("include_top", True):
            bound.arguments.pop("classifier_activation", None)
        return function(*bound.args, **bound.kwargs)

    return made


def _replace_applications(applications):
    modules = [applications]
    for found in pkgutil.iter_modules(applications.__path__):
        modules.append(importlib.import_module(f"{applications.__name__}.{found.name}"))
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType) and name[0].isupper():
                setattr(module, name, _without_pretrained(value))


def replace(keras):
    """Called once after `import keras`."""
    import keras._tf_keras.keras as under_tensorflow  # `tf.keras` is this one.
    from keras.src.utils import file_utils

    file_utils.validate_file = lambda *args, **kwargs: True  # Made-up files have other hashes.
    for api in (keras, under_tensorflow):
        for name, load_data in DATASETS.items():
            module = importlib.import_module(f"{api.__name__}.datasets.{name}")
            module.load_data = load_data
            if hasattr(module, "get_word_index"):
                module.get_word_index = lambda *args, **kwargs: {f"w{i}": i for i in range(1, 900)}
        _replace_applications(importlib.import_module(f"{api.__name__}.applications"))
        utils = importlib.import_module(f"{api.__name__}.utils")
        utils.plot_model = lambda *args, **kwargs: None  # It needs Graphviz.
