"""Every form of `data`: each example once an epoch, in an order that can be resumed."""

import threading
import time
from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.feed import Feed
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import open_stream

NUM = 23
BATCH = 4
IDS = np.arange(NUM)
X = np.stack([IDS, np.random.default_rng(1).normal(size=NUM)], axis=1).astype("float32")
Y = np.random.default_rng(2).normal(size=(NUM, 1)).astype("float32")
W = np.linspace(0.5, 1.5, NUM).astype("float32")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("kerasdist-")] == []


class Named(kerasdist.Model):
    features = "x"
    targets = "y"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class Pairs:
    """A random-access source of tuples."""

    def __len__(self):
        return NUM

    def __getitem__(self, index):
        return X[index], Y[index]


class PairsAtOnce(Pairs):
    def __getitems__(self, indices):
        return [(X[i], Y[i]) for i in indices]

    def __getitem__(self, index):
        raise AssertionError("`__getitems__` is there")


class Dicts(Pairs):
    def __getitem__(self, index):
        return {"x": X[index].tolist(), "y": Y[index], "comment": "nobody reads this"}


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return -(-NUM // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


class Provider:
    """The old contract: a pass ends with None and the next call begins another."""

    batch_size = BATCH

    def __init__(self):
        self.at = 0

    def get_batch_data(self):
        rows = slice(self.at, self.at + BATCH)
        if self.at >= NUM:
            self.at = 0
            return None
        self.at += BATCH
        return X[rows], Y[rows]


def generate():
    for start in range(0, NUM, BATCH):
        yield X[start : start + BATCH], Y[start : start + BATCH]


def generate_lists():
    for x, y in generate():
        yield [x, y.tolist()]


def generate_dicts():
    for x, y in generate():
        yield {"y": y, "x": x}


def slices(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


def named_slices(**fields):
    return tf.data.Dataset.from_tensor_slices(fields)


def of_unknown_shapes():
    return tf.data.Dataset.from_generator(generate, output_types=(tf.float32, tf.float32))


SIZED = {"batch_size": BATCH}
FORMS = {
    "arrays": (lambda: (X, Y), SIZED),
    "arrays of lists": (lambda: (X.tolist(), Y.tolist()), SIZED),
    "arrays with None": (lambda: (X, Y, None), SIZED),
    "arrays with weights": (lambda: (X, Y, W), SIZED),
    "tensors": (lambda: (tf.constant(X), tf.constant(Y)), SIZED),
    "dict of arrays": (lambda: {"y": Y.tolist(), "x": X, "unused": IDS}, SIZED),
    "source": (Pairs, SIZED),
    "source of many": (PairsAtOnce, SIZED),
    "source of dicts": (Dicts, SIZED),
    "list of examples": (lambda: [(X[i], Y[i]) for i in range(NUM)], SIZED),
    "dataset of examples": (lambda: slices(X, Y), SIZED),
    "dataset of dicts": (lambda: named_slices(x=X, y=Y), SIZED),
    "dataset of batches": (lambda: slices(X, Y).batch(BATCH), {}),
    "dataset of unknown shapes": (of_unknown_shapes, {}),
    "PyDataset": (Batches, {}),
    "provider": (Provider, {}),
    "provider with options": (lambda: kerasdist.read_provider(Provider(), capacity=2), {}),
    "generator function": (lambda: generate, {}),
    "generator function of lists": (lambda: generate_lists, {}),
    "generator function of dicts": (lambda: generate_dicts, {}),
    "generator": (generate, {}),
}
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


def mean_target(y_true, y_pred):
    return y_true[:, 0]


def make_model(form="arrays"):
    named = "dict" in form
    model = Named() if named else keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=[mean_target])
    return model


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


def test_an_endless_dataset_trains_for_steps_per_epoch():
    model = make_model()
    data = slices(X, Y).repeat()
    history = kerasdist.fit(
        model, data, batch_size=BATCH, steps_per_epoch=3, epochs=2, shuffle=False, progress=False
    )
    assert int(model.optimizer.iterations) == 6
    means = [Y[:12].mean(), np.concatenate([Y[12:], Y[:1]]).mean()]
    np.testing.assert_allclose(history.history["mean_target"], means, atol=1e-5)


def test_an_endless_generator_trains_for_steps():
    def endless():
        while True:
            yield from generate()

    model = make_model()
    kerasdist.fit(model, endless, steps=14, progress=False)
    assert int(model.optimizer.iterations) == 14


def test_steps_per_epoch_goes_on_in_the_pass_of_the_last_epoch():
    model = make_model()
    history = kerasdist.fit(model, generate, steps_per_epoch=4, epochs=3, progress=False)
    parts = [Y[:16], Y[16:], Y[:16]]
    np.testing.assert_allclose(history.history["mean_target"], [p.mean() for p in parts], atol=1e-5)


def test_t12_a_one_shot_generator_of_ten_batches_trains_on_all_ten():
    given = []

    def ten():
        for i in range(10):
            given.append(i)
            yield np.full((2, 3), i, "float32"), np.full((2, 1), i, "float32")

    model = make_model()
    history = kerasdist.fit(model, ten(), progress=False)
    assert int(model.optimizer.iterations) == 10
    assert given == list(range(10))
    assert history.history["mean_target"] == [4.5]


def test_a_generator_function_is_called_once_an_epoch():
    calls = []

    def batches():
        calls.append(len(calls))
        yield from generate()

    kerasdist.fit(make_model(), batches, epochs=3, progress=False)
    assert calls == [0, 1, 2]


def test_a_py_dataset_is_told_of_each_epoch():
    class Told(Batches):
        def __init__(self):
            super().__init__()
            self.events = []

        def on_epoch_begin(self):
            self.events.append("begin")

        def on_epoch_end(self):
            self.events.append("end")

    data = Told()
    kerasdist.fit(make_model(), data, epochs=2, progress=False)
    assert data.events == ["end"] + ["begin", "end"] * 2  # The first one is Keras's habit.


def test_validation_reads_its_data_from_the_start_each_time():
    history = kerasdist.fit(
        make_model(),
        (X, Y),
        batch_size=NUM,
        epochs=3,
        validation_data=generate,
        validation_steps=2,
        progress=False,
    )
    means = [Y[:8].mean()] * 3
    np.testing.assert_allclose(history.history["val_mean_target"], means, atol=1e-5)


@pytest.mark.parametrize("make", [Provider, lambda: chain(generate(), generate())])
def test_what_cannot_be_read_again_goes_on_where_the_last_validation_ended(make):
    history = kerasdist.fit(
        make_model(),
        (X, Y),
        batch_size=NUM,
        epochs=3,
        validation_data=make(),
        validation_steps=3,
        progress=False,
    )
    means = [Y[:12].mean(), Y[12:].mean(), Y[:12].mean()]
    np.testing.assert_allclose(history.history["val_mean_target"], means, atol=1e-5)


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
