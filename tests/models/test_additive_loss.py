"""What adds up over the shards of a batch is trained exactly; what does not is refused by name."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.errors import InexactLossError
from kerasdist.models import additive_loss, inspection

LAYERS = keras.layers
OPS = keras.ops
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(37, 5)).astype("float32")
Y = RANDOM.uniform(0.1, 0.9, size=(37, 3)).astype("float32")
CLASSES = RANDOM.integers(0, 3, size=37)


def fit(model, data=(X, Y), **options):
    options = {"batch_size": 16, "shuffle": False, "progress": False, "devices": 2, **options}
    return kerasdist.fit(model, data, **options)


def assert_trains(model, data=(X, Y), **options):
    """Nothing is refused, and the losses are numbers."""
    assert np.isfinite(fit(model, data, **options).history["loss"]).all()


def compiled(loss, *, activation="sigmoid", kind=keras.Sequential, **options):
    model = kind([LAYERS.Dense(4, activation="tanh"), LAYERS.Dense(3, activation=activation)])
    model.compile("sgd", loss, **options)
    return model


def rmse(y_true, y_pred):
    return OPS.sqrt(OPS.mean(OPS.square(y_true - y_pred)))


def ratio_of_sums(y_true, y_pred):
    return OPS.sum(OPS.abs(y_true - y_pred)) / OPS.sum(OPS.abs(y_true))


NOT_MEANS = {
    "Circle": (lambda: keras.losses.Circle(), CLASSES),
    "Dice": (lambda: keras.losses.Dice(), Y),
    "Tversky": (lambda: keras.losses.Tversky(), Y),
    "cosine over the batch": (lambda: keras.losses.CosineSimilarity(axis=0), Y),
    "rmse": (lambda: rmse, Y),
    "ratio of sums": (lambda: ratio_of_sums, Y),
}


@pytest.mark.parametrize("name", NOT_MEANS)
def test_a_loss_over_the_whole_batch_is_refused(name):
    loss, y = NOT_MEANS[name]
    with pytest.raises(InexactLossError, match=r"not a mean over examples.*shards=1"):
        fit(compiled(loss()), (X, y))


def test_the_refusal_names_the_loss_and_both_numbers():
    with pytest.raises(InexactLossError, match=r"\(rmse\).* it is [\d.]+ for 16 .* [\d.]+ when"):
        fit(compiled(rmse))


@pytest.mark.parametrize("loss", [rmse, ratio_of_sums])
def test_rows_that_are_alike_do_not_hide_it(loss):
    x, y = np.ones((37, 5), "float32"), np.full((37, 3), 0.5, "float32")
    with pytest.raises(InexactLossError):
        fit(compiled(loss), (x, y))


def test_rows_that_are_alike_and_whole_numbers_do_not_hide_it():
    tokens, y = np.ones((37, 5), "int32"), np.zeros((37, 5, 3), "int32")
    model = keras.Sequential([LAYERS.Embedding(4, 2), LAYERS.Dense(3, bias_initializer="ones")])
    model.compile("sgd", rmse)
    with pytest.raises(InexactLossError):
        fit(model, (tokens, y))


def test_only_the_last_rows_differ():
    x, y = np.ones((64, 5), "float32"), np.full((64, 3), 0.5, "float32")
    y[40:] = -3.0
    with pytest.raises(InexactLossError):
        fit(compiled(rmse), (x, y), batch_size=64)


def test_on_one_shard_any_loss_is_trained():
    reference, model = (clone(lambda: compiled(rmse)) for _ in range(2))
    expected = reference.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history["loss"]
    found = fit(model, devices=1, shards=1).history["loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def clone(build):
    keras.utils.set_random_seed(3)
    return build()


PER_EXAMPLE = [
    keras.losses.BinaryCrossentropy(),
    keras.losses.BinaryFocalCrossentropy(),
    keras.losses.CategoricalCrossentropy(),
    keras.losses.CategoricalFocalCrossentropy(),
    keras.losses.CategoricalHinge(),
    keras.losses.CosineSimilarity(),
    keras.losses.Hinge(),
    keras.losses.Huber(),
    keras.losses.KLDivergence(),
    keras.losses.LogCosh(),
    keras.losses.MeanAbsoluteError(),
    keras.losses.MeanAbsolutePercentageError(),
    keras.losses.MeanSquaredError(),
    keras.losses.MeanSquaredLogarithmicError(),
    keras.losses.Poisson(),
    keras.losses.SquaredHinge(),
    keras.losses.MeanSquaredError(reduction="sum"),
    keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
]


class Wrapped(keras.losses.Loss):
    """Keras does not know what it computes, so it is checked."""

    def __init__(self, inner):
        super().__init__(reduction=inner.reduction)
        self.inner = inner

    def call(self, y_true, y_pred):
        return self.inner.call(y_true, y_pred)


@pytest.mark.parametrize("loss", PER_EXAMPLE, ids=lambda loss: f"{loss.name} {loss.reduction}")
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_each_example_pass_the_check(loss, weighted):
    weights = np.linspace(0, 1, 37).astype("float32")
    data = (X, Y, weights) if weighted else (X, Y)
    whole, cut = (clone(lambda: compiled(Wrapped(loss))) for _ in range(2))
    expected = fit(whole, data, devices=1, shards=1).history["loss"]
    assert fit(cut, data).history["loss"] == pytest.approx(expected, rel=1e-4)


def test_a_masked_sequence_passes_the_check():
    tokens = RANDOM.integers(0, 4, size=(37, 6))
    model = keras.Sequential([LAYERS.Embedding(4, 2, mask_zero=True), LAYERS.Dense(3)])
    model.compile("sgd", Wrapped(keras.losses.MeanSquaredError()))
    assert_trains(model, (tokens, RANDOM.normal(size=(37, 6, 3))))


class Sampling(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(OPS.shape(mean), seed=self.seeds)
        divergence = 1 + log_variance - OPS.square(mean) - OPS.exp(log_variance)
        self.add_loss(-0.5 * OPS.mean(OPS.sum(divergence, axis=-1)))
        return mean + OPS.exp(0.5 * log_variance) * noise


def autoencoder():
    inputs = keras.Input((5,))
    hidden = LAYERS.Dropout(0.3)(LAYERS.Dense(4, activation="tanh")(inputs))
    hidden = LAYERS.BatchNormalization()(hidden)
    code = Sampling()([LAYERS.Dense(2)(hidden), LAYERS.Dense(2)(hidden)])
    outputs = LAYERS.Dense(5, kernel_regularizer="l2")(LAYERS.GaussianNoise(0.1)(code))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


def test_noise_and_dropout_and_batch_normalization_are_no_false_alarm():
    for scale in (0.01, 1, 100):
        assert_trains(autoencoder(), (scale * X, X))


class Noisy(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return OPS.mean(OPS.square(y - y_pred * tf.random.normal(tf.shape(y_pred))))


def test_there_is_no_verdict_where_chance_decides():
    assert_trains(compiled(None, kind=Noisy))


def test_a_loss_near_zero_by_cancellation_is_no_false_alarm():
    def margin(y_true, y_pred):
        return OPS.mean(y_true, axis=-1) + 0.0 * OPS.mean(y_pred, axis=-1)

    y = np.where(np.arange(37) % 2, 1.0, -1.0)[:, None].repeat(3, 1).astype("float32")
    assert_trains(compiled(margin), (X, 1000 * y))


def test_several_outputs_with_own_losses_pass():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, [LAYERS.Dense(3)(inputs), LAYERS.Dense(3)(inputs)])
    model.compile("sgd", [Wrapped(keras.losses.MeanSquaredError()), "mae"])
    assert_trains(model, (X, (Y, Y)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_neither_hides_it_nor_looks_like_it(policy):
    keras.config.set_dtype_policy(policy)
    with pytest.raises(InexactLossError):
        fit(compiled(rmse))
    for loss in (keras.losses.MeanSquaredError(), keras.losses.KLDivergence()):
        fit(compiled(Wrapped(loss)))


class AddedInTraining(LAYERS.Layer):
    def call(self, x, training=False):
        if training:
            self.add_loss(OPS.sum(OPS.abs(x)))
        return x


def test_a_loss_that_is_added_only_in_training_is_checked():
    model = keras.Sequential([LAYERS.Dense(3), AddedInTraining()])
    model.compile("sgd", "mse")
    with pytest.raises(InexactLossError):
        fit(model)


class State(LAYERS.Layer):
    """Keeps one number (or whole number) by a rule."""

    def __init__(self, rule, dtype_of_state="float64", start=0.0, only_training=False):
        super().__init__()
        self.rule = rule
        self.only_training = only_training
        self.dtype_of_state = dtype_of_state
        self.start = start

    def build(self, _):
        initializer = keras.initializers.Constant(self.start)
        options = {"dtype": self.dtype_of_state, "trainable": False}
        self.value = self.add_weight(shape=(), initializer=initializer, name="kept", **options)

    def call(self, x, training=False):
        if training or not self.only_training:
            self.value.assign(OPS.cast(self.rule(self.value, x), self.dtype_of_state))
        return x


def counted(value, x):
    return value + OPS.cast(OPS.shape(x)[0], value.dtype)


RULES = {
    "examples": (counted, "float64"),
    "examples as int": (counted, "int64"),
    "sum": (lambda value, x: value + OPS.sum(x), "float64"),
    "steps": (lambda value, x: value + 1, "float64"),
    "steps as int": (lambda value, x: value + 1, "int32"),
    "steps as a byte": (lambda value, x: value + 1, "uint8"),
    "moving mean": (lambda value, x: 0.9 * value + 0.1 * OPS.mean(x), "float64"),
    "last mean": (lambda value, x: OPS.mean(x), "float64"),
}


@pytest.fixture
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("only_training", [False, True])
@pytest.mark.usefixtures("float64")
def test_state_that_adds_up_is_kerass(rule, devices, only_training):
    function, dtype = RULES[rule]

    def build():
        layer = State(function, dtype, only_training=only_training)
        model = keras.Sequential([LAYERS.Dense(3), layer, LAYERS.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model, layer

    x, y = X.astype("float64"), Y.astype("float64")
    (reference, expected), (model, found) = clone(build), clone(build)
    options = {"batch_size": 8, "shuffle": False, "epochs": 2}
    reference.fit(x, y, validation_data=(x[:13], y[:13]), verbose=0, **options)
    reference.evaluate(x, y, batch_size=8, verbose=0)
    reference.predict(x, batch_size=8, verbose=0)
    fit(model, (x, y), validation_data=(x[:13], y[:13]), devices=devices, **options)
    kerasdist.evaluate(model, (x, y), batch_size=8, devices=devices)
    kerasdist.predict(model, x, batch_size=8, devices=devices)
    assert float(found.value) == pytest.approx(float(expected.value), rel=1e-9)


NOT_RULES = {
    "maximum": lambda value, x: OPS.maximum(value, OPS.max(x)),
    "minimum": lambda value, x: OPS.minimum(value, OPS.min(x)),
    "product": lambda value, x: (value + 1) * OPS.exp(OPS.sum(x) / 50),
    "variance": lambda value, x: 0.9 * value + 0.1 * OPS.var(x),
}


@pytest.mark.parametrize("start", [0.0, 1000.0, -1000.0])
@pytest.mark.parametrize("rule", NOT_RULES)
def test_state_that_does_not_add_up_is_refused(rule, start):
    layer = State(NOT_RULES[rule], "float32", start)
    model = keras.Sequential([LAYERS.Dense(3), layer])
    model.compile("sgd", "mse")
    with pytest.raises(KerasdistError, match=r"state '.*kept'.*Expected a mean.*shards=1"):
        fit(model)
    assert np.isfinite(fit(model, devices=1, shards=1).history["loss"]).all()


def test_state_after_batch_normalization_and_dropout_is_no_false_alarm():
    layer = State(RULES["moving mean"][0], "float32")
    layers = [LAYERS.Dense(3), LAYERS.BatchNormalization(), LAYERS.Dropout(0.5), layer]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    fit(model)
    assert float(layer.value) != 0


class Moving(LAYERS.Layer):
    def build(self, shape):
        options = {"initializer": "zeros", "trainable": False, "name": "kept"}
        self.mean = self.add_weight(shape=(shape[-1],), **options)

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * OPS.mean(x, axis=0))
        return x


class Chance(LAYERS.Layer):
    """Adds what `draw` makes of the inputs."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x, training=False):
        return x + OPS.cast(self.draw(x), x.dtype) if training else x


