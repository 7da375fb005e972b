"""Bad input: a clear error, before anything is compiled, and the model keeps its weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.devices.placement import resolve_names
from kerasdist.training import api, inference

X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 1)).astype("float32")
LABELS = np.arange(10) % 3


@pytest.fixture
def not_compiled(monkeypatch):
    """The error must come before the engine, which compiles, is made."""

    def engine(*args, **kwargs):
        raise AssertionError("an engine was made before the error")

    for module in (api, inference):
        monkeypatch.setattr(module, "Engine", engine)


def regressor(optimizer="sgd", **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


def classifier(**loss_options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss_options)
    model.compile("sgd", loss)
    return model


class Fields(kerasdist.Model):
    features = ("image", "extra")
    targets = "label"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, image, extra):
        return self.dense(image + extra)

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"optimizer": "sgd", "loss": loss}


def refusal(model, data, **options):
    """The message of the error that `fit` ends with; the model is as it was before."""
    options = {"batch_size": 5, "progress": False, **options}
    before = model.get_weights() if isinstance(model, keras.Model) else []
    with pytest.raises(kerasdist.KerasdistError) as caught:
        kerasdist.fit(model, data, **options)
    after = model.get_weights() if isinstance(model, keras.Model) else []
    for old, new in zip(before, after, strict=bool(before)):
        np.testing.assert_array_equal(old, new)
    message = str(caught.value)
    # What happened, what is expected, what to do.
    assert message.startswith(("Received ", "The model ", "The layer "))
    assert "Expected" in message
    assert len([part for part in message.split(". ") if part]) >= 3, message
    return message


def batches(*parts):
    """A generator function of batches of five."""

    def generate():
        for start in range(0, len(parts[0]), 5):
            yield tuple(part[start : start + 5] for part in parts)

    return generate


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


# The model


def test_a_model_that_is_not_compiled(not_compiled):
    message = refusal(keras.Sequential([keras.layers.Dense(1)]), (X, Y))
    assert "'Sequential' is not compiled" in message
    assert "model.compile(optimizer=..., loss=...)" in message


def test_a_model_compiled_without_a_loss(not_compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd")
    message = refusal(model, (X, Y))
    assert "'Sequential' has no loss" in message
    assert "compute_loss" in message


def test_something_that_is_no_model(not_compiled):
    assert "`model` of type int" in refusal(3, (X, Y))
    assert "returned list" in refusal(list, (X, Y))


@pytest.mark.parametrize("method", ["train_step", "test_step"])
def test_a_model_that_overrides_a_step(method, not_compiled):
    model_class = type("Own", (keras.Sequential,), {method: lambda self, data: {}})
    model = model_class([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    message = refusal(model, (X, Y))
    assert f"'Own' overrides `{method}`" in message
    assert "Override `compute_loss(" in message


def test_precision_of_a_model_that_was_made_with_another(not_compiled):
    message = refusal(regressor(), (X, Y), precision="mixed_bfloat16")
    assert "precision='mixed_bfloat16'" in message
    assert "'dense" in message
    assert "'float32'" in message
    assert "set_dtype_policy('mixed_bfloat16')" in message
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    assert "'float32'" in refusal(unbuilt, (X, Y), precision="mixed_bfloat16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1, dtype="float32")])
    mixed.compile("sgd", "mse")
    assert "'mixed_bfloat16'" in refusal(mixed, (X, Y), precision="float32")


def test_precision_of_a_function_s_model_with_a_float32_head_is_accepted():
    def build():
        layers = [keras.layers.Dense(2), keras.layers.Dense(1, dtype="float32")]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
        return model

    kerasdist.fit(build, (X, Y), batch_size=5, precision="mixed_bfloat16", progress=False)


def test_gradient_accumulation_of_the_optimizer(not_compiled):
    model = regressor(keras.optimizers.Adam(gradient_accumulation_steps=4))
    message = refusal(model, (X, Y))
    assert "'Adam' with `gradient_accumulation_steps=4`" in message
    assert "`shards`" in message


def test_ema_overwriting_of_the_optimizer(not_compiled):
    model = regressor(keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=7))
    message = refusal(model, (X, Y))
    assert "'SGD' with `ema_overwrite_frequency=7`" in message
    assert "fit(ema=...)" in message


def test_synchronized_batch_normalization(not_compiled):
    norm = keras.layers.BatchNormalization(synchronized=True, name="norm")
    inner = keras.Sequential([norm, keras.layers.Dense(1)])
    model = keras.Sequential([keras.layers.Dense(2), inner])
    model.compile("sgd", "mse")
    message = refusal(model, (X, Y))
    assert "'norm' has `synchronized=True`" in message
    assert "Set it to False" in message


# What the model reads


def test_a_field_that_the_data_lacks(not_compiled):
    data = {"image": X, "extras": X, "label": LABELS}
    message = refusal(Fields(), data)
    assert "the fields ['extras', 'image', 'label']" in message
    assert "`Fields.features` names 'extra'" in message
    assert "Did you mean 'extras'?" in message
    data = {"image": X, "extra": X, "lable": LABELS}
    message = refusal(Fields(), tf.data.Dataset.from_tensor_slices(data))
    assert "`Fields.targets` names 'label'" in message
    assert "Did you mean 'lable'?" in message


def test_an_input_that_the_data_lacks(not_compiled):
    inputs = {"left": keras.Input((4,), name="left"), "right": keras.Input((4,), name="right")}
    output = keras.layers.Dense(1)(inputs["left"] + inputs["right"])
    model = keras.Model(inputs, output)
    model.compile("sgd", "mse")
    message = refusal(model, ({"left": X, "rihgt": X}, Y))
    assert "the features ['left', 'rihgt']" in message
    assert "the input 'right'" in message
    assert "Did you mean 'rihgt'?" in message


def test_data_without_targets(not_compiled):
    assert "features alone and no targets" in refusal(regressor(), X)
    message = refusal(regressor(), {"x": X, "y": Y})
    assert "the fields ['x', 'y'] and no targets" in message
    assert "kerasdist.Model" in message


@pytest.mark.parametrize("form", [lambda *d: d, dataset, batches])
def test_features_of_a_shape_that_does_not_fit(form, not_compiled):
    options = {"batch_size": None} if form is batches else {}
    message = refusal(regressor(), form(np.ones((10, 7), "float32"), Y), **options)
    assert "float32(None, 7)" in message
    assert "'Sequential'" in message
    assert "4" in message


@pytest.mark.parametrize("target", [np.ones((10, 3)), np.ones((10, 2, 2))])
def test_targets_of_a_shape_that_does_not_fit(target, not_compiled):
    message = refusal(regressor(), (X, target.astype("float32")))
    assert f"targets of the shape (None, {str(target.shape[1:])[1:-1].strip(',')})" in message
    assert "outputs of the shape (None, 1)" in message


def test_one_hot_targets_of_another_width(not_compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "categorical_crossentropy")
    message = refusal(model, (X, np.eye(4, dtype="float32")[LABELS]))
    assert "float32(None, 4)" in message


def test_a_type_that_the_model_cannot_read(not_compiled):
    class Lookup(keras.layers.Layer):
        def call(self, indices):
            return tf.gather(tf.eye(4), indices)

    model = keras.Sequential([Lookup(), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    message = refusal(model, (np.zeros((10, 2)), Y))
    assert "float32(None, 2)" in message
    assert "int32" in message


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array(["2020-01-01"] * 10, "datetime64[D]"), "datetime64[D]"),
        (np.array([None] * 10), "NoneType"),
        (np.array([{}] * 10), "dict"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]] * 5), "RaggedTensor"),
    ],
    ids=["dates", "None", "objects", "ragged"],
)
def test_values_that_are_no_numbers(values, found, not_compiled):
    message = refusal(regressor(), (values, Y))
    assert f"of the type {found} in `data` (0)" in message
    assert "Expected numbers" in message


def test_rows_of_different_lengths(not_compiled):
    message = refusal(regressor(), ([[1.0], [2.0, 3.0]] * 5, Y))
    assert "different lengths in `data` (0)" in message
    assert "pad_sequences" in message


def test_ragged_elements_of_a_dataset(not_compiled):
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]] * 5)
    assert "RaggedTensorSpec" in refusal(regressor(), dataset(ragged, Y))


@pytest.mark.parametrize(
    "data",
    [
        (np.array(["a", "b"] * 5), Y),
        (["a", "b"] * 5, Y),
        dataset(np.array(["a", "b"] * 5), Y),
        [("a", 1.0), ("b", 2.0)],
        batches(np.array(["a", "b"] * 5), Y),
    ],
    ids=["array", "list", "dataset", "examples", "generator function"],
)
def test_t13_strings_as_features(data, not_compiled):
    options = {"batch_size": None} if callable(data) else {}
    message = refusal(regressor(), data, **options)
    assert "strings as the feature 'x'" in message
    assert "StringLookup" in message


def test_t13_the_field_with_strings_is_named(not_compiled):
    data = {"image": X, "extra": ["word"] * 10, "label": LABELS}
    assert "strings as the feature 'extra'" in refusal(Fields(), data)
    data = {"image": X, "extra": X, "label": ["cat"] * 10}
    assert "strings as the target 'label'" in refusal(Fields(), data)


# Values


@pytest.mark.parametrize(("label", "index"), [(3, 7), (-1, 2)])
def test_labels_outside_the_classes_of_arrays(label, index, not_compiled):
    message = refusal(classifier(), (X, changed(LABELS, index, label)))
    assert f"the label {label} in `data` (example {index}" in message
    assert "from 0 to 2" in message
    assert "3 outputs" in message


@pytest.mark.parametrize("form", [dataset, batches])
def test_labels_outside_the_classes_of_a_stream_name_the_batch(form):
    options = {"batch_size": None} if form is batches else {"shuffle": False}
    model = classifier()
    model.optimizer.learning_rate = 0.0
    message = refusal(model, form(X, changed(LABELS, 7, 5)), **options)
    assert "the label 5 in `data` (batch 1 " in message
    assert int(model.optimizer.iterations) == 1  # The batch before it was fine.


def test_the_ignored_class_may_be_outside_the_classes():
    labels = changed(LABELS, 7, -1)
    model = classifier(ignore_class=-1)
    kerasdist.fit(model, (X, labels), batch_size=5, progress=False)
    kerasdist.fit(model, batches(X, labels), progress=False)
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_arrays(value, not_compiled):
    message = refusal(regressor(), (changed(X, (6, 2), value), Y))
    assert "NaN or infinity in `data` (x, example 6 " in message
    message = refusal(regressor(), (X, changed(Y, 3, value)))
    assert "(y, example 3 " in message
    weights = changed(np.ones(10, "float32"), 9, value)
    assert "(sample_weight, example 9 " in refusal(regressor(), (X, Y, weights))
    data = {"image": X, "extra": changed(X, (4, 0), value), "label": LABELS}
    assert "(extra, example 4 " in refusal(Fields(), data)


def test_nan_in_a_field_that_nobody_reads_is_no_error():
    data = {"image": X, "extra": X, "label": LABELS, "more": np.full(10, np.nan)}
    kerasdist.fit(Fields(), data, batch_size=5, progress=False)


@pytest.mark.parametrize("form", [dataset, batches])
def test_nan_in_a_stream_names_the_batch(form):
    options = {"batch_size": None} if form is batches else {"shuffle": False}
    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, form(changed(X, (6, 2), np.nan), Y), **options)
    assert "NaN or infinity in `data` (x, batch 1 " in message
    assert int(model.optimizer.iterations) == 1


def test_nan_in_validation_data_names_it():
    model = regressor(keras.optimizers.SGD(0.0))
    bad = changed(X, (6, 2), np.nan)
    message = refusal(model, (X, Y), validation_data=(bad, Y))
    assert "in `validation_data` (x, example 6 " in message
    message = refusal(model, (X, Y), validation_data=batches(bad, Y))
    assert "in `validation_data` (x, batch 1 " in message


# Sizes


def test_arrays_of_different_lengths(not_compiled):
    message = refusal(regressor(), (X, Y[:9]))
    assert "(10, 4)" in message
    assert "(9, 1)" in message
    assert "same first dimension" in message
    assert "10, 4" in refusal(regressor(), (X, np.float32(3)))


def uneven():
    yield X[:5], Y[:5]
    yield X[5:], Y[5:9]


def empty_batch():
    yield X, Y
    yield X[:0], Y[:0]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_with_fields_of_different_lengths_is_named(devices):
    options = {"batch_size": None, "devices": devices}
    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, uneven, **options)
    assert "batch 1 " in message
    assert "(4, 1)" in message
    signature = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(uneven, output_signature=signature)
    message = refusal(model, data, **options)
    assert "[5 4] examples (x, y; batch 1 " in message


def test_a_batch_without_examples_is_named():
    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, empty_batch, batch_size=None)
    assert "batch 1 (from 0) of `data` with 0 examples" in message
    signature = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(empty_batch, output_signature=signature)
    assert "[0 0] examples (x, y; batch 1 " in refusal(model, data, batch_size=None)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((np.ones((5, 7), "float32"), Y[5:]), ["batch 1 ", "x: float32(None, 7)", "value 4"]),
        ((np.ones((5, 4, 1), "float32"), Y[5:]), ["batch 1 ", "(5, 4, 1)", "(None, 4)"]),
        ((X[5:].astype("int32"), Y[5:]), ["batch 1 ", "int32", "float32"]),
        ((X[5:],), ["batch 1 ", "1 positions", "2 positions"]),
        ((X[5:], np.float32(1)), ["batch 1 ", "()"]),
        ({"x": X[5:]}, ["batch 1 ", "the fields ['x']", "2 positions"]),
    ],
    ids=["size", "dimensions", "type", "positions", "scalar", "dict"],
)
def test_a_batch_unlike_the_ones_before_is_named(second, words):
    def generate():
        yield X[:5], Y[:5]
        yield second

    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, generate, batch_size=None)
    assert all(word in message for word in words), message
    assert int(model.optimizer.iterations) == 1


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
    assert any(part in message for part in ("0 examples", "no elements", "0 batches", "a single"))


def test_an_empty_data_set_of_unknown_size():
    data = dataset(X, Y).filter(lambda x, y: False)
    assert "without a batch in pass 1" in refusal(regressor(), data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (7, "int"),
        (None, "NoneType"),
        ("folder/file.npy", "str"),
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


# batch_size


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, True, "8"])
def test_a_batch_size_that_is_no_number_of_examples(batch_size, not_compiled):
    message = refusal(regressor(), (X, Y), batch_size=batch_size)
    assert f"batch_size={batch_size!r}" in message
    assert "at least 1" in message


@pytest.mark.parametrize(
    "data",
    [(X, Y), [(X[0], 1.0)], dataset(X, Y[:, 0]), dataset(X, Y)],
    ids=["arrays", "examples", "dataset", "dataset of vectors"],
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


class Provider:
    batch_size = 10

    def get_batch_data(self):
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


# Devices and shards


def test_shards_that_are_no_multiple_of_the_devices(not_compiled):
    message = refusal(regressor(), (X, Y), devices=2, shards=3)
    assert "`shards=3` on 2 devices" in message
    assert "run on 1, 3 devices" in message
    assert "`shards=4`" in message


@pytest.mark.parametrize("shards", [0, -1, 1.5, True])
def test_shards_that_are_no_number(shards, not_compiled):
    assert f"`shards={shards!r}`" in refusal(regressor(), (X, Y), shards=shards)


def test_more_shards_than_examples_in_a_batch(not_compiled):
    message = refusal(regressor(), (X, Y), shards=8)
    assert "`batch_size=5` and 8 shards" in message
    assert "larger batch" in message
    assert "`batch_size=10` and 16 shards" in refusal(
        regressor(), Provider(), batch_size=None, shards=16
    )


def test_deterministic_shards_that_are_no_power_of_two(not_compiled):
    message = refusal(regressor(), (X, Y), devices=2, shards=6, deterministic=True, batch_size=10)
    assert "`shards=6` on 2 devices with `deterministic=True`" in message
    assert "power of two" in message
    assert "run on 1, 3, 6 devices" in message


def test_deterministic_with_several_reader_threads(not_compiled):
    data = kerasdist.read_provider(Provider(), reader_threads=2)
    message = refusal(regressor(), data, batch_size=None, deterministic=True)
    assert "2 threads" in message
    assert "`reader_threads=1`" in message


@pytest.mark.parametrize(
    ("devices", "missing"),
    [("GPU:0", "'GPU:0'"), (["CPU:0", "CPU:9"], "'CPU:9'"), ([7], "'CPU:7'"), ("gpu", "'GPU:0'")],
)
def test_a_device_that_does_not_exist(devices, missing, not_compiled):
    message = refusal(regressor(), (X, Y), devices=devices)
    assert f"`devices={devices!r}`" in message
    assert f"no device {missing}" in message
    assert "CPU:0, CPU:1, CPU:2, CPU:3, CPU:4, CPU:5" in message
    assert "--soft-placement" in message


@pytest.mark.parametrize("devices", ["fpga", 0, -1, 1.5, [], ["TPU:0"], "cpu:0x", [None]])
def test_devices_that_mean_nothing(devices, not_compiled):
    message = refusal(regressor(), (X, Y), devices=devices)
    assert f"`devices={devices!r}`" in message
    assert "the devices here are CPU:0, CPU:1" in message


def test_soft_placement_takes_the_nearest_device():
    assert resolve_names("GPU:1", soft=True) == ("CPU:1",)
    assert resolve_names("/device:CPU:9", soft=True) == ("CPU:5",)
    assert resolve_names(["CPU:4", "CPU:5", "CPU:6"], soft=True) == ("CPU:4", "CPU:5")
    assert resolve_names(9, soft=True) == tuple(f"CPU:{i}" for i in range(6))
    assert resolve_names("cpu:8", soft=True) == tuple(f"CPU:{i}" for i in range(6))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: kerasdist.logical_cpus(7),
        lambda: kerasdist.fit(regressor(), (X, Y), batch_size=5, devices=7),
        lambda: kerasdist.fit(regressor(), (X, Y), batch_size=5, devices="cpu:7"),
    ],
    ids=["logical_cpus", "number", "name"],
)
def test_logical_cpus_after_tensorflow_started(ask, not_compiled):
    with pytest.raises(kerasdist.KerasdistError) as caught:
        ask()
    message = str(caught.value)
    assert "7 logical CPUs after TensorFlow started with 6" in message
    assert "Call `kerasdist.logical_cpus(7)` right after the import" in message
    assert "KERASDIST_LOGICAL_CPUS=7" in message


# Passes and settings


def test_a_generator_that_can_be_read_once_for_two_epochs(not_compiled):
    message = refusal(regressor(), batches(X, Y)(), batch_size=None, epochs=2)
    assert "read only once" in message
    assert "`epochs=2`" in message
    assert "Pass the function itself" in message
    message = refusal(regressor(), (X, Y), validation_data=batches(X, Y)(), epochs=2)
    assert "`validation_data`, a generator that can be read only once" in message


def test_data_that_never_ends(not_compiled):
    endless = dataset(X, Y).repeat()
    message = refusal(regressor(), endless)
    assert "`data` that never ends" in message
    assert "`steps_per_epoch=1000`" in message
    message = refusal(regressor(), (X, Y), validation_data=endless.batch(5))
    assert "`validation_data` that never ends, without `validation_steps`" in message
    for function in (kerasdist.evaluate, kerasdist.predict):
        with pytest.raises(kerasdist.KerasdistError, match="never ends, without `steps`"):
            function(regressor(), endless.batch(5))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 0, "at least 1"),
        ("epochs", None, "at least 1"),
        ("epochs", 1.5, "at least 1"),
        ("steps", -2, "at least 1"),
        ("steps_per_epoch", 0, "at least 1"),
        ("validation_steps", "all", "at least 1"),
        ("log_every", 0, "at least 1"),
        ("ema", 1.5, "between 0 and 1"),
        ("ema", True, "between 0 and 1"),
        ("clip_norm", -1, "above 0"),
        ("clip_norm", 0, "above 0"),
        ("clip_norm", float("nan"), "above 0"),
        ("seed", -1, "from 0 on"),
        ("seed", 1.0, "from 0 on"),
        ("shuffle", "yes", "True, False"),
        ("shuffle", -1, "True, False"),
        ("on_nan", "ignore", "'stop'"),
        ("augment", "flip", "a function"),
        ("save_every", "often", "seconds like '30s'"),
        ("save_every", 0, "more than 0"),
        ("precision", "half", "a dtype policy"),
        ("precision", 16, "a dtype policy"),
        ("class_weight", [1.0, 2.0], "a dict"),
        ("class_weight", {"cat": 1.0}, "class numbers"),
        ("class_weight", {0: -1.0}, "from 0 on"),
    ],
)
def test_settings_outside_their_range(name, value, expected, not_compiled):
    message = refusal(regressor(), (X, Y), **{name: value})
    assert f"`{name}={value!r}`" in message
    assert expected in message


def test_an_augmentation_that_returns_nothing(not_compiled):
    assert "Received None from `augment`" in refusal(
        regressor(), (X, Y), augment=lambda batch, seed: None
    )


def test_a_function_that_yields_nothing(not_compiled):
    message = refusal(regressor(), lambda: None, batch_size=None)
    assert "a function that returned NoneType" in message


def test_labels_of_the_output_concerned_are_checked():
    inputs = keras.Input((4,))
    outputs = {"few": keras.layers.Dense(3)(inputs), "many": keras.layers.Dense(5)(inputs)}
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"few": loss, "many": loss})
    labels = np.arange(10) % 5
    message = refusal(model, (X, {"few": labels, "many": labels}))
    assert "the label 3 in `data` (example 3 " in message
    message = refusal(model, batches_of_dicts(few=labels % 3, many=labels + 1), batch_size=None)
    assert "the label 5 in `data` (batch 0 " in message
    kerasdist.fit(model, (X, {"few": labels % 3, "many": labels}), batch_size=5, progress=False)


def batches_of_dicts(**targets):
    return lambda: iter([(X, targets)])


def test_a_frozen_model_can_be_evaluated():
    model = regressor()
    model.trainable = False
    assert kerasdist.evaluate(model, (X, Y))["loss"] > 0


def test_prediction_goes_on_over_nan_but_not_over_uneven_batches():
    bad = changed(X, (6, 2), np.nan)
    for data in ((bad, Y), batches(bad, Y)):
        outputs = kerasdist.predict(regressor(), data)
        assert np.isnan(outputs[:, 0]).tolist() == [i == 6 for i in range(10)]
    signature = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(uneven, output_signature=signature)
    with pytest.raises(kerasdist.KerasdistError, match=r"\[5 4\] examples"):
        kerasdist.predict(regressor(), data)


def test_prediction_names_what_it_cannot_read():
    with pytest.raises(kerasdist.KerasdistError, match=r"float32\(None, 7\)"):
        kerasdist.predict(keras.Sequential([keras.Input((4,))]), np.ones((3, 7), "float32"))
    with pytest.raises(kerasdist.KerasdistError, match="strings as the feature 'x'"):
        kerasdist.predict(regressor(), np.array(["a", "b"]))
