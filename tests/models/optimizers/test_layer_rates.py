"""A factor of the learning rate for each layer, exactly as with separate optimizers."""

import doctest

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models.optimizers import layer_rates as module

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
KINDS = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor"]
KINDS += ["Nadam", "Ftrl", "Lion", "Lamb", "Muon"]


def build(seed=0):
    keras.utils.set_random_seed(seed)
    inner = [layers.Dense(5, activation="tanh", name=name) for name in ("one", "two")]
    backbone = keras.Sequential([keras.Input((6,)), *inner], name="backbone")
    return keras.Sequential([keras.Input((6,)), backbone, layers.Dense(3, name="head")])


def optimizer_of(kind, rate=0.0625, **options):
    decay = {} if kind == "Ftrl" else {"weight_decay": 0.25}
    return getattr(optimizers, kind)(learning_rate=rate, **decay, **options)


@pytest.mark.parametrize("order", [1, -1])
def test_the_factor_of_an_inner_layer_wins_if_it_has_all_weights(order):
    """As the network in `kerasdist.backbone`, beside layers without weights."""
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(5)], name="inner")
    outer = keras.Sequential([keras.Input((6,)), layers.Rescaling(2.0), inner], name="outer")
    model = keras.Sequential([keras.Input((6,)), outer, layers.Dense(3)])
    rates = dict([(inner, 0.5), (outer, 0.1)][::order])
    optimizer = kerasdist.layer_rates(optimizer_of("SGD"), rates)
    optimizer.build(model.trainable_variables)
    assert [optimizer.factor_of(v) for v in model.trainable_variables] == [0.5, 0.5, 1, 1]


