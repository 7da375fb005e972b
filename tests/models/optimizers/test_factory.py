"""Optimizers by name, with weight decay on chosen weights, against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError

NAMES = ("sgd", "momentum", "adam", "adamw", "rmsprop", "lion", "muon")
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize(
    ("name", "kind", "attributes"),
    [
        ("sgd", "SGD", {"momentum": 0.0, "weight_decay": None}),
        ("momentum", "SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": None}),
        ("adam", "Adam", {"weight_decay": None}),
        ("adamw", "AdamW", {"weight_decay": 0.004}),
        ("rmsprop", "RMSprop", {"momentum": 0.0, "weight_decay": None}),
        ("lion", "Lion", {"weight_decay": None}),
        (
            "muon",
            "Muon",
            {"momentum": 0.95, "nesterov": True, "weight_decay": 0.004, "adam_weight_decay": 0.004},
        ),
    ],
)
def test_a_name_is_an_optimizer_of_keras(name, kind, attributes):
    optimizer = kerasdist.optimizer(name, learning_rate=0.25)
    assert isinstance(optimizer, getattr(keras.optimizers, kind))
    assert {key: getattr(optimizer, key) for key in attributes} == attributes
    assert float(optimizer.learning_rate) == 0.25


def test_settings_reach_the_optimizers_that_have_them():
    momentum = kerasdist.optimizer("momentum", momentum=0.5, nesterov=False)
    assert (momentum.momentum, momentum.nesterov) == (0.5, False)
    assert kerasdist.optimizer("momentum", momentum=0).momentum == 0.0
    assert kerasdist.optimizer("rmsprop", momentum=0.5).momentum == 0.5
    muon = kerasdist.optimizer("muon", momentum=0.5, nesterov=False, weight_decay=0.1)
    assert (muon.momentum, muon.nesterov) == (0.5, False)
    assert (muon.weight_decay, muon.adam_weight_decay) == (0.1, 0.1)
    # A recipe's default for one optimizer must not break the choice of another.
    assert kerasdist.optimizer("sgd", momentum=0.5).momentum == 0.0
    assert kerasdist.optimizer("muon", arguments={"exclude_layers": ["out"]}).exclude_layers == [
        "out"
    ]


@each_name
def test_keras_own_class_where_nothing_is_chosen(name):
    """A model saved with it is loaded without kerasdist."""
    for settings in ({"weight_decay": 0.0}, {"weight_decay": 0.1, "weight_decay_on": "all"}):
        assert type(kerasdist.optimizer(name, **settings)).__module__.startswith("keras.")


def two_layers():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(3, name="first", bias_initializer="ones"),
            keras.layers.Dense(2, name="last", bias_initializer="ones"),
        ]
    )
    random = np.random.default_rng(1)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


def linear_gradients(weights, x, y):
    """Of the mean squared error of two linear layers."""
    first, first_bias, last, last_bias = weights
    hidden = x @ first + first_bias
    error = 2 * (hidden @ last + last_bias - y) / y.size
    back = error @ last.T
    return [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


def sgd(state, gradient, step, rate, momentum, nesterov):
    velocity = momentum * state.get("v", 0) - rate * gradient
    state["v"] = velocity
    return momentum * velocity - rate * gradient if nesterov else velocity


def adamw(state, gradient, step, rate):
    mean = state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    square = state["s"] = 0.999 * state.get("s", 0) + 0.001 * gradient**2
    corrected = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
    # Keras adds its epsilon to the uncorrected root.
    epsilon = 1e-7 / np.sqrt(1 - 0.999 ** (step + 1))
    return -rate * corrected[0] / (np.sqrt(corrected[1]) + epsilon)


def numpy_training(data, steps, change, rate_of, decay, chosen, factors=(1, 1, 1, 1)):
    x, y = (array.astype("float64") for array in data)
    weights = [w.astype("float64") for w in two_layers().get_weights()]
    states = [{} for _ in weights]
    for step in range(steps):
        rate = rate_of(step)
        gradients = linear_gradients(weights, x, y)
        for i, gradient in enumerate(gradients):
            decayed = weights[i] * (1 - rate * decay) if i in chosen else weights[i]
            weights[i] = decayed + change(states[i], gradient, step, rate * factors[i])
    return weights


def trained(optimizer, data, steps, devices):
    model = two_layers()
    model.compile(optimizer, "mse")
    options = {"batch_size": len(data[0]), "shuffle": False, "progress": False}
    kerasdist.fit(model, data, steps=steps, devices=devices, **options)
    return model.get_weights()


CHOICES = {"kernels": (0, 2), "last/": (2, 3), "first/kernel$": (0,)}


@pytest.mark.parametrize(
    ("devices", "nesterov", "expression"),
    [(1, True, "kernels"), (2, False, "last/")],
)
def test_momentum_decays_the_chosen_weights_only(regression, devices, nesterov, expression):
    settings = {"schedule": "poly", "power": 2.0, "total_steps": 10, "warmup_steps": 2}
    optimizer = kerasdist.optimizer(
        "momentum",
        learning_rate=0.05,
        momentum=0.8,
        nesterov=nesterov,
        weight_decay=0.5,
        weight_decay_on=expression,
        **settings,
    )

    def rate_of(step):
        return 0.05 * ((step + 1) / 3 if step < 2 else (1 - (step - 2) / 8) ** 2)

    def change(state, gradient, step, rate):
        return sgd(state, gradient, step, rate, 0.8, nesterov)

    expected = numpy_training(regression, 8, change, rate_of, 0.5, CHOICES[expression])
    for ours, theirs in zip(trained(optimizer, regression, 8, devices), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("devices", "expression"), [(1, "first/kernel$"), (2, "kernels")])
def test_adamw_decays_the_chosen_weights_only(regression, devices, expression):
    optimizer = kerasdist.optimizer(
        "adamw", learning_rate=0.03, weight_decay=0.5, weight_decay_on=expression
    )
    expected = numpy_training(regression, 8, adamw, lambda s: 0.03, 0.5, CHOICES[expression])
    for ours, theirs in zip(trained(optimizer, regression, 8, devices), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_learning_rates_of_chosen_variables(regression):
    """As groups of parameters have them; the decay goes by the learning rate alone."""
    optimizer = kerasdist.optimizer(
        "momentum",
        learning_rate=0.02,
        weight_decay=0.3,
        learning_rate_factors={"first/bias": 0, "bias": 4},
    )

    def change(state, gradient, step, rate):
        return sgd(state, gradient, step, rate, 0.9, True)

    expected = numpy_training(regression, 6, change, lambda s: 0.02, 0.3, (0, 2), (1, 0, 1, 4))
    for ours, theirs in zip(trained(optimizer, regression, 6, devices=2), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def variables():
    """Of the names and shapes that layers have: GRU and attention have biases of two dimensions."""
    layers = [
        keras.layers.Embedding(4, 3),
        keras.layers.GRU(2, return_sequences=True),
        keras.layers.Dense(4),
        keras.layers.LayerNormalization(axis=[1, 2]),
        keras.layers.BatchNormalization(),
        keras.layers.RMSNormalization(),
    ]
    model = keras.Sequential([keras.Input((5,)), *layers])
    attention = keras.layers.MultiHeadAttention(2, 3)
    attention.build((None, 5, 4), (None, 5, 4))
    convolution = keras.layers.SeparableConv2D(2, 3)
    convolution.build((None, 8, 8, 3))
    found = [*model.trainable_variables, *attention.trainable_variables]
    found += [*convolution.trainable_variables, keras.Variable(np.ones(3), name="temperature")]
    for variable in found:
        variable.assign(np.random.default_rng(2).uniform(1, 2, variable.shape))
    return found


@pytest.mark.filterwarnings("ignore:.*`build\\(\\)` was called.*")
@each_name
def test_kernels_decay_by_default_and_nothing_else(name):
    """With gradients of zero nothing moves but what decays: by half, at a rate of 1."""
    chosen = variables()
    before = [v.numpy() for v in chosen]
    optimizer = kerasdist.optimizer(name, learning_rate=1, weight_decay=0.5)
    optimizer.build(chosen)
    optimizer.apply([tf.zeros(v.shape) for v in chosen])
    decayed, kept = set(), set()
    for variable, value in zip(chosen, before, strict=True):
        factor = variable.numpy() / value
        assert len(np.unique(factor)) == 1
        (decayed if factor.flat[0] == 0.5 else kept).add(variable.name)
        assert factor.flat[0] in (0.5, 1.0)
    kernels = {"kernel", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel"}
    assert decayed == kernels | {"embeddings"}
    assert kept == {"bias", "gamma", "beta", "scale", "temperature"}


@each_name
def test_a_chosen_decay_is_keras_exclusion(name, regression):
    """The same weights on two devices as a plain loop with Keras's own class."""
    x, y = regression
    model = two_layers()
    plain = kerasdist.optimizer(name, learning_rate=0.01, weight_decay=0.4, weight_decay_on="all")
    plain.exclude_from_weight_decay(
        var_list=[v for v in model.trainable_variables if not v.path.endswith("first/kernel")]
    )
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, model(x))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        plain.apply(gradients, model.trainable_variables)
    chosen = kerasdist.optimizer(
        name, learning_rate=0.01, weight_decay=0.4, weight_decay_on="first/kernel"
    )
    weights = trained(chosen, regression, 3, devices=2)
    for ours, theirs in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@each_name
