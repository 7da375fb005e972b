"""`train_on_batch`, `test_on_batch` and `predict_on_batch` against Keras's own."""

import gc
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import DivergedError, KerasdistError
from kerasdist.engine.engine import Engine

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 5)).astype("float64")
LABELS = RANDOM.integers(0, 3, size=40)
SIZES = (16, 8, 16, 3, 1, 20)

each_number = pytest.mark.parametrize("devices", [1, 2, 4])


def classifier():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture
def engines(monkeypatch):
    """The engines that are made."""
    made = []
    begin = Engine.__init__

    def note(self, *args, **kwargs):
        made.append(weakref.ref(self))
        begin(self, *args, **kwargs)

    monkeypatch.setattr(Engine, "__init__", note)
    return made


def flat(results):
    return [np.asarray(part) for result in results for part in keras.tree.flatten(result)]


@each_number
def test_results_and_weights_are_those_of_keras(devices, engines):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")

    def program():
        model, results = classifier(), []
        for size in SIZES:
            x, y = X[:size], LABELS[:size]
            results += [
                model.train_on_batch(x, y),
                model.train_on_batch(x, y, sample_weight=np.arange(size) + 1.0, return_dict=True),
                model.train_on_batch(x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.5}),
                model.test_on_batch(x, y),
                model.test_on_batch(x, y, np.arange(size) + 1.0, return_dict=True),
                model.predict_on_batch(x),
            ]
        return results, model

    of_keras, other = program()
    with kerasdist.enable(devices=devices):
        ours, model = program()
    for mine, theirs in zip(ours, of_keras, strict=True):
        assert type(mine) is type(theirs)
        if isinstance(theirs, dict):
            assert mine.keys() == theirs.keys()
            for name in theirs:  # Arrays, in older versions of Keras.
                assert float(mine[name]) == pytest.approx(float(theirs[name]), rel=1e-9)
        else:
            for one, another in zip(flat([mine]), flat([theirs]), strict=True):
                np.testing.assert_allclose(one, another, rtol=1e-9)
    for one, another in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-9, atol=1e-12)
    # With and without weights, to train and to test, and to predict.
    assert len(engines) == 5


