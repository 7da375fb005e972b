"""A loss over the whole batch is Keras's own, on any number of shards and devices."""

import functools
import importlib.util
import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import DivergedError, InexactLossError, KerasdistError
from kerasdist.models.whole_batch.separation import separate

LAYERS, OPS = keras.layers, keras.ops
RANDOM = np.random.default_rng(0)
# The last batch of 16 has 2 examples: fewer than 4 or 8 shards.
X, OTHER = RANDOM.normal(size=(50, 5)), RANDOM.normal(size=(50, 5))
Y, CLASSES = RANDOM.uniform(0.1, 0.9, size=(50, 3)), RANDOM.integers(0, 3, size=50)
CUTS = [(1, 8), (2, 4), (4, 8)]


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


class Network(keras.Model):
    """Two layers. `head` is called in `compute_loss` by some."""

    def __init__(self, **options):
        super().__init__(**options)
        self.hidden = LAYERS.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.last = LAYERS.Dense(3)

    def call(self, x, training=None):
        return self.last(self.hidden(x))


def similarity(a, b):
    return OPS.matmul(OPS.normalize(a, axis=-1), OPS.transpose(OPS.normalize(b, axis=-1)))


class Contrastive(Network):
    """Supervised contrastive loss with a trainable temperature and a sum as an added loss."""

    def build(self, shape):
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    def call(self, x, training=None):
        hidden = self.hidden(x)
        self.add_loss(0.01 * OPS.sum(OPS.square(hidden)))
        self.add_loss(0.1 * OPS.mean(OPS.abs(hidden)))
        self.add_loss(0.01 * OPS.mean(OPS.square(hidden), axis=-1))
        return self.last(hidden)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        logits = similarity(y_pred, y_pred) * OPS.exp(self.temperature)
        same = OPS.cast(OPS.equal(OPS.reshape(y, (-1, 1)), OPS.reshape(y, (1, -1))), "float64")
        of_each = OPS.sum(same * OPS.log_softmax(logits), axis=1) / OPS.sum(same, axis=1)
        return -OPS.mean(of_each) + sum(OPS.sum(loss) for loss in self.losses)


class TwoTowers(Network):
    """In-batch softmax of two inputs, with outputs in a dict."""

    def call(self, inputs, training=None):
        return {"query": self.last(self.hidden(inputs[0])), "item": self.hidden(inputs[1])[:, :3]}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        logits = 5 * similarity(y_pred["query"], y_pred["item"])
        return -OPS.mean(OPS.diagonal(OPS.log_softmax(logits)))


class BarlowTwins(Network):
    """Correlation over the batch, of outputs that a layer of the loss projects."""

    def __init__(self):
        super().__init__()
        self.projector = LAYERS.Dense(4)

    def build(self, shape):
        self.projector.build((None, 3))

    def call(self, inputs, training=None):
        return [super(BarlowTwins, self).call(each) for each in inputs]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        a, b = (self.projector(each) for each in y_pred)
        a, b = ((z - OPS.mean(z, axis=0)) / (OPS.std(z, axis=0) + 0.1) for z in (a, b))
        correlation = OPS.matmul(OPS.transpose(a), b) / OPS.cast(OPS.shape(a)[0], "float64")
        return OPS.sum(OPS.square(correlation - OPS.eye(4))) + OPS.mean(OPS.square(x[0][:, :1] - a))


class Centred(Network):
    """`call` counts examples, and the loss moves a centre that it also reads."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.centre = self.add_weight(shape=(3,), initializer="ones", trainable=False)

    def call(self, x, training=None):
        self.seen.assign_add(OPS.cast(OPS.shape(x)[0], "float64"))
        return super().call(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = OPS.sqrt(OPS.mean(OPS.square(y_pred - self.centre))) / OPS.sqrt(self.seen)
        if training:
            new = OPS.max(OPS.stop_gradient(y_pred), axis=0)
            self.centre.assign(0.9 * self.centre + 0.1 * new)
        return loss


class WeightedByHand(Network):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        error = OPS.mean(OPS.square(OPS.cast(y, "float64")[:, None] - y_pred), axis=-1)
        if sample_weight is not None:
            error = error * sample_weight
        return OPS.sqrt(OPS.sum(error)) + 0.1 * sum(self.losses)


class WeighedMean(Network):
    """Divides by the sum of the weights, which Keras does not see."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        error = OPS.mean(OPS.square(y - y_pred), axis=-1)
        return OPS.sum(error * sample_weight) / OPS.sum(sample_weight)


def mean_of_batch(y_true, y_pred):
    """One number, which Keras multiplies by the mean of the sample weights."""
    return OPS.mean(OPS.square(y_true - y_pred))


