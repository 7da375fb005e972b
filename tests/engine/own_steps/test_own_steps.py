"""Models with their own steps: Keras's result on any number of devices, and the same bits."""

import hashlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import DivergedError, KerasdistError
from kerasdist.training import engines as engines_module
from tests.device_counts import those_here

rng = np.random.default_rng(3)
X, Z = rng.normal(size=(43, 3)), rng.normal(size=(43, 4))
Y = rng.normal(size=(43, 1))


@pytest.fixture(autouse=True)
def _float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def dense(*units):
    return keras.Sequential([keras.layers.Dense(n, activation="tanh") for n in units])


class Gan(keras.Model):
    """Two optimizers, two updates of the critic, a gradient penalty, clipping in the step."""

    def __init__(self):
        super().__init__()
        self.critic, self.generator = dense(8, 1), dense(8, 3)
        self.critic_loss = keras.metrics.Mean(name="critic_loss")

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.critic_optimizer, self.generator_optimizer = critic_optimizer, generator_optimizer

    @property
    def metrics(self):
        return [self.critic_loss]

    def penalty(self, real, fake):
        middle = (real + fake) / 2
        with tf.GradientTape() as tape:
            tape.watch(middle)
            score = self.critic(middle)
        slope = tape.gradient(score, [middle])[0]
        return tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)

    def train_step(self, data):
        real, noise = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                loss = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
                loss += 10.0 * self.penalty(real, fake)
            weights = self.critic.trainable_variables
            gradients = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)[0]
            self.critic_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            generator_loss = -tf.reduce_mean(self.critic(self.generator(noise)))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(generator_loss, weights), weights)
        self.critic_loss.update_state(loss)
        return {"critic": self.critic_loss.result(), "generator_loss": generator_loss}


class Teacher(keras.Model):
    """A moving average of the weights after the update, which the next step compares with."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = dense(5, 1), dense(5, 1)
        self.teacher.trainable = False
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            target = self.teacher(x)
            loss = self.compute_loss(y=y, y_pred=self.student(x))
            loss += 0.1 * tf.reduce_mean((self.student(x) - target) ** 2)
        weights = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for own, other in zip(self.teacher.weights, self.student.weights, strict=True):
            own.assign(0.9 * own + 0.1 * other)
        self.seen.assign_add(1.0)
        return {"loss": loss, "number": 7.0}


class Extended(keras.Model):
    """Keras's own step and one more value; masked targets divide by something else."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "largest": keras.ops.max(keras.ops.abs(self.layers[-1].kernel))}

    def test_step(self, data):
        x, y = data
        return {"twice": 2.0 * keras.ops.mean((self(x) - y) ** 2)}

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return {"answer": self(x), "shifted": self(x) + 1.0}


def gan():
    model = Gan()
    model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.RMSprop(1e-2))
    return model, (X, Z)


def teacher():
    model = Teacher()
    model.compile("adam", "mse")
    return model, (X, Y)


def extended():
    inputs = keras.Input((3,))
    model = Extended(inputs, keras.layers.Dense(1)(keras.layers.Dense(4)(inputs)))
    model.compile("adam", "mse", metrics=["mae"])
    return model, (X, Y)


KINDS = {"gan": gan, "teacher": teacher, "extended": extended}
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind):
    keras.utils.set_random_seed(1)
    return KINDS[kind]()


def fitted(kind, **options):
    model, (x, y) = made(kind)
    history = kerasdist.fit(
        model, x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, **options
    )
    return model, history.history


