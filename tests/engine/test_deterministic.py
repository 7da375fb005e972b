"""`deterministic=True`: the same bits on any number of devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.runs.trained_model import weights_sha256

RANDOM = np.random.default_rng(5)
IMAGES = RANDOM.normal(size=(43, 8, 8, 3)).astype("float32")
LABELS = RANDOM.integers(0, 10, 43)
TOKENS = RANDOM.integers(1, 20, size=(21, 7))
TOKENS[3:9, 4:] = 0


def convolutional():
    l2 = keras.regularizers.L2(0.01)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, kernel_regularizer=l2),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def masked_recurrent():
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 6, mask_zero=True),
            keras.layers.GRU(5, return_sequences=True, dropout=0.2),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    return model


def attention():
    inputs = keras.Input((7,), dtype="int32")
    hidden = keras.layers.Embedding(20, 8)(inputs)
    hidden = keras.layers.MultiHeadAttention(2, 4)(hidden, hidden)
    hidden = keras.layers.LayerNormalization()(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def digest(build, data, replicas, shards, **options):
    """The hash of all weights after two epochs, the last batch of each uneven."""
    options = {"seed": 0} | options
    history = kerasdist.fit(
        build,
        data,
        batch_size=16,
        epochs=2,
        devices=replicas,
        shards=shards,
        deterministic=True,
        progress=False,
        **options,
    )
    optimizer = b"".join(v.numpy().tobytes() for v in history.model.optimizer.variables)
    average = b"".join(w.tobytes() for w in history.ema_weights or ())
    return weights_sha256(history.model), optimizer, average


@pytest.mark.parametrize(("shards", "counts"), [(4, (1, 2, 4)), (12, (1, 3, 6))])
def test_everything_at_once_has_the_same_bits(shards, counts):
    """Convolution, BatchNorm, dropout, L2, Adam, clipping, EMA, an uneven last batch."""
    results = {
        digest(convolutional, (IMAGES, LABELS), n, shards, clip_norm=0.5, ema=0.9) for n in counts
    }
    assert len(results) == 1


@pytest.mark.parametrize("gathered", [False, True])
def test_logs_have_the_same_bits(gathered):
    """A near tie of two validations must not choose another epoch on other devices."""

    def build():
        model = convolutional()
        if gathered:  # A mean over the batch does not add up over shards.
            accuracy = keras.metrics.sparse_categorical_accuracy
            mean = lambda y, p: keras.ops.mean(accuracy(y, p)) / 3  # noqa: E731
            model.compile(keras.optimizers.Adam(0.01), model.loss, metrics=[mean])
        return model

    def logs(replicas):
        history = kerasdist.fit(
            build,
            (IMAGES, LABELS),
            validation_data=(IMAGES[:37] + 1, LABELS[:37]),
            batch_size=16,
            epochs=2,
            devices=replicas,
            shards=4,
            deterministic=True,
            seed=0,
            ema=0.9,
            progress=False,
        )
        return {k: v for k, v in history.history.items() if "second" not in k}

    first = logs(1)
    assert {"loss", "val_loss"} < first.keys()
    assert first == logs(2) == logs(4)


@pytest.mark.parametrize("build", [masked_recurrent, attention])
def test_sequence_models_have_the_same_bits(build):
    targets = RANDOM.normal(size=(21, 7, 3)).astype("float32")
    results = {digest(build, (TOKENS, targets), n, 4) for n in (1, 2, 4)}
    assert len(results) == 1


def test_bfloat16_has_the_same_bits():
    results = {
        digest(convolutional, (IMAGES, LABELS), n, 4, precision="mixed_bfloat16") for n in (1, 4)
    }
    assert len(results) == 1


def test_other_seeds_and_shards_have_other_bits():
    first = digest(convolutional, (IMAGES, LABELS), 1, 4)
    assert first == digest(convolutional, (IMAGES, LABELS), 1, 4)
    assert first != digest(convolutional, (IMAGES, LABELS), 1, 4, seed=1)
    assert first != digest(convolutional, (IMAGES, LABELS), 1, 2)


def test_shards_default_to_at_least_four():
    default = digest(convolutional, (IMAGES, LABELS), 1, None)
    assert default == digest(convolutional, (IMAGES, LABELS), 2, None)
    assert default == digest(convolutional, (IMAGES, LABELS), 1, 4)


@pytest.mark.parametrize("before", [True, False, None])
def test_global_settings_are_as_before(before, regression):
    options = tf.config.optimizer
    options.set_experimental_options({"constant_folding": before})
    try:
        settings = (options.get_experimental_options(), keras.config.dtype_policy().name)
        inside = []
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: inside.append(options.get_experimental_options())
        )
        kerasdist.fit(
            model,
            regression,
            batch_size=8,
            deterministic=True,
            callbacks=[callback],
            progress=False,
        )
        assert inside[0]["constant_folding"] is False
        assert inside[0]["remapping"] is False
        assert (options.get_experimental_options(), keras.config.dtype_policy().name) == settings
    finally:
        options.set_experimental_options({"constant_folding": None})


def test_settings_are_put_back_after_an_error(regression):
    def fails():
        keras.backend.clear_session()
        raise ZeroDivisionError

    before = tf.config.optimizer.get_experimental_options(), keras.config.dtype_policy().name
    with pytest.raises(ZeroDivisionError):
        kerasdist.fit(fails, regression, batch_size=8, precision="mixed_bfloat16")

    def stops(epoch, logs):
        raise ZeroDivisionError

    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(ZeroDivisionError):
        kerasdist.fit(
            model,
            regression,
            batch_size=8,
            deterministic=True,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=stops)],
        )
    after = tf.config.optimizer.get_experimental_options(), keras.config.dtype_policy().name
    assert after == before


def swish():
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="swish"),
            keras.layers.Dense(8, activation="silu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_what_grappler_fuses_in_one_graph_alone_has_the_same_bits(precision):
    """x * sigmoid(x) was fused on 1 device and not on 4, and rounded differently."""
    data = (IMAGES.reshape(43, -1), LABELS)
    results = {digest(swish, data, n, 4, precision=precision) for n in (1, 2, 4)}
    assert len(results) == 1


def triplets(size):
    """Three branches share a weight: its gradient is a sum of three."""
    shared = keras.layers.Dense(size, use_bias=False)
    whole = keras.Input((3, size))
    branches = [shared(whole[:, i]) for i in range(3)]
    model = keras.Model(whole, keras.layers.Dense(1)(keras.layers.Concatenate()(branches)))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def test_gradients_of_a_large_shared_weight_are_added_in_a_fixed_order():
    """Above 80% of 256 MB, Grappler's memory optimizer added them in the order of arrival."""
    x = np.random.default_rng(0).normal(size=(8, 3, 4096)).astype("float32")
    data = (x, x[:, 0, :1])
    found = {digest(lambda: triplets(4096), data, count, None) for count in (1, 2, 1, 2)}
    assert len(found) == 1
