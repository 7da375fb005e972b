"""`tensorflow_datasets.load` of made-up rows with the features that the real data set has."""

import types

from tests.keras_examples.synthetic.words import sentences

# Name of the data set: features of an example. A tuple is an image's shape, an integer the number
# of classes, "text" words, "id" a number as text, "float" a number.
FEATURES = {
    "stl10": {"image": (96, 96, 3), "label": 10},
    "cifar10": {"image": (32, 32, 3), "label": 10},
    "cifar10_corrupted/saturate_5": {"image": (32, 32, 3), "label": 10},
    "oxford_flowers102": {"image": (80, 90, 3), "label": 102},
    "caltech_birds2011": {"image": (80, 90, 3), "label": 200},
    "cats_vs_dogs": {"image": (80, 90, 3), "label": 2},
    "tf_flowers": {"image": (80, 90, 3), "label": 5},
    "stanford_dogs": {"image": (80, 90, 3), "label": 120},
    "horses_or_humans": {"image": (300, 300, 3), "label": 2},
    "rock_paper_scissors": {"image": (300, 300, 3), "label": 3},
    "cycle_gan/horse2zebra": {"image": (256, 256, 3), "label": 2},
    "imdb_reviews": {"text": "text", "label": 2},
    "div2k/bicubic_x4": {"lr": (80, 96, 3), "hr": (320, 384, 3)},
    "movielens/100k-ratings": {
        "user_id": "id",
        "movie_id": "id",
        "movie_title": "text",
        "timestamp": 1000,
        "user_rating": "float",
    },
    "movielens/100k-movies": {"movie_id": "id", "movie_title": "text"},
    "wine_quality": {"features": {"acidity": "float", "alcohol": "float"}, "quality": "float"},
}
SUPERVISED = {
    "imdb_reviews": ("text", "label"),
    "wine_quality": ("features", "quality"),
    "div2k/bicubic_x4": ("lr", "hr"),
}
ROWS = {"movielens/100k-ratings": 400, "imdb_reviews": 500, "oxford_flowers102": 80}


def _column(kind, rows, random):
    if isinstance(kind, dict):
        return {name: _column(inner, rows, random) for name, inner in kind.items()}
    if isinstance(kind, tuple):
        return random.integers(0, 256, size=(rows, *kind)).astype("uint8")
    if isinstance(kind, int):
        return random.permutation([row % kind for row in range(rows)]).astype("int64")
    if kind == "id":
        return [str(1 + value) for value in random.integers(0, 50, rows)]
    if kind == "float":
        return random.uniform(1, 5, rows).astype("float32")
    return sentences(rows, random)


def _dataset(name, split, as_supervised, batch_size):
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(len(str(split)))
    rows = ROWS.get(name, 160 if "image" not in FEATURES[name] else 96)
    columns = {key: _column(kind, rows, random) for key, kind in FEATURES[name].items()}
    if as_supervised:
        columns = tuple(columns[key] for key in SUPERVISED.get(name, ("image", "label")))
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    if batch_size == -1:
        return next(iter(dataset.batch(rows)))
    return dataset.batch(batch_size) if batch_size else dataset


class _Splits(dict):
    """Every split has the same number of examples."""

    def __missing__(self, key):
        return types.SimpleNamespace(num_examples=96)


def _information(name):
    features = {}
    for key, kind in FEATURES[name].items():
        shape = kind if isinstance(kind, tuple) else ()
        features[key] = types.SimpleNamespace(
            num_classes=kind if isinstance(kind, int) else None,
            shape=shape,
            names=[f"class {i}" for i in range(kind)] if isinstance(kind, int) else None,
            int2str=lambda value: f"class {value}",
        )
    return types.SimpleNamespace(features=features, splits=_Splits(), name=name)


def load(
    name, *, split=None, as_supervised=False, with_info=False, batch_size=None, **unused_options
):
    """Like `tensorflow_datasets.load`, with made-up rows."""
    if name not in FEATURES:
        raise KeyError(f"there is no made-up data set {name!r}; there are {sorted(FEATURES)}")

    def one(part):
        return _dataset(name, part, as_supervised, batch_size)

    if split is None:
        parts = ["trainA", "trainB", "testA", "testB"] if "cycle" in name else ["train", "test"]
        data = {part: one(part) for part in parts}
    elif isinstance(split, list | tuple):
        data = [one(part) for part in split]
    else:
        data = one(split)
    return (data, _information(name)) if with_info else data


def replace(tensorflow_datasets):
    """Called once after `import tensorflow_datasets`."""
    tensorflow_datasets.load = load
    tensorflow_datasets.disable_progress_bar = lambda: None
