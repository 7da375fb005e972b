"""Steps that need whole batches are told from others on the first batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.models.own_steps.comparison import with_verdict
from kerasdist.models.own_steps.plans import MEAN, RESULT
from kerasdist.models.own_steps.tracing import plan_step

rng = np.random.default_rng(3)
X = tf.constant(rng.normal(size=(24, 3)), tf.float32)
Y = tf.constant(rng.normal(size=(24, 1)), tf.float32)
GRADIENTS = "its gradients on parts of a batch do not add up to those on the whole batch"


def planned(model, batch=(X, Y), method="train_step"):
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec((None, *t.shape[1:]), t.dtype), batch)
    return with_verdict(model, plan_step(model, method, spec), batch)


class Regressor(keras.Model):
    """A step whose loss is the mean of what `errors` returns for each example."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.compile(keras.optimizers.SGD(0.1))

    def call(self, x):
        return self.layer(x)

    def errors(self, x, y):
        return (self.layer(x) - y) ** 2

    def loss_of(self, x, y):
        return tf.reduce_mean(self.errors(x, y))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        weights = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.results(x, y, loss)

    def results(self, x, y, loss):
        return {"loss": loss}


class Contrastive(Regressor):
    def loss_of(self, x, y):
        codes = tf.math.l2_normalize(self.layer(x) + y, axis=0)
        return tf.reduce_mean(tf.reduce_logsumexp(codes @ tf.transpose(codes), axis=1))


class Summed(Regressor):
    def loss_of(self, x, y):
        return tf.reduce_sum(self.errors(x, y))


class RootOfMean(Regressor):
    """The gradients add up only for shards that are alike."""

    def loss_of(self, x, y):
        return tf.sqrt(tf.reduce_mean(self.errors(x, y)))


class FixedSize(Regressor):
    def errors(self, x, y):
        return super().errors(tf.reshape(x, (24, 3)), y)


class FixedNoise(Regressor):
    """Draws for as many examples as the batch has, by a number in the program."""

    def errors(self, x, y):
        return super().errors(x + tf.random.normal((24, 3)), y)


class Noisy(Regressor):
    """Draws for each example: with TensorFlow, with Keras, and for two copies of the batch."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def errors(self, x, y):
        x += tf.random.normal(tf.shape(x)) + keras.random.uniform(tf.shape(x), seed=self.seeds)
        noise = keras.random.normal((2 * tf.shape(x)[0], 3), seed=self.seeds)
        first, second = tf.split(self.layer(noise), 2)
        return super().errors(x, y) + first * second


class MixUp(Regressor):
    """Each example with a random other one: exact only by chance, on one device and on several."""

    def errors(self, x, y):
        order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
        part = tf.random.uniform((tf.shape(x)[0], 1))
        other_x, other_y = tf.gather(x, order), tf.gather(y, order)
        return super().errors(part * x + (1 - part) * other_x, part * y + (1 - part) * other_y)


class MixUpOfKeras(MixUp):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def errors(self, x, y):
        order = keras.random.shuffle(tf.range(tf.shape(x)[0]), seed=self.seeds)
        return Regressor.errors(self, 0.5 * x + 0.5 * tf.gather(x, order), y)


class Weighted(Regressor):
    """Divides by the sum of weights by Keras's own loss: kerasdist knows the denominator."""

    def __init__(self):
        super().__init__()
        self.compile("sgd", keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))

    def loss_of(self, x, y):
        weight = tf.cast(x[:, 0] > 0, tf.float32)
        return self.compute_loss(y=y, y_pred=self.layer(x), sample_weight=weight)


class Normalized(Regressor):
    """BatchNorm: its own statistics of each shard are no reason to run whole."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()

    def errors(self, x, y):
        return super().errors(self.norm(x, training=True), y)


class Gan(keras.Model):
    """Noise with two rows for each example, and labels for real and fake ones together."""

    def __init__(self):
        super().__init__()
        self.critic, self.generator = keras.layers.Dense(1), keras.layers.Dense(3)
        self.compile()
        self.first, self.second = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1)
        self.tracker = keras.metrics.Mean(name="critic")

    def train_step(self, data):
        size = tf.shape(data)[0]
        fake = self.generator(tf.random.normal((size, 2)))
        both = tf.concat([fake, data], axis=0)
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        labels += 0.05 * tf.random.uniform(tf.shape(labels))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.critic(both) - labels) ** 2)
        weights = self.critic.trainable_variables
        self.first.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            fake = self.generator(tf.random.normal((2 * size, 2)))
            other = tf.reduce_mean(self.critic(fake) ** 2)
        weights = self.generator.trainable_variables
        self.second.apply(tape.gradient(other, weights), weights)
        self.tracker.update_state(loss)
        return {"critic": self.tracker.result(), "generator": other}


@pytest.mark.parametrize("kind", [Regressor, Noisy, MixUp, MixUpOfKeras, Weighted, Normalized])
def test_a_step_of_single_examples_may_be_cut(kind):
    assert planned(kind()).must_be_whole == ""


def test_a_gan_with_other_numbers_of_noise_rows_may_be_cut():
    plan = planned(Gan(), X)
    assert plan.must_be_whole == ""
    assert plan.kinds == (RESULT, MEAN)
    assert len(plan.meetings) == 2


@pytest.mark.parametrize("kind", [Contrastive, Summed, RootOfMean])
def test_gradients_that_do_not_add_up_are_found(kind):
    assert planned(kind()).must_be_whole == GRADIENTS


def test_a_batch_size_in_the_program_is_found():
    reason = planned(FixedSize()).must_be_whole
    assert reason.startswith("it cannot run on a part of a batch (")
    assert reason.endswith("but the requested shape has 72 [Op:Reshape])")
    assert "{{" not in reason


def test_noise_for_a_fixed_number_of_examples_is_found():
    assert "cannot run on a part of a batch" in planned(FixedNoise()).must_be_whole


class Largest(keras.metrics.Metric):
    """A maximum does not add up."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, values):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(values)))

    def result(self):
        return self.value


