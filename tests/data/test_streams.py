"""Every form of `data`: each example once per epoch, in an order that can be resumed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.streams import open_stream
from tests.data.every_form import BATCH, FORMS, IDS, NUM, SIZED, X, Y, make_model, mean_target

ONCE = {"generator"}
# These differ in nothing but what a batch is read from.
ALIKE = {
    "arrays of lists",
    "arrays with None",
    "tensors",
    "source of many",
    "source of dicts",
    "list of examples",
    "dataset of dicts",
    "provider",
    "generator function of lists",
}
SHUFFLED = ["arrays", "source", "source of many", "dataset of examples"]


def read_batches(form, epoch=0, start=0, **options):
    """The ids of each batch of a pass, from newly made data."""
    make, sized = FORMS[form]
    stream = open_stream(make(), **sized, **options)
    try:
        return ids_of(stream, epoch, start)
    finally:
        stream.close()


def ids_of(stream, epoch, start):
    ids, dataset = [], stream.open(epoch, start)
    while dataset is not None:
        for batch in dataset:
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            ids.append([int(i) for i in x[:, 0]])
        dataset = stream.reopen()
    return ids


def flat(batches):
    return [i for batch in batches for i in batch]


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ALIKE])
def test_every_form_trains_on_each_example_once_an_epoch(form):
    make, sized = FORMS[form]
    model, epochs = make_model(form), 1 if form in ONCE else 2
    history = kerasdist.fit(model, make(), epochs=epochs, **sized, progress=False)
    assert int(model.optimizer.iterations) == 6 * epochs
    # A target that is lost or seen twice moves the mean by about 1 / 23.
    np.testing.assert_allclose(history.history["mean_target"], [Y.mean()] * epochs, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_has_each_example_once_and_keeps_the_smaller_last_batch(form):
    make, sized = FORMS[form]
    stream = open_stream(make(), **sized)
    for epoch in range(1 if form in ONCE else 2):
        batches = ids_of(stream, epoch, 0)
        assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]
        assert flat(batches) == list(range(NUM))
    stream.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_opened_in_the_middle_is_the_rest_of_it(form):
    epoch = 0 if form in ONCE else 2
    whole = read_batches(form, epoch, 0, shuffle=True, seed=3)
    assert read_batches(form, epoch, 4, shuffle=True, seed=3) == whole[4:]


@pytest.mark.parametrize("form", SHUFFLED)
def test_the_order_is_a_function_of_seed_and_epoch(form):
    first = read_batches(form, 0, shuffle=True, seed=3)
    # Keras's and TensorFlow's own seeds are somebody else's.
    keras.utils.set_random_seed(99)
    assert read_batches(form, 0, shuffle=True, seed=3) == first
    second = read_batches(form, 1, shuffle=True, seed=3)
    other_seed = read_batches(form, 0, shuffle=True, seed=4)
    assert sorted(flat(first)) == sorted(flat(second)) == sorted(flat(other_seed)) == list(IDS)
    assert len({tuple(flat(ids)) for ids in (first, second, other_seed)} | {tuple(IDS)}) == 4


def test_shuffle_may_be_the_size_of_a_dataset_s_buffer():
    ids = flat(read_batches("dataset of examples", shuffle=2))
    assert sorted(ids) == list(IDS)
    assert ids != list(IDS)
    assert all(i <= place + 1 for place, i in enumerate(ids))  # At most one place too early.


def test_fit_shuffles_and_without_shuffle_keeps_the_order():
    seen = []

    def record(batch, seed):
        def note(x):
            seen.extend(int(i) for i in x[:, 0])
            return np.int64(0)

        with tf.control_dependencies([tf.numpy_function(note, [batch[0]], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    def order_of(**options):
        seen.clear()
        kerasdist.fit(
            make_model(),
            (X, Y),
            batch_size=NUM,
            epochs=2,
            augment=record,
            progress=False,
            **options,
        )
        assert len(seen) == 2 * NUM
        return seen[:NUM], seen[NUM:]

    first, second = order_of(seed=5)
    assert sorted(first) == sorted(second) == list(IDS)
    assert first != second
    assert order_of(seed=5) == (first, second)
    assert order_of(shuffle=False) == (list(IDS), list(IDS))


def test_sample_weights_weigh_the_examples():
    w = (IDS % 2).astype("float32")
    model = make_model()
    loss = kerasdist.evaluate(model, (X, Y, w), batch_size=5)["loss"]
    squares = (model(X).numpy() - Y)[:, 0] ** 2
    assert loss == pytest.approx((w * squares).sum() / NUM, rel=1e-5)


def weigh(structure):
    """Inputs a and b; the output is a + 10 b."""
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    output = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)(a + 10 * b)
    model = keras.Model(structure(a, b), output)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("form", ["arrays", "generator function"])
@pytest.mark.parametrize(
    ("inputs", "fed"),
    [
        (lambda a, b: {"a": a, "b": b}, lambda a, b: {"b": b, "a": a}),
        (lambda a, b: [a, b], lambda a, b: (a, b)),
        (lambda a, b: {"a": a, "more": [b]}, lambda a, b: {"more": (b,), "a": a}),
    ],
    ids=["dict", "tuple", "nested"],
)
def test_nested_features_reach_the_inputs_they_are_meant_for(form, inputs, fed):
    a, b = X[:, :1], X[:, 1:]
    data = (fed(a, b), Y)
    sized = SIZED
    if form == "generator function":
        whole = data
        data, sized = lambda: iter([whole]), {}
    result = kerasdist.evaluate(weigh(inputs), data, **sized)
    assert result["loss"] == pytest.approx(((a + 10 * b - Y) ** 2).mean(), rel=1e-5)


def test_nested_features_train():
    inputs = keras.Input((1,), name="a"), [keras.Input((1,), name="b")]
    output = keras.layers.Dense(1)(keras.layers.concatenate([inputs[0], *inputs[1]]))
    model = keras.Model({"a": inputs[0], "more": inputs[1]}, output)
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=[mean_target])
    data = ({"more": [X[:, 1:]], "a": X[:, :1]}, Y)
    history = kerasdist.fit(model, data, batch_size=BATCH, devices=2, progress=False)
    np.testing.assert_allclose(history.history["mean_target"], [Y.mean()], atol=1e-5)
