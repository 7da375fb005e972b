"""Further calls of `fit`, `evaluate` and `predict` compile nothing again, and compute the same."""

import gc
import weakref

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.engine.engine import Engine
from kerasdist.training import engines

X = np.random.default_rng(0).normal(size=(40, 3))
Y = X.sum(axis=1, keepdims=True) + 0.1


class Counting(keras.layers.Layer):
    """Counts how often it is traced, and scales by a number that can be changed."""

    traced = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.factor = 1.0

    def call(self, x):
        type(self).traced += 1
        return x * self.factor


@pytest.fixture
def made(monkeypatch):
    """Weak references to the engines that are made."""
    found = []

    class Noted(Engine):
        def __init__(self, *args):
            super().__init__(*args)
            found.append(weakref.ref(self))

    monkeypatch.setattr(engines, "Engine", Noted)
    return found


def model_of(optimizer=None, layers=()):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="float64"),
            keras.layers.Dense(8, activation="tanh", dtype="float64"),
            *layers,
            keras.layers.Dense(1, dtype="float64"),
        ]
    )
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    return model


def fit(model, **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0} | options
    return kerasdist.fit(model, X, Y, **options)


def keras_fit(model, **options):
    return model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, **options)


def assert_same(model, expected, tolerance=1e-12):
    for found, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_further_fit_traces_nothing_and_is_kerass(devices, made):
    model, expected = model_of(layers=[Counting()]), model_of(layers=[Counting()])
    fit(model, devices=devices)
    traced = Counting.traced
    for _ in range(2):
        fit(model, devices=devices)
    assert Counting.traced == traced
    assert len(made) == 1
    for _ in range(3):
        keras_fit(expected)
    assert_same(model, expected)


def test_a_further_evaluate_and_predict_trace_nothing():
    model = model_of(layers=[Counting()])

    def look():
        found = kerasdist.evaluate(model, X, Y, devices=2), kerasdist.predict(model, X, devices=2)
        return found[0]["loss"], found[1]

    look()
    traced = Counting.traced
    model.set_weights([w + 0.5 for w in model.get_weights()])
    loss, outputs = look()
    assert Counting.traced == traced
    np.testing.assert_allclose(loss, model.evaluate(X, Y, verbose=0)[0], rtol=1e-6)
    np.testing.assert_allclose(outputs, model.predict(X, verbose=0), rtol=1e-12)


CHANGES = {
    "weights": lambda m: m.set_weights([w * 0.5 for w in m.get_weights()]),
    "the learning rate": lambda m: setattr(m.optimizer, "learning_rate", 0.1),
    "a slot of the optimizer": lambda m: m.optimizer.variables[3].assign(
        m.optimizer.variables[3] + 0.1
    ),
    "compile": lambda m: m.compile(keras.optimizers.SGD(0.1), "mae", jit_compile=False),
    "trainability": lambda m: (
        setattr(m.layers[0], "trainable", False),
        m.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False),
    ),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_between_two_fits_counts(change, devices):
    model, expected = model_of(), model_of()
    for each, train in ((model, fit), (expected, keras_fit)):
        options = {"devices": devices} if train is fit else {}
        train(each, **options)
        change(each)
        train(each, **options)
    assert_same(model, expected)


def test_a_changed_attribute_of_a_layer_counts():
    model, expected = model_of(layers=[Counting()]), model_of(layers=[Counting()])
    fit(model)
    keras_fit(expected)
    for each in (model, expected):
        each.layers[1].factor = 0.5
    expected.make_train_function(force=True)
    fit(model)
    keras_fit(expected)
    assert_same(model, expected)


@pytest.mark.parametrize("options", [{}, {"deterministic": True, "devices": 2}])
def test_another_seed_gives_what_a_new_model_gives(options):
    kept, new = (model_of(layers=[keras.layers.Dropout(0.5, dtype="float64")]) for _ in range(2))
    start = [v.numpy() for v in kept.variables + kept.optimizer.variables]
    fit(kept, seed=1, **options)
    first = kept.get_weights()
    kept.optimizer.build(kept.trainable_variables)
    for variable, value in zip(kept.variables, start, strict=False):
        variable.assign(value)
    for variable in kept.optimizer.variables[2:]:
        variable.assign(np.zeros(variable.shape))
    kept.optimizer.iterations.assign(0)
    fit(kept, seed=2, **options)
    fit(new, seed=2, **options)
    assert_same(kept, new)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(first, new.get_weights(), strict=True))


class DrawsWhenTraced(keras.layers.Layer):
    def call(self, x):
        return x * np.random.uniform(0.5, 1.5)


def test_a_layer_that_draws_while_it_is_traced_is_traced_for_each_seed():
    def trained(seeds):
        model = model_of(keras.optimizers.SGD(0.01), [DrawsWhenTraced()])
        start = model.get_weights()
        for seed in seeds:
            model.set_weights(start)
            fit(model, seed=seed, deterministic=True)
        return model

    assert_same(trained([1, 2]), trained([2]), tolerance=0)


def test_averages_begin_again():
    one = model_of()
    fit(one, ema=0.9)
    middle = model_of()
    middle.set_weights(one.get_weights())
    middle.optimizer.build(middle.trainable_variables)
    for to, value in zip(middle.optimizer.variables, one.optimizer.variables, strict=True):
        to.assign(value)
    again, new = fit(one, ema=0.9), fit(middle, ema=0.9)
    for found, expected in zip(again.ema_weights, new.ema_weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_engines_are_freed_with_the_model(made):
    model = model_of()
    fit(model, devices=2)
    kerasdist.evaluate(model, X, Y)
    kerasdist.predict(model, X)  # With the engine of `evaluate`.
    assert len(made) == 2
    del model
    gc.collect()
    assert [engine() for engine in made] == [None] * 2


def test_a_fit_inside_of_a_fit_has_its_own_engine(made):
    model = model_of()

    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.logs = kerasdist.evaluate(model, X, Y)
                fit(model, callbacks=[])

    fit(model, epochs=2, callbacks=[Nested()])
    expected = model_of()
    for _ in range(3):
        keras_fit(expected)
    assert_same(model, expected)


class Failing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("stop here")


def test_after_an_error_the_engine_is_made_again(made):
    model = model_of()
    with pytest.raises(RuntimeError, match="stop here"):
        fit(model, callbacks=[Failing()])
    fit(model)
    assert len(made) == 2


def test_other_options_have_other_engines(made):
    model = model_of()
    for options in ({}, {"devices": 2}, {"clip_norm": 1.0}, {"class_weight": None}, {}):
        fit(model, **{"devices": 1, **options})
    assert len(made) == 3


def test_a_saved_and_a_cloned_model_are_as_before(tmp_path):
    model = model_of()
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(loaded, model, tolerance=0)
    fit(loaded)
    fit(model)
    assert_same(loaded, model)