def test_a_saved_model_has_the_same_choice(name, tmp_path):
    model = two_layers()
    optimizer = kerasdist.optimizer(
        name,
        learning_rate=1.0,
        schedule="cosine",
        total_steps=10,
        weight_decay=0.5,
        weight_decay_on="last/kernel",
        learning_rate_factors={"bias": 2.0},
    )
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == optimizer.get_config()
    assert dict(loaded.optimizer.learning_rate_factors) == {"bias": 2.0}
    before = loaded.get_weights()
    loaded.optimizer.apply([tf.zeros(w.shape) for w in before], loaded.trainable_variables)
    factors = [np.unique(a / b) for a, b in zip(loaded.get_weights(), before, strict=True)]
    assert [float(factor[0]) for factor in factors] == [1.0, 1.0, 0.5, 1.0]


def test_an_expression_that_is_found_nowhere_lists_the_paths():
    for name, settings in (
        ("weight_decay_on", {"weight_decay": 0.1, "weight_decay_on": "frist"}),
        ("learning_rate_factors", {"learning_rate_factors": {"frist": 2.0}}),
    ):
        optimizer = kerasdist.optimizer("sgd", **settings)
        with pytest.raises(
            KerasdistError, match=rf"'frist' in `{name}`.*first/kernel, .*last/bias"
        ):
            optimizer.build(two_layers().trainable_variables)


def test_keras_exclusion_is_refused_where_the_optimizer_chooses():
    optimizer = kerasdist.optimizer("adamw")
    with pytest.raises(KerasdistError, match=r"`weight_decay_on='kernels'`.*Name the weights"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])


@pytest.mark.parametrize("factors", [{"[": 1.0}, {"bias": -1.0}, {"bias": "2"}, {3: 1.0}])
def test_factors_are_checked(factors):
    with pytest.raises(KerasdistError, match=r"`learning_rate_factors`.*at least 0"):
        kerasdist.optimizer("sgd", learning_rate_factors=factors)


def test_an_unknown_argument_gets_a_guess():
    with pytest.raises(KerasdistError, match=r"'learning_rat'.*Did you mean 'learning_rate'"):
        kerasdist.optimizer("sgd", learning_rat=0.1)
    with pytest.raises(KerasdistError, match="`optimizer='adagrad'`"):
        kerasdist.optimizer("adagrad")