class TwoInputs(keras.Model):
    """It gets its inputs in a list."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, inputs):
        first, second = inputs
        return self.first(first) + self.second(second)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_list_of_inputs(devices):
    def program():
        keras.utils.set_random_seed(3)
        model, x, y = TwoInputs(), [X, X[:, :2]], X[:, :1]
        model.compile("sgd", "mse")
        losses = [model.train_on_batch(x, y), model.train_on_batch(x, y), model.test_on_batch(x, y)]
        return [np.asarray(loss) for loss in losses], model.predict_on_batch(x)

    expected, outputs = program()
    with kerasdist.enable(devices=devices):
        losses, found = program()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(found, outputs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_sizes_are_not_traced_again(devices, engines):
    model = classifier()
    with kerasdist.enable(devices=devices):
        for size in SIZES:
            model.train_on_batch(X[:size], LABELS[:size])
            model.test_on_batch(X[:size], LABELS[:size])
            model.predict_on_batch(X[:size])
    train, test, predict = (made() for made in engines)
    assert train.train_loop.experimental_get_tracing_count() == 1
    assert test.test_loop.experimental_get_tracing_count() == 1
    assert predict.predict_loop.experimental_get_tracing_count() <= 2


def test_a_call_after_the_first_is_quick():
    model = classifier()
    with kerasdist.enable(devices=2):
        model.train_on_batch(X, LABELS)
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            model.train_on_batch(X, LABELS)
            seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.01


@pytest.mark.parametrize("devices", [1, 2])
def test_weights_set_from_outside_are_seen(devices):
    model = classifier()
    with kerasdist.enable(devices=devices):
        model.train_on_batch(X, LABELS)
        model.test_on_batch(X, LABELS)
        model.predict_on_batch(X)
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
        model.reset_metrics()
        assert model.test_on_batch(X, LABELS)[0] == pytest.approx(np.log(3), rel=1e-6)
        np.testing.assert_allclose(model.predict_on_batch(X), 1 / 3, rtol=1e-6)
        assert model.train_on_batch(X, LABELS)[0] == pytest.approx(np.log(3), rel=1e-6)


@each_number
def test_a_gan_that_freezes_and_thaws_its_discriminator(devices, engines):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")

    def program():
        keras.utils.set_random_seed(3)
        judge = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        judge.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
        maker = keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])
        noise = keras.Input((2,))
        judge.trainable = False
        both = keras.Model(noise, judge(maker(noise)))
        both.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
        random, results = np.random.default_rng(4), []
        for _ in range(4):
            drawn = random.normal(size=(8, 2))
            made = maker.predict(drawn, verbose=0)
            judge.trainable = True
            answers = np.repeat([1.0, 0.0], 8)[:, None]
            results.append(judge.train_on_batch(np.concatenate([X[:8], made]), answers))
            judge.trainable = False
            results.append(both.train_on_batch(drawn, np.ones((8, 1))))
        return [*flat(results), *judge.get_weights(), *maker.get_weights()]

    of_keras = program()
    with kerasdist.enable(devices=devices):
        ours = program()
    for mine, theirs in zip(ours, of_keras, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-12)
    assert len(engines) == 3  # The judge's, both's, and the maker's to predict.


def test_compiling_again_makes_a_new_engine(engines):
    model = classifier()
    with kerasdist.enable(devices=1):
        model.train_on_batch(X, LABELS)
        model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
        before = model.get_weights()
        model.train_on_batch(X, LABELS)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert len(engines) == 2


def test_other_options_make_a_new_engine(engines):
    model = classifier()
    for devices in (1, 2, 1):
        with kerasdist.enable(devices=devices):
            model.train_on_batch(X, LABELS)
    assert len(engines) == 2


def test_engines_are_freed_with_their_model(engines):
    model = classifier()
    with kerasdist.enable(devices=2):
        model.train_on_batch(X, LABELS)
        model.test_on_batch(X, LABELS)
        model.predict_on_batch(X)
        there = weakref.ref(model)
        del model
        gc.collect()
        assert there() is None
        assert [made() for made in engines] == [None, None, None]
        other = classifier()  # With a queue that the first one had.
        assert len(other.train_on_batch(X, LABELS)) == 2


def test_a_model_with_engines_is_saved_as_before(tmp_path):
    model = classifier()
    with kerasdist.enable(devices=2):
        model.train_on_batch(X, LABELS)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded.predict_on_batch(X), model.predict_on_batch(X))


def test_deterministic_steps_have_the_same_bits_on_any_number_of_devices():
    found = []
    for devices in (1, 2, 4):
        model = classifier()
        with kerasdist.enable(devices=devices, deterministic=True):
            for size in SIZES:
                model.train_on_batch(X[:size].astype("float32"), LABELS[:size])
            values = [model.evaluate(X, LABELS, verbose=0), model.test_on_batch(X, LABELS)]
        found.append(repr(values).encode() + b"".join(w.tobytes() for w in model.get_weights()))
    assert len(set(found)) == 1


def test_a_step_that_is_not_finite_is_not_written():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    x, y = np.full((4, 2), 1e30, "float32"), np.ones((4, 1), "float32")
    before = model.get_weights()
    with kerasdist.enable(devices=2), pytest.raises(DivergedError, match="Step 1 is not finite"):
        model.train_on_batch(x, y)
    with kerasdist.enable(devices=2, on_nan="skip"):
        model.train_on_batch(x, y)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_wrong_batch_is_refused_and_the_next_one_works():
    model = classifier()
    with kerasdist.enable(devices=2):
        model.train_on_batch(X, LABELS)
        with pytest.raises(KerasdistError, match="class"):
            model.train_on_batch(X, LABELS + 1)
        with pytest.warns(UserWarning, match="NaN"), pytest.raises(DivergedError):
            model.train_on_batch(np.full_like(X, np.nan), LABELS)
        assert len(model.train_on_batch(X, LABELS)) == 2
        with pytest.raises(ValueError, match="cannot be specified at the same time"):
            model.train_on_batch(X, LABELS, sample_weight=X[:, 0], class_weight={0: 1.0})
        with pytest.raises(KerasdistError, match="`sample_weight` without `y`"):
            model.train_on_batch(X, sample_weight=X[:, 0])


def test_a_small_prediction_in_a_loop_is_compiled_once(engines):
    model = classifier()
    of_keras = model.predict(X[:7], verbose=0)
    with kerasdist.enable(devices=2):
        for _ in range(3):
            ours = model.predict(X[:7], verbose=0)
            assert ours.dtype == of_keras.dtype
            np.testing.assert_allclose(ours, of_keras, rtol=1e-6)
        assert len(engines) == 1
        np.testing.assert_allclose(model.predict(X, verbose=0)[:7], of_keras, rtol=1e-6)


def test_train_on_batch_says_once_that_it_saves_nothing(tmp_path, capsys):
    model = classifier()
    with kerasdist.enable(devices=1, run_dir=tmp_path / "fits"):
        model.train_on_batch(X, LABELS)
        model.train_on_batch(X, LABELS)
    assert capsys.readouterr().err.count("saves nothing in `run_dir`") == 1
    assert not (tmp_path / "fits").exists()


@pytest.mark.parametrize("devices", [1, 2])
def test_it_says_once_that_a_model_needs_one_device(devices, capsys):
    class Pairs(keras.Model):
        """Each row is compared with the one before it: a part of a batch has other pairs."""

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                found = self(x, training=True)
                loss = tf.reduce_mean(tf.abs(found[1:] * found[:-1]))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    model = Pairs()
    model.compile("sgd")
    with kerasdist.enable(devices=devices):
        for size in (16, 16, 8):
            model.train_on_batch(X[:size], X[:size, :1])
    told = capsys.readouterr().err
    assert told.count("trains on one device (CPU:0), with whole batches") == (devices > 1)


@pytest.mark.parametrize("options", [{}, {"deterministic": True}])
def test_batch_normalization_over_the_whole_batch_is_kerass(options):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")

    def program():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((5,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        results = [model.train_on_batch(X[:size], X[:size, :1]) for size in (16, 9)]
        return [*map(np.asarray, results), *model.get_weights()]

    of_keras = program()
    with kerasdist.enable(devices=2, sync_batch_norm=True, **options):
        ours = program()
    for mine, theirs in zip(ours, of_keras, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
