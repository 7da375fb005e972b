"""Sparse and ragged inputs: Keras's results, and the same bits on any number of devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.composite_data import as_composite
from kerasdist.data.streams import open_stream
from tests.bad_input import refusal
from tests.device_counts import those_here

# Minutes in all: `.ci/full` runs them.
pytestmark = pytest.mark.slow

NUM, BATCH = 22, 6
RANDOM = np.random.default_rng(4)
DENSE = RANDOM.normal(size=(NUM, 7)) * (RANDOM.random((NUM, 7)) < 0.3)
DENSE[3] = 0
SPARSE = tf.sparse.from_dense(DENSE)
LENGTHS = RANDOM.integers(1, 6, NUM)
RAGGED = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=(LENGTHS.sum(), 3)), LENGTHS)
WORDS = tf.RaggedTensor.from_row_lengths(RANDOM.integers(0, 9, LENGTHS.sum()), LENGTHS)
Y = RANDOM.normal(size=(NUM, 1))
layers = keras.layers


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


class Mean(layers.Layer):
    def call(self, x):
        return tf.reduce_mean(x, axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], *shape[2:])


def sparse():
    inputs = keras.Input((7,), sparse=True)
    return keras.Model(inputs, layers.Dense(1)(layers.Dense(4, activation="tanh")(inputs)))


def sparse_and_dense():
    both = keras.Input((7,), sparse=True), keras.Input((7,))
    joined = layers.Concatenate()([layers.Dense(4)(both[0]), both[1]])
    return keras.Model(list(both), layers.Dense(1)(joined))


def ragged():
    inputs = keras.Input((None, 3), ragged=True)
    return keras.Model(inputs, layers.Dense(1)(Mean()(inputs)))


def embedded():
    return keras.Sequential([layers.Embedding(9, 4), Mean(), layers.Dense(1)])


def sparse_categories():
    lookup = layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="multi_hot", sparse=True)
    return keras.Sequential([keras.Input((2,), dtype="int64"), lookup, layers.Dense(1)])


MODELS = {
    "sparse": (sparse, SPARSE),
    "sparse and dense": (sparse_and_dense, [SPARSE, DENSE]),
    "sparse without an input": (lambda: keras.Sequential([layers.Dense(1)]), SPARSE),
    "ragged": (ragged, RAGGED),
    "embedded": (embedded, WORDS),
    "sparse inside": (sparse_categories, RANDOM.integers(0, 5, (NUM, 2))),
}


def make(name):
    keras.utils.set_random_seed(1)
    model = MODELS[name][0]()
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def train(model, data, size=BATCH, **options):
    return kerasdist.fit(
        model, data, batch_size=size, epochs=2, shuffle=False, progress=False, **options
    )


def assert_same(model, expected, most=1e-9):
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=most)


@pytest.mark.parametrize("name", MODELS)
def test_they_train_evaluate_and_predict_as_in_keras(name):
    x = MODELS[name][1]
    expected = make(name)
    expected.fit(x, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    results = expected.evaluate(x, Y, batch_size=BATCH, verbose=0, return_dict=True)
    outputs = expected.predict(x, verbose=0)
    for devices in those_here(1, 4):
        model = make(name)
        train(model, (x, Y), devices=devices, validation_data=(x, Y))
        assert_same(model, expected)
    found = kerasdist.evaluate(model, (x, Y), batch_size=BATCH, devices=devices)
    assert found == pytest.approx(results, abs=1e-9)
    own = kerasdist.predict(model, (x,), batch_size=BATCH, devices=devices)
    np.testing.assert_allclose(own, outputs, atol=1e-9)


@pytest.mark.parametrize("name", ["sparse", "ragged"])
def test_the_same_bits_on_any_number_of_devices(name):
    found = []
    for devices in those_here(1, 2, 4):
        model = make(name)
        data = (MODELS[name][1], Y)
        kerasdist.fit(
            model,
            data,
            batch_size=BATCH,
            epochs=2,
            seed=7,
            devices=devices,
            shards=4,
            deterministic=True,
            progress=False,
        )
        found.append(model)
    for model in found[1:]:
        assert_same(model, found[0], 0)


@pytest.mark.parametrize("name", ["sparse", "ragged"])
def test_elements_of_datasets_and_batches_of_generators(name):
    x = MODELS[name][1]
    expected = make(name)
    train(expected, (x, Y))
    examples = tf.data.Dataset.from_tensor_slices((x, Y))
    batches = examples.batch(BATCH)
    for data, size in ((examples, BATCH), (batches, None), (lambda: iter(batches), None)):
        model = make(name)
        train(model, data, size, devices=2)
        assert_same(model, expected)


def passes(data, **options):
    stream = open_stream(data, batch_size=4, shuffle=True, seed=3)
    try:
        return [list(stream.open(epoch, start)) for epoch, start in ((0, 0), (0, 2), (1, 0))]
    finally:
        stream.close()


@pytest.mark.parametrize("is_dataset", [False, True])
def test_shuffled_rows_stay_with_their_targets(is_dataset):
    ids = np.arange(NUM)
    data = (SPARSE, RAGGED, ids)
    if is_dataset:
        data = tf.data.Dataset.from_tensor_slices(data)
    first, rest, second = passes(data)
    order = np.concatenate([batch[2] for batch in first])
    assert sorted(order) == list(ids)
    assert list(order) != list(ids)
    assert list(order) != list(np.concatenate([batch[2] for batch in second]))
    for batch in first:
        np.testing.assert_array_equal(tf.sparse.to_dense(batch[0]), DENSE[batch[2]])
        assert batch[1].to_list() == tf.gather(RAGGED, batch[2]).to_list()
    np.testing.assert_array_equal(np.concatenate([b[2] for b in rest]), order[8:])


def test_matrices_of_scipy():
    kind = type("csr_matrix", (), {"__module__": "scipy.sparse._csr"})
    rows, columns = np.nonzero(DENSE)
    matrix = kind()
    matrix.row, matrix.col, matrix.data = rows, columns, DENSE[rows, columns]
    matrix.shape = DENSE.shape
    kind.tocoo = lambda self: self
    kind.sum_duplicates = lambda self: None
    expected, model = make("sparse"), make("sparse")
    train(expected, (SPARSE, Y))
    train(model, (matrix, Y))
    assert_same(model, expected, 0)


def test_matrices_of_jax():
    kind = type("BCOO", (), {"__module__": "jax.experimental.sparse.bcoo", "n_batch": 0})
    rows, columns = np.nonzero(DENSE)
    matrix = kind()
    # The last entry is padding, as JAX makes it.
    matrix.indices = np.append(np.stack([rows, columns], 1), [DENSE.shape], axis=0).astype("int32")
    matrix.data = np.append(DENSE[rows, columns], 7.0)
    matrix.shape, matrix.n_dense = DENSE.shape, 0
    kind.sum_duplicates = lambda self: self
    expected, model = make("sparse"), make("sparse")
    train(expected, (SPARSE, Y))
    train(model, (matrix, Y))
    assert_same(model, expected, 0)


def test_a_real_matrix_of_jax():
    sparse = pytest.importorskip("jax.experimental.sparse")
    found = as_composite(sparse.BCOO.fromdense(DENSE.astype("float32"), nse=DENSE.size))
    np.testing.assert_array_equal(tf.sparse.to_dense(found), DENSE.astype("float32"))


def test_a_run_is_resumed_and_other_data_is_refused(tmp_path):
    def trained(steps, x=SPARSE, **options):
        model = make("sparse")
        kerasdist.fit(
            model, (x, Y), batch_size=BATCH, steps=steps, seed=3, progress=False, **options
        )
        return model

    expected = trained(7)
    trained(5, run_dir=tmp_path)
    assert_same(trained(7, run_dir=tmp_path), expected)
    with pytest.raises(kerasdist.KerasdistError, match="the data differ"):
        trained(9, x=tf.sparse.from_dense(DENSE * 2), run_dir=tmp_path)


class Doubled(keras.Model):
    def call(self, x):
        return x * 2.0


@pytest.mark.parametrize("devices", [1, 2])
def test_predictions_may_be_ragged(devices):
    found = kerasdist.predict(Doubled(), (RAGGED,), batch_size=BATCH, devices=devices)
    assert found.to_list() == Doubled().predict(RAGGED, verbose=0).to_list()


@pytest.mark.parametrize(("x", "kind"), [(RAGGED, "ragged"), (SPARSE, "sparse")])
def test_nan_is_found(x, kind):
    wrong = 5 if kind == "ragged" else int(np.nonzero(DENSE.any(axis=1))[0][4])
    values = np.array(x.flat_values if kind == "ragged" else x.values)
    place = LENGTHS[:5].sum() if kind == "ragged" else list(x.indices[:, 0]).index(wrong)
    values[place] = np.nan
    bad = x.with_flat_values(values) if kind == "ragged" else x.with_values(values)
    message = refusal(make(kind), (bad, Y))
    assert f"NaN or infinity in `data` (x, example {wrong} (from 0))" in message
    data = tf.data.Dataset.from_tensor_slices((bad, Y)).batch(BATCH)
    with pytest.raises(kerasdist.KerasdistError, match=r"NaN or infinity in `data` \(x, batch"):
        kerasdist.evaluate(make(kind), data)


def test_what_keras_cannot_read_is_refused_by_name(not_compiled):
    model = keras.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    message = refusal(model, (RAGGED, Y))
    assert "x: ragged float64(None, None, 3)" in message
    data = [(tf.sparse.from_dense(row), 1.0) for row in DENSE]
    assert "values of the type SparseTensor in batch 0" in refusal(model, data)


def test_batches_of_another_kind_are_refused():
    def batches():
        yield SPARSE, Y
        yield DENSE, Y

    told = r"Received an array in batch 1 \(from 0\) of `data` after a sparse tensor"
    with pytest.raises(kerasdist.KerasdistError, match=told):
        train(make("sparse"), batches, None)


def test_jit_is_refused(not_compiled):
    message = refusal(make("sparse"), (SPARSE, Y), jit=True)
    assert "`jit=True` and a sparse tensor in the field 'x'" in message
    model = make("sparse")
    model.compile("sgd", "mse", jit_compile=True)
    assert "`jit_compile=True` and a sparse tensor" in refusal(model, (SPARSE, Y))
