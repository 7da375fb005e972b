"""`augment`: a function of seed and position, which may change shapes and fields."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.feed import Feed
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import open_stream
from tests.data.every_form import BATCH, FORMS, IDS, X, Y, make_model, named_slices


def noisy(batch, seed):
    x, y = batch
    return x + tf.random.stateless_normal(tf.shape(x), seed), y


def augmented(form, epoch, position, seed=3):
    make, sized = FORMS[form]
    stream = open_stream(make(), **sized)
    model = make_model()
    feed = Feed(
        stream, prepare=preparation(model, stream, labels=(), name="d", augment=noisy, seed=seed)
    )
    feed.open(epoch, position)
    batches = [x.numpy() for x, _ in feed.iterator]
    feed.close()
    return batches


@pytest.mark.parametrize("form", ["arrays", "generator function", "dataset of batches"])
def test_augmentation_is_a_function_of_seed_and_position(form):
    whole = augmented(form, 1, 0)
    rest = augmented(form, 1, 2)
    assert len(rest) == 4
    for resumed, original in zip(rest, whole[2:], strict=True):
        np.testing.assert_array_equal(resumed, original)
    noise = [x - X[i * BATCH : (i + 1) * BATCH] for i, x in enumerate(whole[:2])]
    assert not np.allclose(noise[0], noise[1], atol=1e-3)
    assert not np.allclose(whole[0], augmented(form, 0, 0)[0], atol=1e-3)
    assert not np.allclose(whole[0], augmented(form, 1, 0, seed=4)[0], atol=1e-3)


@pytest.mark.parametrize("form", ["arrays", "generator function", "dataset of batches"])
def test_augmentation_is_told_the_epoch_if_it_asks(form):
    def mark(batch, seed, epoch):
        x, y = batch
        return x + 100 * tf.cast(epoch, x.dtype), y

    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append([])

    make, sized = FORMS[form]
    model = Recorder(seen)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    kerasdist.fit(
        model, make(), **sized, epochs=3, augment=mark, callbacks=[Watch()], progress=False
    )
    for epoch, values in enumerate(seen):
        assert sorted(values) == [float(i + 100 * epoch) for i in IDS]


class Recorder(keras.Model):
    """Notes the first column of each example it trains on."""

    def __init__(self, seen):
        super().__init__()
        # In a function: Keras would make a copy of a list.
        self.note = lambda ids: seen[-1].extend(ids.numpy().tolist())
        self.dense = keras.layers.Dense(1)

    def call(self, x, training=False):
        if training:
            tf.py_function(self.note, [x[:, 0]], [])
        return self.dense(x)


def test_augmentation_may_change_shapes_and_types():
    images = np.random.default_rng(0).integers(0, 255, size=(9, 8, 8, 1)).astype("uint8")

    def crop(batch, seed):
        image, label = batch
        shape = [tf.shape(image)[0], 6, 6, 1]
        image = tf.image.stateless_random_crop(image, shape, seed)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255, [None, 6, 6, 1]), label

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    kerasdist.fit(model, (images, np.zeros(9)), batch_size=4, augment=crop, progress=False)
    assert model.layers[1].kernel.shape == (36, 2)


def test_augmentation_may_make_the_fields_that_the_model_reads():
    def name(batch, seed):
        return {"x": batch["raw"], "y": batch["y"]}

    for data in ({"raw": X, "y": Y}, named_slices(raw=X, y=Y)):
        history = kerasdist.fit(
            make_model("dict"), data, batch_size=BATCH, augment=name, progress=False
        )
        np.testing.assert_allclose(history.history["mean_target"], [Y.mean()], atol=1e-5)


@pytest.mark.parametrize("augment", [lambda batch: batch, 3, lambda: None])
def test_what_does_not_take_a_batch_and_a_seed_is_refused(augment):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 3), "float32")
    with pytest.raises(kerasdist.KerasdistError, match="Expected a function of a batch and a seed"):
        kerasdist.fit(model, x, x[:, :1], augment=augment, progress=False)
