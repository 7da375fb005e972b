"""Models that read strings: Keras's results, and the same bits on any number of devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.bad_input import refusal
from tests.device_counts import those_here

NUM, BATCH = 22, 6
RANDOM = np.random.default_rng(4)
WORDS = RANDOM.choice(["red", "green", "blue", "teal"], NUM)
TEXTS = RANDOM.choice(["a b c", "b", "c c a d", "x", "Ä a!"], NUM)
NUMBERS, Y = RANDOM.normal(size=(NUM, 2)), RANDOM.normal(size=(NUM, 1))
layers = keras.layers


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def functional():
    word, number = keras.Input((1,), dtype="string", name="word"), keras.Input((2,), name="number")
    looked_up = layers.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")(word)
    joined = layers.Concatenate()([looked_up, layers.Dense(3)(number)])
    return keras.Model({"number": number, "word": word}, layers.Dense(1)(joined))


def sequential():
    vectors = layers.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=4)
    pooled = [layers.Embedding(6, 3, mask_zero=True), layers.GlobalAveragePooling1D()]
    return keras.Sequential([vectors, *pooled, layers.Dense(1)])


class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.vectors = layers.TextVectorization(output_mode="tf_idf")
        self.vectors.adapt(TEXTS)
        self.out = layers.Dense(1)

    def call(self, x):
        return self.out(self.vectors(x))


def hashed():
    word = keras.Input((1,), dtype="string")
    return keras.Model(word, layers.Dense(1)(layers.Hashing(5, output_mode="one_hot")(word)))


def feature_space():
    space = keras.utils.FeatureSpace(
        {"number": keras.utils.FeatureSpace.float(), "word": "string_categorical"},
        output_mode="concat",
    )
    data = {"word": WORDS, "number": NUMBERS[:, 0]}
    space.adapt(tf.data.Dataset.from_tensor_slices(data))
    encoded = space.get_encoded_features()
    return keras.Model(dict(space.get_inputs()), layers.Dense(1)(encoded))


MODELS = {
    "functional": (functional, {"number": NUMBERS, "word": WORDS[:, None]}),
    "sequential": (sequential, TEXTS),
    "subclassed": (Subclassed, TEXTS),
    "hashed": (hashed, WORDS[:, None]),
    "feature space": (feature_space, {"number": NUMBERS[:, :1], "word": WORDS[:, None]}),
}


def make(name):
    keras.utils.set_random_seed(1)
    model = MODELS[name][0]()
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def slices(x):
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)


def train(model, data, **options):
    size = None if isinstance(data, tf.data.Dataset) or callable(data) else BATCH
    return kerasdist.fit(
        model, data, batch_size=size, epochs=2, shuffle=False, progress=False, **options
    )


def assert_same(model, expected, most=1e-9):
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=most)


def by_keras(name):
    """A trained model, the results of its evaluation, and its outputs."""
    model, data = make(name), slices(MODELS[name][1])
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    return model, model.evaluate(data, verbose=0, return_dict=True), model.predict(data, verbose=0)


@pytest.mark.parametrize("name", MODELS)
def test_strings_train_evaluate_and_predict_as_in_keras(name):
    x = MODELS[name][1]
    expected, results, outputs = by_keras(name)
    for devices in those_here(1, 4):
        model = make(name)
        data = slices(x) if devices > 1 else (x, Y)
        train(model, data, devices=devices, validation_data=(x, Y))
        assert_same(model, expected)
    found = kerasdist.evaluate(model, (x, Y), batch_size=BATCH, devices=devices)
    assert found == pytest.approx(results, abs=1e-9)
    own = kerasdist.predict(model, x, batch_size=BATCH, devices=devices)
    np.testing.assert_allclose(own, outputs, atol=1e-9)


@pytest.mark.parametrize("name", ["functional", "subclassed"])
def test_the_same_bits_on_any_number_of_devices(name):
    x = MODELS[name][1]
    found = []
    for devices in those_here(1, 2, 4):
        model = make(name)
        train(model, (x, Y), devices=devices, shards=4, deterministic=True)
        found.append(model)
    for model in found[1:]:
        assert_same(model, found[0], 0)


@pytest.mark.parametrize(
    "convert",
    [
        lambda words: words.astype(object),
        lambda words: np.char.encode(words, "utf-8"),
        lambda words: words.tolist(),
        tf.constant,
        lambda words: pytest.importorskip("pandas").Series(words),
        lambda words: pytest.importorskip("pandas").Series(words).astype("category"),
    ],
    ids=["objects", "bytes", "list", "tensor", "pandas", "categories of pandas"],
)
def test_forms_of_strings(convert):
    expected, model = make("sequential"), make("sequential")
    train(expected, slices(TEXTS))
    train(model, (convert(TEXTS), Y))
    assert_same(model, expected)


def test_strings_of_a_generator_and_of_examples():
    expected = make("sequential")
    train(expected, slices(TEXTS))

    def batches():
        for first in range(0, NUM, BATCH):
            yield TEXTS[first : first + BATCH], Y[first : first + BATCH]

    for data in (batches, list(zip(TEXTS, Y, strict=True))):
        model = make("sequential")
        train(model, data)
        assert_same(model, expected)


def test_a_run_with_strings_is_resumed(tmp_path):
    def trained(steps, **options):
        model = make("subclassed")
        kerasdist.fit(
            model, (TEXTS, Y), batch_size=BATCH, steps=steps, seed=3, progress=False, **options
        )
        return model

    expected = trained(7)
    trained(5, run_dir=tmp_path)
    assert_same(trained(7, run_dir=tmp_path), expected)
    loaded = keras.models.load_model(
        tmp_path / "final.keras", custom_objects={"Subclassed": Subclassed}
    )
    assert_same(loaded, expected)


class OwnLoss(keras.Model):
    """Its loss reads strings as targets."""

    lookup = layers.StringLookup(vocabulary=["red", "green"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        numbers = keras.ops.cast(self.lookup(y), "float64")
        return keras.ops.mean((numbers[:, None] - y_pred) ** 2)


def test_strings_as_targets_train_where_the_loss_reads_them():
    def fresh():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((2,))
        model = OwnLoss(inputs, layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.1))
        return model

    expected = fresh()
    data = tf.data.Dataset.from_tensor_slices((NUMBERS, WORDS)).batch(BATCH)
    expected.fit(data, epochs=2, shuffle=False, verbose=0)
    for devices in those_here(1, 2):
        model = fresh()
        train(model, (NUMBERS, WORDS), devices=devices)
        assert_same(model, expected)


@pytest.mark.parametrize("loss", ["mse", "sparse_categorical_crossentropy"])
def test_strings_as_targets_are_refused_where_the_loss_cannot_read_them(loss, not_compiled):
    model = keras.Sequential([layers.Dense(3, activation="softmax")])
    model.compile("sgd", loss)
    message = refusal(model, (NUMBERS, WORDS))
    assert "strings as the target 'y'" in message
    assert "np.unique(labels, return_inverse=True)" in message
    assert "Begin the model" not in message


def test_jit_is_refused(not_compiled):
    message = refusal(make("sequential"), (TEXTS, Y), jit=True)
    assert "`jit=True` and strings in the field 'x'" in message


def test_a_shape_that_does_not_fit_is_said_once(not_compiled):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    message = refusal(model, (np.ones((10, 6)), np.ones((10, 1))))
    assert "The model's input has the shape (None, 8), the data (None, 6)" in message
    assert "shapes and types that fit" not in message