def difference(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


@each_kind
@pytest.mark.parametrize(("devices", "shards"), [(1, 1), (2, 2), (4, 4), (1, 4), (2, 4)])
def test_the_result_is_kerass(kind, devices, shards):
    those_here(devices)
    expected, (x, y) = made(kind)
    expected.jit_compile = False  # The fake GPUs have no XLA.
    history = expected.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    model, found = fitted(kind, devices=devices, shards=shards)
    assert difference(model, expected) < 1e-9
    assert sorted(found) == sorted(history)
    for name, values in history.items():
        assert found[name] == pytest.approx(values, abs=1e-9), name


@each_kind
def test_the_bits_are_the_same_on_1_2_and_4_devices(kind):
    one, history = fitted(kind, devices=1, deterministic=True)
    for devices in those_here(2, 4):
        model, found = fitted(kind, devices=devices, deterministic=True)
        assert digest(model) == digest(one)
        assert found == history


def test_evaluate_and_predict_use_the_models_own_steps(monkeypatch):
    engine, used = engines_module.Engine, []

    def noted(model, placement, settings):
        used.append(placement.num_replicas)
        return engine(model, placement, settings)

    monkeypatch.setattr(engines_module, "Engine", noted)
    for devices in those_here(1, 2, 4):
        model, _ = made("extended")
        model.jit_compile = False
        model.fit(X, Y, verbose=0)  # Keras's `evaluate` needs built metrics.
        found = kerasdist.evaluate(model, X, Y, batch_size=16, devices=devices)
        expected = model.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
        assert found == pytest.approx(expected, abs=1e-9)
        answers = kerasdist.predict(model, X, batch_size=16, devices=devices)
        for name, rows in model.predict(X, batch_size=16, verbose=0).items():
            np.testing.assert_allclose(answers[name], rows, atol=1e-12)
        assert used[-2:] == [devices, devices]


class Contrastive(keras.Model):
    """Compares the examples of a batch inside its step."""

    def __init__(self):
        super().__init__()
        self.encoder = dense(6, 4)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            codes = tf.math.l2_normalize(self.encoder(data), axis=1)
            loss = tf.reduce_mean(tf.reduce_logsumexp(codes @ tf.transpose(codes), axis=1))
        weights = self.encoder.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"shards": 4}])
def test_a_step_that_compares_examples_runs_whole_and_says_so(options, capsys):
    (devices,) = those_here(2)
    keras.utils.set_random_seed(1)
    expected, model = Contrastive(), Contrastive()
    for each in (expected, model):
        keras.utils.set_random_seed(1)
        each.compile("adam")
        each.encoder.build((None, 3))
        each.jit_compile = False
    model.encoder.set_weights(expected.encoder.get_weights())
    expected.fit(X, batch_size=16, epochs=2, shuffle=False, verbose=0)
    kerasdist.fit(model, X, batch_size=16, epochs=2, shuffle=False, devices=devices, **options)
    assert difference(model, expected) < 1e-12
    assert "trains on one device" in capsys.readouterr().out


class Drawing(keras.Model):
    """Draws with `tf.random` and with a generator of Keras's."""

    def __init__(self):
        super().__init__()
        self.layer, self.seeds = keras.layers.Dense(3), keras.random.SeedGenerator(1)

    def train_step(self, x):
        noise = tf.random.normal(tf.shape(x), dtype=x.dtype)
        noise += keras.random.uniform(tf.shape(x), dtype=x.dtype, seed=self.seeds)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.layer(x + noise) - x) ** 2)
        weights = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"noisy": loss}


def test_random_draws_depend_on_step_and_shard_alone():
    found = []
    for devices in (1, *those_here(2, 4)):
        keras.utils.set_random_seed(1)
        model = Drawing()
        model.compile("sgd")
        model.layer.build((None, 3))
        options = {"devices": devices, "shards": 4, "deterministic": True}
        history = kerasdist.fit(model, X, batch_size=16, epochs=2, verbose=0, **options)
        found.append((digest(model), tuple(history.history["noisy"])))
    assert len(set(found)) == 1
    assert len(set(found[0][1])) == 2  # Other numbers in each step.


