"""Small models of every kind, with weights that are told apart."""

import keras
import numpy as np
from keras import layers

import kerasdist

KERNEL, BIAS = "layers/dense/vars/0", "layers/dense/vars/1"


def line(units=2):
    """The smallest model there is."""
    return keras.Sequential([keras.Input((3,)), layers.Dense(units)])


def sequential():
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, name="own_name"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )


def functional():
    tokens = keras.Input((6,), dtype="int32")
    x = layers.LSTM(3)(layers.Embedding(11, 4)(tokens))
    head = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(2)])
    return keras.Model(tokens, head(layers.Concatenate()([x, x])))


class Subclassed(kerasdist.Model):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = [[layers.Dense(3), layers.BatchNormalization()] for _ in range(blocks)]
        self.heads = {"a": layers.Dense(2), "b": line()}
        self.noise = layers.GaussianNoise(0.1)
        self.seeds = keras.random.SeedGenerator(3)

    def build(self, shape):
        self.scale = self.add_weight(shape=(3,), name="scale")
        self.built = True

    def call(self, x, training=False):
        for dense, normalization in self.blocks:
            x = normalization(dense(x), training=training)
        x = self.noise(x * self.scale, training=training)
        return self.heads["a"](x) + self.heads["b"](x)


def subclassed():
    model = Subclassed(2)
    model(np.zeros((1, 3), "float32"))
    return model


def in_policy(policy):
    def build():
        keras.config.set_dtype_policy(policy)
        model = sequential()
        keras.config.set_dtype_policy("float32")
        return model

    return build


def disturbed(model, seed):
    """The model with other values in every variable of it and of its optimizer."""
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(seed)
    for variable in [*model.variables, *model.optimizer.variables]:
        value = generator.integers(1, 99, variable.shape)
        variable.assign(value if "int" in variable.dtype else value / 100)
    return model


def values(variables):
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def not_weights(model):
    """What no file may change: the optimizer, the metrics and the seed generators."""
    weights = {id(variable) for variable in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]
    return [*model.optimizer.variables, *seeds]
