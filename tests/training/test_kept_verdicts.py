"""What is kept of a model follows its changes, and one row decides nothing for later batches."""

import keras
import numpy as np
import pytest
from keras import ops

import kerasdist
from kerasdist.models.memory.kept import kept

ROWS = np.arange(48, dtype="float32").reshape(16, 3)
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = np.linspace(-5, 5, 16, dtype="float32")[:, None]


class CentredPrediction(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)

    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        y = self(x, training=False)
        return y - ops.mean(y, axis=0, keepdims=True)


class ComparingStep(CentredPrediction):
    """A `train_step` whose loss compares the examples of a batch."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = ops.mean(ops.square((found - ops.mean(found)) - (y - ops.mean(y))))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Centre(keras.layers.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


def test_one_row_does_not_decide_that_a_predict_step_can_be_cut():
    expected = CentredPrediction().predict(ROWS, verbose=0)
    model = CentredPrediction()
    kerasdist.predict(model, ROWS[:1], devices=2)
    np.testing.assert_allclose(kerasdist.predict(model, ROWS, devices=2), expected, atol=1e-4)


def test_one_row_does_not_decide_that_a_train_step_can_be_cut():
    def trained(fit, **options):
        model = ComparingStep()
        model.compile(keras.optimizers.SGD(0.01))
        for count in (1, 16):
            fit(model, X[:count], Y[:count], batch_size=16, shuffle=False, verbose=0, **options)
        return model.get_weights()

    expected, found = trained(keras.Model.fit), trained(kerasdist.fit, devices=2)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_one_row_does_not_decide_for_single_batches():
    def program():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones"), Centre()]
        )
        return model, [model.predict(ROWS[:n], verbose=0) for n in (1, 16, 1, 16)]

    _, expected = program()
    with kerasdist.enable(devices=2):
        model, found = program()
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)
    # One for single rows and one for more: further calls compile nothing.
    assert len(kept(model)._things["single batches"]) == 2


def test_a_new_function_in_an_attribute_is_compared_again():
    def of_examples(y, found):
        return ops.mean(ops.square(found - y))

    def of_batch(y, found):
        return ops.square(ops.mean(found) - ops.mean(y))

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.function, self.dense = of_examples, keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return self.function(y, y_pred)

    def trained(fit, **options):
        keras.utils.set_random_seed(1)
        model, optimizer = Model(), keras.optimizers.SGD(0.02)
        for model.function in (of_examples, of_batch):
            model.compile(optimizer=optimizer)
            fit(model, X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0, **options)
        return model.get_weights()

    expected, found = trained(keras.Model.fit), trained(kerasdist.fit, devices=2)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_single_batches_follow_a_new_compile_with_the_same_optimizer():
    class Model(keras.Sequential):
        factor = 1.0

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return self.factor * ops.mean(ops.square(y_pred - y))

    def losses():
        keras.utils.set_random_seed(1)
        model, optimizer, found = Model([keras.layers.Dense(1)]), keras.optimizers.SGD(0.01), []
        for model.factor in (1.0, 10.0):
            model.compile(optimizer=optimizer)
            found += [np.ravel(model.train_on_batch(X, Y))[0] for _ in range(2)]
        return found

    expected = losses()
    with kerasdist.enable(devices=2):
        np.testing.assert_allclose(losses(), expected, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam"])
def test_weight_decay_keeps_the_engine(optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(getattr(keras.optimizers, optimizer)(0.01, weight_decay=0.1), "mse")
    for _ in range(3):
        kerasdist.fit(model, X, Y, batch_size=8, verbose=0, devices=1)
    assert len(kept(model)._things["engines"]) == 1


def test_the_placement_of_a_further_fit_is_logged(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    lines = []
    for name in ("first", "second"):
        folder = tmp_path / name
        kerasdist.fit(model, X, Y, batch_size=8, verbose=0, run_dir=folder, log_placement=True)
        lines.append(len((folder / "placement.txt").read_text().splitlines()))
    assert lines[1] > lines[0] / 2
