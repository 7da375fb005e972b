"""A small data set in every form that `fit` takes."""

import keras
import numpy as np
import tensorflow as tf

import kerasdist

NUM = 23
BATCH = 4
IDS = np.arange(NUM)
X = np.stack([IDS, np.random.default_rng(1).normal(size=NUM)], axis=1).astype("float32")
Y = np.random.default_rng(2).normal(size=(NUM, 1)).astype("float32")
W = np.linspace(0.5, 1.5, NUM).astype("float32")


class Named(kerasdist.Model):
    features = "x"
    targets = "y"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class Pairs:
    """A random-access source of tuples."""

    def __len__(self):
        return NUM

    def __getitem__(self, index):
        return X[index], Y[index]


class PairsAtOnce(Pairs):
    def __getitems__(self, indices):
        return [(X[i], Y[i]) for i in indices]

    def __getitem__(self, index):
        raise AssertionError("`__getitems__` is there")


class Dicts(Pairs):
    def __getitem__(self, index):
        return {"x": X[index].tolist(), "y": Y[index], "comment": "nobody reads this"}


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return -(-NUM // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


class Provider:
    """The old contract: a pass ends with None and the next call begins another."""

    batch_size = BATCH

    def __init__(self):
        self.at = 0

    def get_batch_data(self):
        rows = slice(self.at, self.at + BATCH)
        if self.at >= NUM:
            self.at = 0
            return None
        self.at += BATCH
        return X[rows], Y[rows]


def generate():
    for start in range(0, NUM, BATCH):
        yield X[start : start + BATCH], Y[start : start + BATCH]


def generate_lists():
    for x, y in generate():
        yield [x, y.tolist()]


def generate_dicts():
    for x, y in generate():
        yield {"y": y, "x": x}


def slices(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


def named_slices(**fields):
    return tf.data.Dataset.from_tensor_slices(fields)


def of_unknown_shapes():
    return tf.data.Dataset.from_generator(generate, output_types=(tf.float32, tf.float32))


SIZED = {"batch_size": BATCH}


FORMS = {
    "arrays": (lambda: (X, Y), SIZED),
    "arrays of lists": (lambda: (X.tolist(), Y.tolist()), SIZED),
    "arrays with None": (lambda: (X, Y, None), SIZED),
    "arrays with weights": (lambda: (X, Y, W), SIZED),
    "tensors": (lambda: (tf.constant(X), tf.constant(Y)), SIZED),
    "dict of arrays": (lambda: {"y": Y.tolist(), "x": X, "unused": IDS}, SIZED),
    "source": (Pairs, SIZED),
    "source of many": (PairsAtOnce, SIZED),
    "source of dicts": (Dicts, SIZED),
    "list of examples": (lambda: [(X[i], Y[i]) for i in range(NUM)], SIZED),
    "dataset of examples": (lambda: slices(X, Y), SIZED),
    "dataset of dicts": (lambda: named_slices(x=X, y=Y), SIZED),
    "dataset of batches": (lambda: slices(X, Y).batch(BATCH), {}),
    "dataset of unknown shapes": (of_unknown_shapes, {}),
    "PyDataset": (Batches, {}),
    "provider": (Provider, {}),
    "provider with options": (lambda: kerasdist.read_provider(Provider(), capacity=2), {}),
    "generator function": (lambda: generate, {}),
    "generator function of lists": (lambda: generate_lists, {}),
    "generator function of dicts": (lambda: generate_dicts, {}),
    "generator": (generate, {}),
}


def mean_target(y_true, y_pred):
    return y_true[:, 0]


def make_model(form="arrays"):
    named = "dict" in form
    model = Named() if named else keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=[mean_target])
    return model
