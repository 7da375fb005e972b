"""Preparation of batches: no waiting for tf.data's tuning, and few compilations."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import open_stream
from tests.data.every_form import BATCH, FORMS, X, Y, make_model


def iterated(data, **sized):
    """The dataset that is read in a pass over `data`."""
    stream = open_stream(data, **sized)
    prepare = preparation(make_model(), stream, labels=(), name="d")
    dataset = prepare(stream.open(0, 0), 0, 0)
    stream.close()
    return dataset


@pytest.mark.parametrize("form", ["arrays", "dataset of batches"])
def test_the_end_of_a_pass_does_not_wait_for_the_tuning_of_its_dataset(form):
    make, sized = FORMS[form]
    dataset = iterated(make(), **sized)
    assert dataset.options().autotune.enabled is False
    for _ in range(4):
        iterator = iter(dataset)
        next(iterator)
        time.sleep(0.7)
        began = time.perf_counter()
        del iterator
        # A tuned one ends 1.27 seconds after it began, in every other case.
        assert time.perf_counter() - began < 0.4


def test_a_dataset_is_tuned_if_its_options_ask_for_it():
    options = tf.data.Options()
    options.autotune.enabled = True
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).with_options(options)
    assert iterated(dataset).options().autotune.enabled is True


def sequences(lengths, sizes):
    for length, size in zip(lengths, sizes, strict=True):
        yield np.ones((size, length, 2), "float32"), np.ones((size, 1), "float32")


def of_lengths():
    yield from sequences(range(1, 51), [3] * 50)


def of_sizes():
    yield from sequences([3] * 50, range(1, 51))


def of_both():
    yield from sequences(range(50, 0, -1), range(1, 51))


@pytest.mark.parametrize(
    ("form", "batches", "devices"),
    [
        ("generator function", of_sizes, 1),
        ("generator function", of_lengths, 1),
        ("generator function", of_both, 2),
        ("dataset", of_sizes, 1),
        ("dataset", of_lengths, 2),
    ],
)
def test_fifty_sizes_or_lengths_compile_at_most_twice(form, batches, devices, engines):
    data = batches
    if form == "dataset":
        signature = tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, 1])
        data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, data, epochs=2, devices=devices, progress=False)
    assert int(model.optimizer.iterations) == 100
    (engine,) = engines
    assert engine.train_loop.experimental_get_tracing_count() <= (1 if form == "dataset" else 2)


def test_arrays_of_an_uneven_number_compile_once(engines):
    numbers = {"batch_size": np.int64(BATCH), "epochs": np.int32(3), "seed": np.uint8(1)}
    kerasdist.fit(make_model(), (X, Y), **numbers, progress=False)
    assert engines[0].train_loop.experimental_get_tracing_count() == 1