CHANCE = {
    "tf.random": lambda x: tf.random.normal(tf.shape(x)),
    "categorical": lambda x: keras.random.categorical(x, 1, seed=1),
    "shuffle": lambda x: keras.random.shuffle(x, seed=1),
    "infinite": lambda x: x * np.inf,
}


@pytest.mark.parametrize("name", CHANCE)
def test_state_is_judged_by_itself_when_the_loss_has_no_verdict(name):
    layer = Moving()
    model = keras.Sequential([layer, Chance(CHANCE[name]), LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    if name == "infinite":
        rules = state_rules_of(model)
        assert list(rules.values()) == ["mean"]
        return
    fit(model, (X[:16], Y[:16]))
    np.testing.assert_allclose(layer.mean.numpy(), 0.1 * X[:16].mean(0), rtol=1e-4, atol=1e-7)


def state_rules_of(model, *, training=True):
    """The rules for a model whose own state is its first layer's."""
    model.build((None, 5))
    findings = inspection.Findings(own_state=tuple(model.layers[0].weights))
    return additive_loss.state_rules(model, lambda: (X, Y), findings, 2, training=training)


@pytest.mark.parametrize("name", ["tf.random", "categorical"])
def test_state_that_chance_decides_gets_no_rule(name):
    layer = State(lambda _, x: OPS.mean(OPS.cast(CHANCE[name](x), "float32")), "float32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    assert state_rules_of(model) == {}


def test_state_that_is_never_finite_gets_no_rule():
    layer = State(lambda _, x: OPS.mean(x) * np.inf, "float32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    assert state_rules_of(model) == {}


class Annealed(State):
    def call(self, x, training=False):
        factor = tf.gather(tf.linspace(0.5, 1.0, 100), self.value)
        return super().call(x, training) * factor


def test_state_that_is_an_index_is_not_moved_out_of_its_range():
    layer = Annealed(lambda value, x: value + 1, "int32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    fit(model)
    assert int(layer.value) == 3


def test_altered_rows_that_the_model_refuses_give_no_verdict():
    def sure(y_true, y_pred):
        tf.debugging.assert_near(tf.reduce_sum(y_true, -1), 1.0)
        return OPS.mean(OPS.square(y_true - y_pred), axis=-1)

    fit(compiled(sure), (X, Y / Y.sum(1, keepdims=True)))


class Contrastive(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scores = y_pred @ OPS.transpose(y_pred)
        crossentropy = keras.losses.sparse_categorical_crossentropy
        return OPS.mean(crossentropy(OPS.arange(16), scores, from_logits=True))


def test_a_loss_for_one_size_of_batch_is_refused_by_name():
    model = compiled(None, kind=Contrastive)
    told = r"loss of 'Contrastive'.*part of a batch.*Error: .*Expected.*`devices=1, shards=1`"
    with pytest.raises(InexactLossError, match=told):
        fit(model, (X[:32], Y[:32]))


def test_state_for_one_size_of_batch_is_refused_by_name():
    layer = State(lambda _, x: OPS.sum(x + OPS.ones((16, 5))), "float32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    told = r"model 'Sequential'.*part of a batch.*Error: .*Expected.*`devices=1, shards=1`"
    with pytest.raises(KerasdistError, match=told):
        fit(model, (X[:32], Y[:32]))


class Bayesian(LAYERS.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units
        self.seeds = keras.random.SeedGenerator(1)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units))

    def call(self, x):
        self.add_loss(1e-3 * OPS.mean(OPS.square(self.kernel)))
        return x @ (self.kernel + 0.3 * keras.random.normal(self.kernel.shape, seed=self.seeds))


@pytest.mark.parametrize("widths", [(32, 20), (20, 12), (12, 32), (31, 31)])
def test_noise_for_as_many_weights_as_examples_is_no_false_alarm(widths):
    layers = [LAYERS.Dense(widths[0]), Bayesian(widths[1]), Bayesian(8), LAYERS.Dense(3)]
    model = keras.Sequential([*layers, LAYERS.GaussianNoise(0.1)])
    model.compile("sgd", "mse")
    assert_trains(model, (X[:32], Y[:32]), batch_size=32)


@pytest.fixture
def evaluations(monkeypatch):
    """One entry for each time that the check evaluates a model."""
    made, original = [], additive_loss._Probe._evaluate

    def evaluate(self, *args, **kwargs):
        made.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(additive_loss._Probe, "_evaluate", evaluate)
    return made


def counting():
    loss = Wrapped(keras.losses.MeanSquaredError())
    model = keras.Sequential([State(counted, "float32"), LAYERS.Dense(3)])
    model.compile("sgd", loss)
    return model


def test_what_was_found_for_a_model_is_remembered(evaluations):
    model = counting()
    for turn in range(2):
        fit(model, validation_data=(X, Y))
        kerasdist.evaluate(model, (X, Y), batch_size=16, devices=2)
        kerasdist.predict(model, X, batch_size=16, devices=2)
        if turn == 0:
            assert evaluations
            evaluations.clear()
    assert not evaluations
    assert float(model.layers[0].value) == 8 * 37


CHANGES = {
    "compiled again": lambda model: model.compile("sgd", model.loss),
    "a layer's setting": lambda model: setattr(model.layers[0], "only_training", True),
    "the loss's setting": lambda model: setattr(model.loss, "reduction", "sum"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_checked_again(change, evaluations):
    model = counting()
    fit(model)
    evaluations.clear()
    CHANGES[change](model)
    fit(model)
    assert evaluations


def test_other_data_and_another_loss_are_checked_again(evaluations):
    model = counting()
    fit(model)
    evaluations.clear()
    fit(model, batch_size=8)
    assert evaluations
    model.compile("sgd", rmse)
    with pytest.raises(InexactLossError):
        fit(model)


def test_a_remembered_model_is_not_kept_alive():
    model = counting()
    fit(model)
    assert model in additive_loss._VERDICTS
    known = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert known() is None