def rmse(y_true, y_pred):
    return OPS.sqrt(OPS.mean(OPS.square(y_true - y_pred)))


def summed(y_true, y_pred):
    return OPS.sum(OPS.square(y_true - y_pred))


def of_batch(y_true, y_pred):
    """A metric that does not add up."""
    return OPS.max(OPS.abs(y_true - y_pred))


def compiled(kind, loss=None, **options):
    model = kind()
    # Fake GPUs have no XLA.
    model.compile(keras.optimizers.Adam(0.02), loss, jit_compile=False, **options)
    return model


def two_outputs():
    inputs = keras.Input((5,))
    hidden = LAYERS.Dense(6, activation="tanh", activity_regularizer="l2")(inputs)
    outputs = {"a": LAYERS.Dense(3, name="a")(hidden), "b": LAYERS.Dense(3, name="b")(hidden)}
    model = keras.Model(inputs, outputs)
    metrics = {"a": ["mae", of_batch], "b": [keras.metrics.MeanSquaredError()]}
    losses = {"loss": {"a": rmse, "b": "mae"}, "loss_weights": {"a": 2, "b": 1}}
    model.compile("adam", metrics=metrics, jit_compile=False, **losses)
    return model


def masked():
    inputs = keras.Input((6,), dtype="int32")
    hidden = LAYERS.Embedding(4, 5, mask_zero=True)(inputs)
    model = keras.Model(inputs, LAYERS.Dense(3)(LAYERS.SimpleRNN(4, return_sequences=True)(hidden)))
    # Not Adam, which is not its formula for Keras's sparse gradients of embeddings.
    model.compile("sgd", [rmse], weighted_metrics=["mse"], jit_compile=False)
    return model


def one_axis(loss, **options):
    """Its outputs have no second axis, so Keras reduces the axis of the examples."""
    inputs = keras.Input((5,))
    hidden = LAYERS.Dense(6, activation="tanh")(inputs)
    model = keras.Model(inputs, OPS.sigmoid(OPS.sum(hidden, axis=-1)))
    model.compile("sgd", loss, jit_compile=False, **options)
    return model


TOKENS = RANDOM.integers(0, 4, size=(50, 6))
TARGETS = RANDOM.normal(size=(50, 6, 3))
WEIGHTS = np.linspace(0, 1, 50)
# All 1 in the first batch, which shows how the loss is computed.
LATE_WEIGHTS = np.maximum(np.linspace(-1, 3, 50), 1)
CASES = {
    "contrastive": (lambda: compiled(Contrastive), (X, CLASSES)),
    "two towers": (lambda: compiled(TwoTowers), ((X, OTHER), CLASSES)),
    "barlow twins": (lambda: compiled(BarlowTwins), ((X, OTHER), CLASSES)),
    "centred": (lambda: compiled(Centred), (X, CLASSES)),
    "weighted by hand": (lambda: compiled(WeightedByHand), (X, CLASSES, WEIGHTS)),
    "rmse": (lambda: compiled(Network, rmse, metrics=["mae"]), (X, Y)),
    "summed by hand": (lambda: compiled(Network, summed), (X, Y, WEIGHTS)),
    "dice": (lambda: compiled(Network, keras.losses.Dice()), (X, Y)),
    "circle": (lambda: compiled(Network, keras.losses.Circle()), (X, CLASSES)),
    "two outputs": (two_outputs, (X, {"a": Y, "b": Y[:, ::-1]})),
    "masked": (masked, (TOKENS, TARGETS)),
    "cosine of one axis": (lambda: one_axis("cosine_similarity", metrics=["mae"]), (X, Y[:, 0])),
    "weighed scalar": (lambda: compiled(Network, mean_of_batch), (X, Y, LATE_WEIGHTS)),
    "weighed axis": (lambda: one_axis("mse"), (X, Y[:, 0], LATE_WEIGHTS)),
    "weighed by ratio": (lambda: compiled(WeighedMean), (X, Y, LATE_WEIGHTS)),
    "divergence of one axis": (lambda: one_axis("kl_divergence"), (X, Y[:, 0])),
}


def made(name):
    """The model of a case, with fixed weights, and its data."""
    keras.utils.set_random_seed(3)
    build, data = CASES[name]
    model = build()
    model(tf.nest.map_structure(lambda t: tf.convert_to_tensor(t[:2]), data[0]))
    for variable in model.non_trainable_variables:
        if "seed" not in variable.path:
            variable.assign(OPS.ones_like(variable))
    return model, data


def rows(data, count):
    return tf.nest.map_structure(lambda t: t[:count], data)


