"""The range test, compared with NumPy and with a plain Keras loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import KerasdistError
from kerasdist.finders.rate_page import sketch

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")


def quadratic(optimizer="sgd"):
    layer = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(optimizer, "mse")
    return model


def by_numpy(rates):
    """The losses of gradient descent on all examples, before each update."""
    weights, losses = np.zeros((3, 1)), []
    for rate in rates:
        difference = X @ weights - Y
        losses.append(float(np.mean(difference**2)))
        weights -= rate * 2 / len(X) * X.T @ difference
    return losses


@pytest.mark.parametrize("devices", [1, 2])
def test_a_quadratic_gives_the_losses_of_numpy(devices):
    found = kerasdist.find_learning_rate(
        quadratic, X, Y, batch_size=64, lowest=1e-4, highest=30, steps=60, devices=devices, seed=0
    )
    expected = np.geomspace(1e-4, 30, 60)[: len(found.rates)]
    assert found.rates == pytest.approx(expected, rel=1e-4)
    losses = by_numpy(found.rates)
    assert found.losses[:50] == pytest.approx(losses[:50], rel=1e-3)
    # What diverges multiplies the rounding of float32.
    assert found.losses == pytest.approx(losses, rel=0.2)
    # Gradient descent diverges from 2 / (the largest eigenvalue of the Hessian) on.
    too_much = 2 / np.linalg.eigvalsh(2 * X.T @ X / len(X)).max()
    assert len(found.rates) < 60
    assert "the loss grew too much" in found.ended
    assert too_much / 50 < found.suggestion < too_much
    assert found.rates[-1] > too_much


def test_adam_gives_the_losses_of_a_keras_loop():
    found = kerasdist.find_learning_rate(
        lambda: quadratic(keras.optimizers.Adam(0.5)), X, Y, batch_size=64, steps=40, seed=0
    )
    model, losses = quadratic("adam"), []
    for rate in found.rates:
        model.optimizer.learning_rate = rate
        losses.append(float(model.train_on_batch(X, Y)))
        model.reset_metrics()
    assert found.losses == pytest.approx(losses, rel=1e-3)


def test_a_schedule_is_left_out_and_passes_are_repeated():
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    found = kerasdist.find_learning_rate(
        quadratic(keras.optimizers.SGD(decay)), X, Y, batch_size=32, steps=20, highest=0.1
    )
    assert found.rates == pytest.approx(np.geomspace(1e-7, 0.1, 20), rel=1e-4)
    assert found.ended == "the highest rate, 0.1, was reached"


@pytest.mark.parametrize("devices", [1, 2])
def test_the_callers_model_is_as_before(devices):
    model = quadratic(keras.optimizers.Adam(0.25))
    model.fit(X, Y, batch_size=16, verbose=0)
    optimizer = model.optimizer
    before = [np.array(v) for v in (*model.weights, *optimizer.variables)]
    kerasdist.find_learning_rate(model, X, Y, batch_size=16, devices=devices)
    assert model.optimizer is optimizer
    after = [np.array(v) for v in (*model.weights, *optimizer.variables)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert float(optimizer.learning_rate) == 0.25
    assert kerasdist.fit(model, X, Y, batch_size=16, verbose=0).history["loss"][0] > 0


def test_nan_ends_it():
    def cracks(y, z):
        loss = keras.ops.mean((y - z) ** 2, axis=-1)
        return keras.ops.where(keras.ops.abs(z[:, 0]) > 0.05, float("nan"), loss)

    def build():
        model = quadratic()
        model.compile("sgd", cracks)
        return model

    found = kerasdist.find_learning_rate(build, X, Y, batch_size=64, seed=0)
    assert "the loss was not finite at a rate of" in found.ended
    assert np.isfinite(found.losses).all()


def test_a_first_step_that_is_not_finite_is_an_error():
    with pytest.raises(KerasdistError, match=r"only 0 steps: the loss was not finite in the first"):
        kerasdist.find_learning_rate(quadratic, X, Y * np.float32(1e30), batch_size=64)


def test_a_generator_that_ends_early_is_an_error():
    batches = ((X[i : i + 8], Y[i : i + 8]) for i in range(0, 32, 8))
    with pytest.raises(KerasdistError, match=r"only 4 steps: the data ended.* at least 10"):
        kerasdist.find_learning_rate(quadratic, batches)


def test_float16_halves_its_loss_scale_first():
    found = kerasdist.find_learning_rate(
        quadratic, X, Y, batch_size=64, precision="mixed_float16", steps=30, highest=1.0
    )
    assert len(found.losses) >= 20


class TwoOptimizers(keras.Model):
    def __init__(self):
        super().__init__()
        self.one = keras.layers.Dense(1)
        self.one.build((None, 3))
        self.other_optimizer = keras.optimizers.SGD()

    def call(self, x):
        return self.one(x)

    def train_step(self, data):
        return {"loss": 0.0}


def test_two_optimizers_are_refused():
    model = TwoOptimizers()
    model.compile("sgd", "mse")
    with pytest.raises(KerasdistError, match=r"model with 2 optimizers. Expected one"):
        kerasdist.find_learning_rate(model, X, Y, batch_size=8)


class Strange(keras.optimizers.SGD):
    def __init__(self, learning_rate, secret):
        super().__init__(learning_rate)


def test_an_optimizer_that_cannot_be_copied_is_named():
    with pytest.raises(
        KerasdistError, match=r"optimizer cannot be copied.* a function that builds"
    ):
        kerasdist.find_learning_rate(quadratic(Strange(0.1, 3)), X, Y, batch_size=8)
    found = kerasdist.find_learning_rate(
        lambda: quadratic(Strange(0.1, 3)), X, Y, batch_size=8, steps=10
    )
    assert len(found.rates) == 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lowest": 0}, "`lowest=0` and `highest=10.0`"),
        ({"lowest": 1, "highest": 0.1}, "`lowest=1` and `highest=0.1`"),
        ({"lowest": "a"}, "`lowest='a'`"),
        ({"steps": 9}, "`steps=9`"),
        ({"steps": 20.0}, "`steps=20.0`"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message, not_compiled):
    with pytest.raises(KerasdistError, match=message):
        kerasdist.find_learning_rate(quadratic, X, Y, **wrong)


def test_the_plot_and_the_sketch(tmp_path):
    found = kerasdist.find_learning_rate(quadratic, X, Y, batch_size=64, lowest=1e-4, steps=60)
    path = found.save(tmp_path / "plots/rates.html", title="<quadratic>", command="kerasdist fit q")
    page = path.read_text()
    assert "Learning rates of &lt;quadratic&gt;" in page
    assert f"suggestion: {found.suggestion:g}" in page
    assert ">1e-3<" in page.replace("0.001", "1e-3")  # A logarithmic axis.
    assert "kerasdist fit q" in page
    lines = sketch(found)
    assert all(len(line) <= 80 for line in lines)
    assert sum("*" in line for line in lines) > 3
    assert any("|" in line.partition("|")[2] for line in lines)  # The suggestion.


def test_a_short_last_batch_is_left_out():
    x, y = np.concatenate([X, X[:1]]), np.concatenate([Y, Y[:1]])  # 65 examples: 16 x 4 + 1.
    sizes = []
    found = kerasdist.find_learning_rate(
        lambda: counting(sizes), x, y, batch_size=16, lowest=1e-7, highest=1e-5, steps=20, seed=0
    )
    assert len(found.rates) == 20
    assert set(sizes) == {16}


def counting(sizes):
    """Notes the number of examples of each step."""

    class Counted(keras.losses.Loss):
        def call(self, y_true, y_pred):
            tf.py_function(lambda y: sizes.append(int(y.shape[0])), [y_true], [])
            return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    model = quadratic()
    model.compile("sgd", Counted())
    return model