class WithLargest(Regressor):
    def __init__(self):
        super().__init__()
        self.largest = Largest()

    def results(self, x, y, loss):
        self.largest.update_state(self.errors(x, y))
        return {"loss": loss, "largest": self.largest.result()}


def test_a_metric_that_does_not_add_up_is_found():
    reason = planned(WithLargest()).must_be_whole
    assert reason.startswith("the metric ")
    assert "largest" in reason
    assert reason.endswith("of a batch does not add up over parts of it")


class Returning(Regressor):
    """Returns a value that is no mean over examples."""

    def results(self, x, y, loss):
        return {"loss": loss, "top": tf.reduce_max(self.errors(x, y))}


class OfRows(Regressor):
    def results(self, x, y, loss):
        return {"rows": self.errors(x, y)[:, 0]}


def test_a_returned_value_that_is_no_mean_is_found():
    assert planned(Returning()).must_be_whole == (
        "the value 'returned value 1' of a batch does not add up over parts of it"
    )
    assert "has another shape for a part of a batch" in planned(OfRows()).must_be_whole


class Counting(Regressor):
    """State that the step changes by the examples."""

    def __init__(self, of):
        super().__init__()
        self.of = of
        self.state = self.add_weight(shape=(), initializer="zeros", trainable=False, name="state")

    def results(self, x, y, loss):
        self.state.assign(self.of(self.state, x))
        return {"loss": loss}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (lambda state, x: 0.9 * state + 0.1 * tf.reduce_mean(x), ""),
        (lambda state, x: state + 1.0, ""),
        (lambda state, x: state + tf.cast(tf.shape(x)[0], tf.float32), "does not add up"),
        (lambda state, x: tf.maximum(state, tf.reduce_max(x)), "does not add up"),
    ],
)
def test_state_may_take_means_but_no_sums(of, expected):
    reason = planned(Counting(of)).must_be_whole
    assert expected in reason if expected else reason == ""


class OfExamples(Regressor):
    """The learning rate follows the data, and not only through gradients."""

    def results(self, x, y, loss):
        self.optimizer.learning_rate.assign(0.1 * loss)
        return {"loss": loss}


def test_an_optimizer_that_follows_single_examples_is_found():
    reason = planned(OfExamples()).must_be_whole
    assert reason.startswith("it updates the optimizer's ")
    assert "learning_rate" in reason


class Evaluating(Regressor):
    def test_step(self, data):
        x, y = data
        return {"root": tf.sqrt(tf.reduce_mean(self.errors(x, y)))}


def test_steps_that_evaluate_are_compared_as_well():
    assert "returned value 0" in planned(Evaluating(), method="test_step").must_be_whole


class Predicting(Regressor):
    def __init__(self, predict):
        super().__init__()
        self.predict = predict

    def predict_step(self, data):
        return self.predict(self.layer(data))


@pytest.mark.parametrize(
    ("predict", "expected"),
    [
        (lambda rows: {"answer": rows, "shifted": rows + 1.0}, ""),
        (lambda rows: tf.cast(rows > 0, tf.int32), ""),
        (lambda rows: tf.nn.dropout(rows, 0.5), ""),
        (lambda rows: rows - tf.reduce_mean(rows), "has other rows for a part"),
        (lambda rows: tf.reduce_mean(rows), "does not have one row per example"),
        (lambda rows: tf.tile(rows, (2, 1)), "does not have one row per example"),
    ],
)
def test_predictions_are_rows_that_do_not_depend_on_each_other(predict, expected):
    reason = planned(Predicting(predict), X, "predict_step").must_be_whole
    assert expected in reason if expected else reason == ""


def test_one_example_cannot_be_compared():
    assert planned(Contrastive(), (X[:1], Y[:1])).must_be_whole == ""


def test_nothing_is_changed_by_the_comparison():
    model = Gan()
    planned(model, X)
    before = [v.numpy() for v in (*model.variables, *model.first.variables)]
    seeds = keras.random.uniform((2,)).numpy()
    with_verdict(model, plan_step(model, "train_step", tf.TensorSpec((None, 3))), X)
    after = [v.numpy() for v in (*model.variables, *model.first.variables)]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not (keras.random.uniform((2,)).numpy() == seeds).all()


class Weighed(Regressor):
    """Weighs each error, or the mean of them, with the sample weights."""

    def __init__(self, by_mean):
        super().__init__()
        self.by_mean = by_mean

    def train_step(self, data):
        x, y, weights = data
        with tf.GradientTape() as tape:
            errors = self.errors(x, y)[:, 0]
            if self.by_mean:
                errors = tf.reduce_mean(errors)
            loss = tf.reduce_mean(errors * weights)
        own = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, own), own)
        return {"loss": loss}


@pytest.mark.parametrize("by_mean", [False, True])
def test_equal_weights_of_the_first_batch_hide_nothing(by_mean):
    plan = planned(Weighed(by_mean), (X, Y, tf.ones(24)))
    assert plan.must_be_whole == (GRADIENTS if by_mean else "")