@functools.cache
def of_keras(name):
    """Weights and logs of Keras's own `fit`."""
    with tf.device("CPU:0"):  # Fake GPUs cannot update an embedding in place.
        model, data = made(name)
        x, y, *weights = data
        logs = model.fit(
            x,
            y,
            sample_weight=weights[0] if weights else None,
            batch_size=16,
            epochs=2,
            shuffle=False,
            validation_data=rows(data, 20),
            validation_batch_size=16,
            verbose=0,
        )
        return model.get_weights(), logs.history


def fit(model, data, **options):
    given = {"batch_size": 16, "epochs": 2, "shuffle": False, "progress": False, "seed": 5}
    return kerasdist.fit(model, data, **{**given, **options})


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def assert_same_logs(found, expected):
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_and_logs_are_kerass(name):
    weights, logs = of_keras(name)
    for devices, shards in CUTS if name == "contrastive" else [(2, 4)]:
        model, data = made(name)
        found = fit(model, data, validation_data=rows(data, 20), devices=devices, shards=shards)
        assert_close(model.get_weights(), weights)
        assert_same_logs(found.history, logs)


def test_evaluate_computes_the_loss_of_whole_batches():
    model, data = made("contrastive")
    expected = model.evaluate(*data, batch_size=16, verbose=0)
    found = kerasdist.evaluate(model, data, batch_size=16, devices=4)["loss"]
    assert found == pytest.approx(expected, rel=1e-9)


def test_class_weights_count():
    weight = {0: 1.0, 1: 3.0, 2: 0.5}
    reference, _ = made("weighted by hand")
    reference.fit(X, CLASSES, batch_size=16, shuffle=False, verbose=0, class_weight=weight)
    model, _ = made("weighted by hand")
    fit(model, (X, CLASSES), epochs=1, devices=2, shards=4, class_weight=weight)
    assert_close(model.get_weights(), reference.get_weights())


@pytest.mark.parametrize("loss", [mean_of_batch, "mse"])
def test_class_weights_count_for_one_number_of_the_batch(loss):
    given = {"batch_size": 16, "shuffle": False, "verbose": 0, "class_weight": {0: 1.0, 1: 3.0}}
    y = (Y[:, 0] > 0.5).astype("int64")
    models = [one_axis(loss) for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    models[0].fit(X, y, **given)
    kerasdist.fit(models[1], X, y, devices=2, shards=4, **given)
    assert_close(models[1].get_weights(), models[0].get_weights())


def test_without_the_whole_batch_a_weighed_number_is_refused():
    model, data = compiled(Network, mean_of_batch), (X, Y, WEIGHTS)
    with pytest.raises(InexactLossError, match="one number for its batch"):
        fit(model, data, devices=2, whole_batch_loss=False)


OPTIONS = {
    "clipping and averages": {"clip_norm": 0.01, "ema": 0.5},
    "XLA": {"jit": True},
    "summaries": {"summary_every": 1},
}


FAKE_GPUS = int(os.environ.get("KERASDIST_FAKE_GPUS", "0"))


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_fit_give_the_same_as_on_one_shard(name, tmp_path):
    if name == "XLA" and FAKE_GPUS:
        pytest.skip("fake GPUs have no XLA")
    seen = []
    for number, (devices, shards) in enumerate([(1, 1), (2, 4)]):
        model, data = made("contrastive")
        options = dict(OPTIONS[name])
        if "summary_every" in options:
            options["run_dir"] = tmp_path / str(number)
        history = fit(model, data, devices=devices, shards=shards, **options)
        seen.append([*model.get_weights(), *(history.ema_weights or [])])
    assert_close(seen[1], seen[0])


def scaled(scale):
    model, data = made("contrastive")
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=scale, dynamic_growth_steps=2
    )
    model.compile(optimizer, jit_compile=False)
    return model, data


def test_the_loss_scale_does_not_change_the_gradient():
    seen = []
    for devices, shards in [(1, 1), (2, 4)]:
        model, data = scaled(2.0**10)
        fit(model, data, devices=devices, shards=shards)
        seen.append([*model.get_weights(), *[v.numpy() for v in model.optimizer.variables]])
    assert_close(seen[1], seen[0])


def noisy():
    keras.utils.set_random_seed(3)

    class Noisy(Contrastive):
        def __init__(self):
            super().__init__()
            self.dropout, self.norm = LAYERS.Dropout(0.4), LAYERS.BatchNormalization()

        def call(self, x, training=None):
            x = super().call(self.dropout(x, training=training))
            return self.norm(x, training=training)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            y_pred = self.dropout(y_pred, training=training)
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    model = compiled(Noisy)
    model(X[:2])
    return model


def test_the_second_pass_draws_the_same_random_numbers():
    """With equal draws in both passes, the gradient is that of finite differences."""
    seen = []
    for devices in (1, 4):
        model = noisy()
        fit(model, (X, CLASSES), devices=devices, shards=4, validation_data=(X, CLASSES))
        seen.append(model.get_weights())
    assert_close(seen[1], seen[0])