class Growing(keras.Model):
    """Its loss is not finite from the third step on."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def train_step(self, data):
        x, y = data
        self.count.assign_add(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.layer(x) - y) ** 2)
            loss *= tf.where(self.count > 2, tf.constant(np.inf, loss.dtype), 1.0)
        weights = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.parametrize("shards", [2, 4])
def test_a_step_that_is_not_finite_is_not_written(shards):
    (devices,) = those_here(2)
    model = Growing()
    model.compile("sgd")
    options = {"devices": devices, "shards": shards, "verbose": 0}
    with pytest.raises(DivergedError, match=r"Step 3 .*gradient of .*kernel"):
        kerasdist.fit(model, X, Y, batch_size=8, **options)
    assert float(model.count) == 2.0
    assert np.isfinite(model.layer.kernel.numpy()).all()


def test_clip_norm_and_ema_count_for_own_steps():
    (devices,) = those_here(2)

    def trained(cls, **options):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((3,))
        model = cls(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        history = kerasdist.fit(
            model, X, Y, batch_size=16, shuffle=False, verbose=0, devices=devices, **options
        )
        return model, history.ema_weights

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    options = {"clip_norm": 0.05, "ema": 0.9}
    (own, averages), (plain, expected) = trained(Own, **options), trained(keras.Model, **options)
    assert difference(own, plain) < 1e-12
    for one, other in zip(averages, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    assert difference(own, trained(Own)[0]) > 1e-6


def test_a_run_of_an_own_step_resumes_with_the_same_bits(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("stopped")

    whole, _ = made("gan")
    options = {"batch_size": 16, "epochs": 2, "verbose": 0, "deterministic": True, "seed": 1}
    kerasdist.fit(whole, X, Z, devices=1, run_dir=tmp_path / "whole", **options)
    (devices,) = those_here(2)
    stopped, _ = made("gan")
    path = {"run_dir": tmp_path / "stopped", "save_every": 1}
    with pytest.raises(RuntimeError, match="stopped"):
        kerasdist.fit(stopped, X, Z, devices=devices, callbacks=[Stop()], **path, **options)
    resumed, _ = made("gan")
    kerasdist.fit(resumed, X, Z, devices=1, **path, **options)
    assert digest(resumed) == digest(whole)


def test_mixed_float16_scales_the_loss_of_an_own_step():
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    (devices,) = those_here(2)

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    def trained(cls):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((3,))
        layer = keras.layers.Dense(1, dtype="mixed_float16")
        model = cls(inputs, layer(inputs))
        inner = keras.optimizers.SGD(0.1)
        model.compile(keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2), "mse")
        kerasdist.fit(model, X, Y, batch_size=8, shuffle=False, verbose=0, devices=devices)
        return model

    own, plain = trained(Own), trained(keras.Model)
    assert difference(own, plain) < 1e-3  # Float16 rounds scaled gradients differently.
    assert float(own.optimizer.dynamic_scale) == float(plain.optimizer.dynamic_scale) != 2**15
    counts = [int(m.optimizer.inner_optimizer.iterations) for m in (own, plain)]
    assert counts[0] == counts[1] > 0


class Branching(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.layer(x) - y) ** 2)
        weights = self.layer.trainable_variables
        gradients = tape.gradient(loss, weights)

        def update():
            self.optimizer.apply(gradients, weights)
            return loss

        return {"loss": tf.cond(loss > 0, update, lambda: loss)}


def test_an_update_inside_a_branch_is_refused_by_name():
    model = Branching()
    model.compile("sgd")
    model.layer.build((None, 3))
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(KerasdistError, match=r"inside of `tf.cond`.*tf.where"):
        kerasdist.fit(model, X, Y, batch_size=16, verbose=0)


def test_summaries_are_left_out_with_a_note(tmp_path, capsys):
    model, (x, y) = made("extended")
    kerasdist.fit(model, x, y, batch_size=16, run_dir=tmp_path / "run", summary_every=1)
    assert "overrides `train_step`" in capsys.readouterr().out


def test_a_compiled_step_is_taken_out_of_its_tf_function():
    class Compiled(keras.Model):
        @tf.function
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            self.optimizer.apply(
                tape.gradient(loss, self.trainable_variables), self.trainable_variables
            )
            return {"loss": loss}

    found = []
    for run in (
        lambda m: m.fit(X, Y, batch_size=16, shuffle=False, verbose=0),
        lambda m: kerasdist.fit(m, X, Y, batch_size=16, shuffle=False, verbose=0, devices=2),
    ):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((3,))
        model = Compiled(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(model)
        found.append(model)
    assert difference(*found) < 1e-12


class Weighed(keras.Model):
    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x), sample_weight=weights)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"weighed": loss}


@pytest.mark.parametrize("devices", [1, 2])
def test_class_weights_reach_an_own_step(devices):
    those_here(devices)
    labels = (Y[:, 0] > 0).astype("int64")
    found = []
    for engine in ("keras", "kerasdist"):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((3,))
        model = Weighed(inputs, keras.layers.Dense(2, activation="softmax")(inputs))
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        options = {"batch_size": 16, "shuffle": False, "verbose": 0, "class_weight": {0: 1, 1: 5}}
        if engine == "keras":
            model.fit(X, labels, **options)
        else:
            kerasdist.fit(model, X, labels, devices=devices, **options)
        found.append(model)
    assert difference(*found) < 1e-9


class Telling(keras.Model):
    """Returns what it draws, and trains nothing with it."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.layer(x) - y) ** 2)
        weights = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"drawn": tf.random.normal(())}


def test_each_step_draws_other_numbers():
    model = Telling()
    model.compile("sgd")
    history = kerasdist.fit(model, X, Y, batch_size=64, epochs=3, verbose=0, devices=1)
    assert len(set(history.history["drawn"])) == 3