def trained_separately(model, groups, steps=3):
    """A plain loop of Keras: an optimizer for each group of variables."""
    loss = keras.losses.MeanSquaredError()
    for step in range(steps):
        rows = slice(8 * step, 8 * step + 8)
        with tf.GradientTape() as tape:
            value = loss(Y[rows], model(X[rows], training=True))
        gradients = dict(
            zip(
                [id(v) for v in model.trainable_variables],
                tape.gradient(value, [v.value for v in model.trainable_variables]),
                strict=True,
            )
        )
        for optimizer, variables in groups:
            optimizer.apply([gradients[id(v)] for v in variables], variables)
    return model.get_weights()


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_trains_as_with_its_own_optimizer(kind):
    """The factors are powers of two, so that the products are exact."""
    reference = build()
    backbone, head = reference.layers
    expected = trained_separately(
        reference,
        [
            (optimizer_of(kind), head.trainable_variables),
            (optimizer_of(kind, 0.0625 / 8), backbone.layers[0].trainable_variables),
            (optimizer_of(kind, 0.0625 / 2), backbone.layers[1].trainable_variables),
        ],
    )
    model = build()
    backbone, head = model.layers
    rates = {backbone: 1 / 8, backbone.layers[1]: 1 / 2}
    optimizer = kerasdist.layer_rates(optimizer_of(kind), rates)
    own = trained_separately(model, [(optimizer, model.trainable_variables)])
    for a, b in zip(expected, own, strict=True):
        np.testing.assert_array_equal(a, b)
    if kind not in ("AdamW", "Muon"):
        return  # One kind is enough to see that kerasdist calls it as Keras does; Muon differs.
    model = build()
    backbone, head = model.layers
    rates = {backbone: 1 / 8, backbone.layers[1]: 1 / 2}
    model.compile(kerasdist.layer_rates(optimizer_of(kind), rates), "mse")
    kerasdist.fit(model, X, Y, batch_size=8, shuffle=False, devices=2, verbose=0)
    for a, b in zip(expected, model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def rated(factor=0.5, **options):
    model = build()
    model.compile(
        kerasdist.layer_rates(optimizers.AdamW(0.01, **options), {model.layers[0]: factor}), "mse"
    )
    return model


def test_keras_own_fit_does_the_same():
    one, other = rated(), rated()
    one.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    kerasdist.fit(other, X, Y, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_the_same_bits_on_any_number_of_devices():
    found = []
    for devices in (1, 4):
        model = rated()
        kerasdist.fit(
            model, X, Y, batch_size=8, devices=devices, deterministic=True, seed=1, verbose=0
        )
        found.append(model.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_factor_of_zero_keeps_the_weights():
    model = rated(0)
    before = model.layers[0].get_weights()
    kerasdist.fit(model, X, Y, batch_size=8, verbose=0)
    for a, b in zip(before, model.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_callbacks_change_the_rate_of_all_layers():
    model = rated()
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = kerasdist.fit(model, X, Y, batch_size=8, epochs=2, callbacks=[callback], verbose=0)
    np.testing.assert_allclose(history.history["learning_rate"], [0.005, 0.0025])


def test_schedules_and_chosen_weights_are_kept():
    model = build()
    given = kerasdist.optimizer(
        "adamw", learning_rate=0.1, schedule="cosine", total_steps=10, weight_decay=0.1
    )
    optimizer = kerasdist.layer_rates(given, {model.layers[0]: 0.5})
    model.compile(optimizer, "mse")
    assert optimizer.weight_decay_on == "kernels"
    kerasdist.fit(model, X, Y, batch_size=8, verbose=0)
    assert float(optimizer.learning_rate) < 0.1


def test_excluded_weights_stay_excluded():
    model = build()
    given = optimizers.AdamW(0.01, weight_decay=0.5)
    given.exclude_from_weight_decay(var_names=["kernel"])
    model.compile(kerasdist.layer_rates(given, {model.layers[0]: 0.5}), "mse")
    # Without a gradient, only the decay could change them.
    model.layers[0].set_weights([np.ones_like(w) for w in model.layers[0].get_weights()])
    optimizer = model.optimizer
    zeros = [np.zeros(v.shape, "float32") for v in model.trainable_variables]
    optimizer.apply([keras.ops.convert_to_tensor(z) for z in zeros], model.trainable_variables)
    kernel, bias = model.layers[0].get_weights()[:2]
    assert kernel.min() == 1
    np.testing.assert_allclose(bias, 1 - 0.5 * 0.01 * 0.5, rtol=1e-6)


def test_the_factors_are_saved_and_loaded(tmp_path):
    model = rated(0.25)
    kerasdist.fit(model, X, Y, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        kerasdist.fit(each, X, Y, batch_size=8, shuffle=False, seed=0, verbose=0)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    config = loaded.optimizer.get_config()
    assert {factor for _, factor in config["layer_rates"]} == {0.25, 1.0}
    other = type(loaded.optimizer).from_config(config)
    with pytest.raises(KerasdistError, match="factors of the learning rate for other weights"):
        other.build(layers.Dense(2).weights or [keras.Variable([1.0], name="new")])


def test_mistakes_are_explained():
    layer, rates = layers.Dense(2, name="d"), kerasdist.layer_rates
    with pytest.raises(KerasdistError, match=r"'backbone' as a key.*model.get_layer"):
        rates("adam", {"backbone": 0.1})
    for factor in (-1, float("inf"), "x", True):
        with pytest.raises(KerasdistError, match=r"for the layer 'd'.*at least 0"):
            rates("adam", {layer: factor})
    with pytest.raises(KerasdistError, match=r"`rates` of type list"):
        rates("adam", [layer])
    scaled = optimizers.LossScaleOptimizer(optimizers.Adam())
    with pytest.raises(KerasdistError, match=r"'LossScaleOptimizer'.*Give its inner optimizer"):
        rates(scaled, {layer: 0.1})

    class Mine(optimizers.SGD):
        pass

    with pytest.raises(KerasdistError, match=r"'Mine'\. Expected one of SGD"):
        rates(Mine(), {layer: 0.1})
    used = optimizers.SGD()
    used.build([keras.Variable([1.0])])
    with pytest.raises(KerasdistError, match="has trained a model already"):
        rates(used, {layer: 0.1})


def test_a_layer_of_another_model_is_refused():
    model, other = build(), build()
    model.compile(kerasdist.layer_rates("adam", {other.layers[0]: 0.1}), "mse")
    with pytest.raises(KerasdistError, match=r"'backbone' has a factor.*which model"):
        kerasdist.fit(model, X, Y, batch_size=8, verbose=0)


def test_a_frozen_layer_may_have_a_factor():
    model = build()
    model.layers[0].trainable = False
    model.compile(kerasdist.layer_rates("adam", {model.layers[0]: 0.1}), "mse")
    kerasdist.fit(model, X, Y, batch_size=8, verbose=0)


def test_the_examples_run():
    failures, tried = doctest.testmod(module)
    assert tried > 0
    assert not failures