def test_dropout_has_the_gradient_of_its_loss():
    def loss_at(shift, learning_rate):
        model = noisy()
        model.compile(keras.optimizers.SGD(learning_rate), jit_compile=False)
        model.temperature.assign(1.0)
        kernel = model.hidden.kernel
        moved = kernel.numpy()
        moved[1, 2] += shift
        kernel.assign(moved)
        logs = fit(model, (X[:16], CLASSES[:16]), epochs=1, devices=1, shards=4)
        return logs.history["loss"][0], kernel.numpy()[1, 2]

    before = noisy().hidden.kernel.numpy()[1, 2]
    gradient = before - loss_at(0.0, 1.0)[1]
    slope = (loss_at(1e-5, 1e-9)[0] - loss_at(-1e-5, 1e-9)[0]) / 2e-5
    assert gradient == pytest.approx(slope, rel=1e-4)


def test_the_bits_do_not_depend_on_the_devices():
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    data = X.astype("float32"), Y.astype("float32")
    layers = [LAYERS.Dense(8), LAYERS.Dropout(0.4), LAYERS.Dense(3)]
    seen = []
    for devices in (1, 2, 4):
        keras.utils.set_random_seed(3)
        model = compiled(lambda: keras.models.clone_model(keras.Sequential(layers)), rmse)
        logs = fit(model, data, devices=devices, shards=4, deterministic=True, ema=0.9)
        seen.append([*model.get_weights(), *logs.ema_weights, logs.history["loss"]])
    for other in seen[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(seen[0], other, strict=True))


class Diverging(Network):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return OPS.sqrt(OPS.mean(y_pred) ** 2) / (OPS.mean(x) - OPS.mean(x))


def test_a_loss_that_is_not_finite_is_not_written():
    model = compiled(Diverging)
    model(X[:2])
    before = model.get_weights()
    with pytest.raises(DivergedError, match="loss"):
        fit(model, (X, CLASSES), devices=2, shards=4, whole_batch_loss=True)
    assert_close(model.get_weights(), before)


def test_any_loss_can_be_computed_on_the_whole_batch():
    reference, model = (compiled(Network, "mse", metrics=["mae"]) for _ in range(2))
    reference(X[:2]), model(X[:2])
    model.set_weights(reference.get_weights())
    fit(reference, (X, Y), devices=1, shards=1)
    fit(model, (X, Y), devices=2, shards=4, whole_batch_loss=True)
    assert_close(model.get_weights(), reference.get_weights())


class Matrix(Network):
    def call(self, x, training=None):
        return similarity(super().call(x), super().call(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return -OPS.mean(OPS.diagonal(OPS.log_softmax(y_pred)))


class Mixing(Network):
    def call(self, x, training=None):
        outputs = super().call(x)
        return outputs - OPS.max(outputs, axis=0)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return OPS.sqrt(OPS.mean(OPS.square(y_pred)))


class Comparing(Network):
    def call(self, x, training=None):
        outputs = super().call(x)
        self.add_loss(OPS.mean(similarity(outputs, outputs)))
        return outputs

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return OPS.mean(y_pred) + sum(self.losses)


@pytest.mark.parametrize(
    ("kind", "what"), [(Matrix, "output 0"), (Mixing, "output 0"), (Comparing, "add_loss")]
)
def test_layers_that_compare_examples_are_found_and_train_whole(kind, what, capsys):
    reference, model = compiled(kind), compiled(kind)
    for each in (reference, model):
        each(X[:2])
    model.set_weights(reference.get_weights())
    with pytest.raises(InexactLossError, match=rf"{what}.* cannot be put together.*compute_loss"):
        separate(model, (tf.constant(X[:16]), tf.constant(CLASSES[:16])), training=True)
    reference.fit(X, CLASSES, batch_size=16, epochs=2, shuffle=False, verbose=0)
    fit(model, (X, CLASSES), devices=2, progress=True)
    assert_close(model.get_weights(), reference.get_weights())
    assert "trains on one device" in capsys.readouterr().out


class CountedTwice(Centred):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.seen.assign_add(1.0)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def test_a_sum_that_call_and_loss_change_is_refused():
    with pytest.raises(KerasdistError, match=r"changed by `call`.*again by `compute_loss`"):
        fit(compiled(CountedTwice), (X, CLASSES), devices=2)


@pytest.mark.slow
def test_memory_falls_with_the_number_of_shards():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("memory", path)
    memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(memory)
    eight, one = (memory.measure(shards, contrastive=True, steps=1) for shards in (8, 1))
    assert eight < 0.9 * one
