"""Data of a wrong form: empty, unknown, or with no batch size or two."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.forms.arrays import ArrayStream
from tests.bad_input import Provider, X, Y, batches, dataset, refusal, regressor


def test_ragged_elements_of_a_dataset(not_compiled):
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]] * 5)
    message = refusal(regressor(), dataset(ragged, Y))
    assert "ragged float32(None, None) for the model's input" in message
    assert "(None, 4)" in message
    inner = tf.data.Dataset.from_tensors(dataset(X, Y))
    assert "element of DatasetSpec" in refusal(regressor(), inner)


def test_examples_of_different_shapes(not_compiled):
    data = [(np.ones(4), 1.0), (np.ones(3), 1.0)]
    message = refusal(regressor(), data, shuffle=False)
    assert "batch 0 (from 0) of `data`" in message
    assert "(3,)" in message
    assert "(4,)" in message


class Nothing(keras.utils.PyDataset):
    def __len__(self):
        return 0


@pytest.mark.parametrize(
    "data",
    [
        (X[:0], Y[:0]),
        [],
        {},
        (),
        dataset(X, Y).take(0),
        Nothing(),
        lambda: iter(()),
        (x for x in ()),
    ],
    ids=["arrays", "list", "dict", "tuple", "dataset", "PyDataset", "function", "generator"],
)
def test_an_empty_data_set(data, not_compiled):
    sized = isinstance(data, (tuple, list, dict, tf.data.Dataset))
    message = refusal(regressor(), data, batch_size=5 if sized else None)
    assert any(part in message for part in ("0 examples", "no elements", "0 batches", "no batches"))


def test_an_empty_data_set_of_unknown_size():
    data = dataset(X, Y).filter(lambda x, y: False)
    assert "gave no batch in pass 1" in refusal(regressor(), data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (7, "int"),
        ({1, 2}, "set"),
        ((dataset(X), dataset(Y)), "0: _TensorSliceDataset"),
        ({"image": X, "label": None}, "'label': NoneType"),
    ],
)
def test_data_of_an_unknown_form(data, kind, not_compiled):
    message = refusal(regressor(), data)
    assert kind in message
    for form in ("tf.data.Dataset", "PyDataset", "get_batch_data()", "generator function"):
        assert form in message


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, True, "8"])
def test_a_batch_size_that_is_no_number_of_examples(batch_size, not_compiled):
    message = refusal(regressor(), (X, Y), batch_size=batch_size)
    assert f"batch_size={batch_size!r}" in message
    assert "at least 1" in message


@pytest.mark.parametrize(
    "data",
    [[(X[0], 1.0)], dataset(X, Y[:, 0]), dataset(X, Y)],
    ids=["examples", "dataset", "dataset of vectors"],
)
def test_batch_size_missing(data, not_compiled):
    message = refusal(regressor(), data, batch_size=None)
    assert "no `batch_size`" in message
    assert "`batch_size=128`" in message


class Sized(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return X, Y


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (dataset(X, Y).batch(5), "of batches"),
        (dataset(X, Y).batch(5, drop_remainder=True).prefetch(1), "of batches"),
        (Sized(), "PyDataset"),
        (Provider(), "a provider"),
        (batches(X, Y), "a generator function"),
        (batches(X, Y)(), "a generator"),
    ],
    ids=["dataset", "dataset of equal batches", "PyDataset", "provider", "function", "generator"],
)
def test_batch_size_given_twice(data, kind, not_compiled):
    message = refusal(regressor(), data, batch_size=5)
    assert "`batch_size=5` with `data`" in message
    assert kind in message
    assert "Leave `batch_size` out" in message


def test_examples_with_equal_sizes_are_no_batches():
    """An image and its mask have the same height."""
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, dataset(X, X), batch_size=5, progress=False)
    assert int(model.optimizer.iterations) == 2


def test_a_provider_without_its_parts(not_compiled):
    class Unsized:
        def get_batch_data(self):
            return X, Y

    class Silent:
        batch_size = 4

    class Odd(Unsized):
        batch_size = "many"

    message = refusal(regressor(), Unsized(), batch_size=None)
    assert "'Unsized' without `batch_size`" in message
    message = refusal(regressor(), kerasdist.read_provider(Silent()), batch_size=None)
    assert "'Silent' without `get_batch_data`" in message
    assert "`batch_size='many'`" in refusal(regressor(), Odd(), batch_size=None)
    message = refusal(regressor(), Provider, batch_size=None)
    assert "the class 'Provider'" in message
    assert "`Provider(...)`" in message


@pytest.mark.parametrize("option", ["reader_threads", "capacity"])
@pytest.mark.parametrize("value", [0, 1.5, True])
def test_options_of_a_provider(option, value):
    with pytest.raises(kerasdist.KerasdistError, match=f"`{option}={value!r}`.*at least 1"):
        kerasdist.read_provider(Provider(), **{option: value})


def test_a_function_that_yields_nothing(not_compiled):
    message = refusal(regressor(), lambda: None, batch_size=None)
    assert "a function that returned NoneType" in message


class Named(kerasdist.Model):
    features, targets = "x", "y"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize("extra", [np.arange(20), np.array([f"{i}.png" for i in range(20)])])
def test_fields_that_a_model_does_not_read_cost_nothing(extra, monkeypatch):
    """Small batches of arrays are cut by the compiled loop, not by a pipeline for each epoch."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    fields, weights = {"x": x, "y": x[:, :1]}, []
    monkeypatch.setattr(ArrayStream, "open", lambda *_: pytest.fail("a pipeline was opened"))
    for data in (fields, {"path": extra, **fields}):
        model = Named()
        model.compile("sgd", "mse")
        kerasdist.fit(model, data, batch_size=4, epochs=2, seed=0, verbose=0)
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)
