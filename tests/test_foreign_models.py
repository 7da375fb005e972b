"""Models as other people write them: equal to Keras's own fit, or refused by name."""

import keras
import numpy as np
import pytest

import kerasdist

LAYERS = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(21, 4))
Y = RANDOM.normal(size=(21, 2))
Z = RANDOM.normal(size=(21, 1))
WEIGHT = RANDOM.uniform(0.2, 1.0, size=21)
DEVICES = (1, 2, 4)


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def weights_of(model):
    return [np.array(v) for v in model.variables if "seed" not in v.path]


def assert_close(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_same_history(found, expected, tolerance=1e-9):
    assert found.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=tolerance, err_msg=name)


def fit(model, data, **options):
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "progress": False, **options}
    return kerasdist.fit(model, data, **options)


def keras_fit(model, *data, **options):
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, **options)


def fresh(build):
    keras.utils.set_random_seed(1)
    return build()


def assert_as_keras(build, x, y, devices=DEVICES, sample_weight=None, tolerance=1e-9, **options):
    """Weights, other state and history after two epochs, with a smaller last batch."""
    reference = fresh(build)
    expected = keras_fit(reference, x, y, sample_weight=sample_weight, **options)
    data = (x, y) if sample_weight is None else (x, y, sample_weight)
    for count in devices:
        model = fresh(build)
        found = fit(model, data, devices=count, **options)
        assert_close(weights_of(model), weights_of(reference), tolerance)
        assert_same_history(found, expected, tolerance)


def dense(kind=keras.Sequential, optimizer=None, loss="mse", **options):
    model = kind([LAYERS.Dense(3, activation="tanh"), LAYERS.Dense(2)])
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss, **options)
    return model


def two_outputs(*, masked=False, **options):
    if masked:
        inputs = keras.Input((5,), dtype="int32")
        hidden = LAYERS.Embedding(7, 3, mask_zero=True)(inputs)
    else:
        inputs = keras.Input((4,))
        hidden = LAYERS.Dense(3, activation="tanh")(inputs)
    outputs = [LAYERS.Dense(2, name="first")(hidden), LAYERS.Dense(1, name="second")(hidden)]
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05),
        ["mse", "mae"],
        loss_weights=[0.5, 2.0],
        metrics=[["mae"], ["mse"]],
        **options,
    )
    return model


class TestLossesOfOutputs:
    """Keras's history has the mean of the batches' losses, not of the examples'."""

    def test_a_smaller_last_batch(self):
        validation = (X[:13], (Y[:13], Z[:13]))
        assert_as_keras(two_outputs, X, (Y, Z), validation_data=validation)

    def test_sample_weights(self):
        assert_as_keras(two_outputs, X, (Y, Z), sample_weight=(WEIGHT, WEIGHT**2))

    def test_masks(self):
        tokens = RANDOM.integers(0, 7, size=(21, 5))
        tokens[:, 0] = 1
        shape = (21, 5)
        targets = (RANDOM.normal(size=(*shape, 2)), RANDOM.normal(size=(*shape, 1)))
        assert_as_keras(lambda: two_outputs(masked=True), tokens, targets)

    def test_eager_models_weigh_by_examples_as_keras_does(self):
        assert_as_keras(lambda: two_outputs(run_eagerly=True), X, (Y, Z))

    def test_evaluate(self):
        model = fresh(two_outputs)
        expected = model.evaluate(X, (Y, Z), batch_size=8, verbose=0, return_dict=True)
        for count in DEVICES:
            found = kerasdist.evaluate(model, (X, (Y, Z)), batch_size=8, devices=count)
            assert found == pytest.approx(expected, rel=1e-9)


class Halving(keras.optimizers.SGD):
    """Gradients are changed where `apply_gradients` is overridden."""

    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(0.5 * g, v) for g, v in grads_and_vars])


def test_an_overridden_apply_gradients_is_called():
    assert_as_keras(lambda: dense(optimizer=Halving(0.1, momentum=0.9)), X, Y)


def test_an_overridden_apply_gradients_within_a_loss_scale_is_not_called_as_in_keras():
    def build():
        optimizer = keras.optimizers.LossScaleOptimizer(Halving(0.1), initial_scale=8.0)
        return dense(optimizer=optimizer)

    assert_as_keras(build, X, Y, devices=(1, 2))


def test_apply_gradients_replaced_on_the_object_is_called():
    def build():
        optimizer = keras.optimizers.SGD(0.1)
        own = optimizer.apply_gradients
        optimizer.apply_gradients = lambda pairs: own([(0.5 * g, v) for g, v in pairs])
        return dense(optimizer=optimizer)

    assert_as_keras(build, X, Y, devices=(1, 2))
