"""Models as other people write them: equal to Keras's own fit, or refused by name."""

import random
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models import refusals
from kerasdist.versions import number

# Minutes in all: `.ci/full` runs them.
pytestmark = pytest.mark.slow

LAYERS = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(21, 4))
Y = RANDOM.normal(size=(21, 2))
Z = RANDOM.normal(size=(21, 1))
WEIGHT = RANDOM.uniform(0.2, 1.0, size=21)
DEVICES = (1, 2, 4)


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def weights_of(model):
    return [v.numpy() for v in model.variables if "seed" not in v.path]


def assert_close(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_same_history(found, expected, tolerance=1e-9):
    assert found.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=tolerance, err_msg=name)


def fit(model, data, **options):
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "progress": False, **options}
    return kerasdist.fit(model, data, **options)


def keras_fit(model, *data, **options):
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, **options)


def fresh(build):
    keras.utils.set_random_seed(1)
    return build()


def assert_as_keras(build, x, y, devices=DEVICES, sample_weight=None, tolerance=1e-9, **options):
    """Weights, other state and history after two epochs, with a smaller last batch."""
    reference = fresh(build)
    expected = keras_fit(reference, x, y, sample_weight=sample_weight, **options)
    data = (x, y) if sample_weight is None else (x, y, sample_weight)
    for count in devices:
        model = fresh(build)
        found = fit(model, data, devices=count, **options)
        assert_close(weights_of(model), weights_of(reference), tolerance)
        assert_same_history(found, expected, tolerance)


def dense(kind=keras.Sequential, optimizer=None, loss="mse", **options):
    model = kind([LAYERS.Dense(3, activation="tanh"), LAYERS.Dense(2)])
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss, **options)
    return model


def two_outputs(*, masked=False, **options):
    if masked:
        inputs = keras.Input((5,), dtype="int32")
        hidden = LAYERS.Embedding(7, 3, mask_zero=True)(inputs)
    else:
        inputs = keras.Input((4,))
        hidden = LAYERS.Dense(3, activation="tanh")(inputs)
    outputs = [LAYERS.Dense(2, name="first")(hidden), LAYERS.Dense(1, name="second")(hidden)]
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05),
        ["mse", "mae"],
        loss_weights=[0.5, 2.0],
        metrics=[["mae"], ["mse"]],
        **options,
    )
    return model


class TestLossesOfOutputs:
    """Keras's history has the mean of the batches' losses, not of the examples'."""

    def test_a_smaller_last_batch(self):
        validation = (X[:13], (Y[:13], Z[:13]))
        assert_as_keras(two_outputs, X, (Y, Z), validation_data=validation)

    def test_sample_weights(self):
        assert_as_keras(two_outputs, X, (Y, Z), sample_weight=(WEIGHT, WEIGHT**2))

    def test_masks(self):
        tokens = RANDOM.integers(0, 7, size=(21, 5))
        tokens[:, 0] = 1
        shape = (21, 5)
        targets = (RANDOM.normal(size=(*shape, 2)), RANDOM.normal(size=(*shape, 1)))
        assert_as_keras(lambda: two_outputs(masked=True), tokens, targets)

    def test_eager_models_weigh_by_examples_as_keras_does(self):
        assert_as_keras(lambda: two_outputs(run_eagerly=True), X, (Y, Z))

    def test_evaluate(self):
        model = fresh(two_outputs)
        expected = model.evaluate(X, (Y, Z), batch_size=8, verbose=0, return_dict=True)
        for count in DEVICES:
            found = kerasdist.evaluate(model, (X, (Y, Z)), batch_size=8, devices=count)
            assert found == pytest.approx(expected, rel=1e-9)


class Halving(keras.optimizers.SGD):
    """Gradients are changed where `apply_gradients` is overridden."""

    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(0.5 * g, v) for g, v in grads_and_vars])


def test_an_overridden_apply_gradients_is_called():
    assert_as_keras(lambda: dense(optimizer=Halving(0.1, momentum=0.9)), X, Y)


def test_an_overridden_apply_gradients_within_a_loss_scale_is_not_called_as_in_keras():
    def build():
        optimizer = keras.optimizers.LossScaleOptimizer(Halving(0.1), initial_scale=8.0)
        return dense(optimizer=optimizer)

    assert_as_keras(build, X, Y, devices=(1, 2))


def test_apply_gradients_replaced_on_the_object_is_called():
    def build():
        optimizer = keras.optimizers.SGD(0.1)
        own = optimizer.apply_gradients
        optimizer.apply_gradients = lambda pairs: own([(0.5 * g, v) for g, v in pairs])
        return dense(optimizer=optimizer)

    assert_as_keras(build, X, Y, devices=(1, 2))


SEQUENCES = RANDOM.normal(size=(24, 5, 3))
OF_SEQUENCES = RANDOM.normal(size=(24, 2))


def recurrent(layer, shape=(8, 5, 3)):
    inputs = keras.Input(batch_shape=shape)
    model = keras.Model(inputs, LAYERS.Dense(2)(LAYERS.Flatten()(layer(inputs))))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


STATEFUL = {
    "LSTM": lambda: LAYERS.LSTM(4, stateful=True),
    "GRU": lambda: LAYERS.GRU(4, stateful=True),
    "SimpleRNN": lambda: LAYERS.SimpleRNN(4, stateful=True, return_sequences=True),
    "RNN of cells": lambda: LAYERS.RNN([LAYERS.GRUCell(3), LAYERS.LSTMCell(2)], stateful=True),
    "Bidirectional": lambda: LAYERS.Bidirectional(LAYERS.LSTM(3, stateful=True)),
}


def states_of(model):
    layers = [v for v in model._flatten_layers() if isinstance(v, LAYERS.RNN)]
    return [s.numpy() for layer in layers for s in keras.tree.flatten(layer.states)]


class Reset(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model._flatten_layers():
            if isinstance(layer, LAYERS.RNN) and epoch == 1:
                layer.reset_states()


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("resets", [False, True])
def test_stateful_layers_on_one_shard_keep_their_states_as_in_keras(kind, resets):
    if resets and kind == "RNN of cells":
        pytest.skip("Keras 3.15.1 cannot reset the states of several cells")
    reference, model = (fresh(lambda: recurrent(STATEFUL[kind]())) for _ in range(2))
    options = {"epochs": 3, "validation_data": (SEQUENCES[:16], OF_SEQUENCES[:16])}
    callbacks = [Reset()] if resets else []
    expected = keras_fit(reference, SEQUENCES, OF_SEQUENCES, callbacks=callbacks, **options)
    data = (SEQUENCES, OF_SEQUENCES)
    found = fit(model, data, devices=1, shards=1, callbacks=callbacks, **options)
    assert_same_history(found, expected)
    assert_close(states_of(model), states_of(reference))
    assert any(np.abs(state).max() > 0 for state in states_of(model))
    # Both change the states in Keras, too.
    reference.evaluate(*data, batch_size=8, verbose=0)
    kerasdist.evaluate(model, data, batch_size=8, devices=1)
    assert_close(states_of(model), states_of(reference))
    expected = reference.predict(SEQUENCES, batch_size=8, verbose=0)
    assert_close([kerasdist.predict(model, SEQUENCES, batch_size=8, devices=1)], [expected])
    assert_close(states_of(model), states_of(reference))
    assert_close(weights_of(model), weights_of(reference))


def test_a_stateful_convolution_keeps_its_state():
    layer = lambda: LAYERS.ConvLSTM1D(2, 2, stateful=True)  # noqa: E731
    x = RANDOM.normal(size=(16, 3, 4, 2))
    reference, model = (fresh(lambda: recurrent(layer(), (8, 3, 4, 2))) for _ in range(2))
    expected = keras_fit(reference, x, OF_SEQUENCES[:16])
    found = fit(model, (x, OF_SEQUENCES[:16]), devices=1, shards=1)
    assert_same_history(found, expected)
    assert_close(states_of(model), states_of(reference))


def test_stateful_layers_train_whole_on_one_of_several_devices(capsys):
    build = lambda: recurrent(STATEFUL["Bidirectional"]())  # noqa: E731
    reference, model = fresh(build), fresh(build)
    expected = keras_fit(reference, SEQUENCES, OF_SEQUENCES)
    found = fit(model, (SEQUENCES, OF_SEQUENCES), devices=2, progress=True)
    told = capsys.readouterr().out
    assert re.search(r"trains on one device \(.*ward_lstm.*stateful=True", told)
    assert_same_history(found, expected)
    data = (SEQUENCES, OF_SEQUENCES)
    expected = reference.evaluate(*data, batch_size=8, verbose=0)
    assert kerasdist.evaluate(model, data, batch_size=8, devices=2)["loss"] == pytest.approx(
        expected, rel=1e-9
    )
    expected = reference.predict(SEQUENCES, batch_size=8, verbose=0)
    assert_close([kerasdist.predict(model, SEQUENCES, batch_size=8, devices=2)], [expected])
    assert_close(states_of(model), states_of(reference))
    assert_close(weights_of(model), weights_of(reference))


def test_a_stateful_layer_that_is_not_built_is_refused():
    model = keras.Sequential([LAYERS.GRU(3, stateful=True), LAYERS.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(KerasdistError, match=r"'gru.*must know the batch size.*batch_shape"):
        fit(model, (SEQUENCES, OF_SEQUENCES), devices=1)


def test_a_metric_that_assigns_a_variable_of_somebody_else_is_refused():
    largest = keras.Variable(0.0, dtype="float64", name="largest")

    def worst(y_true, y_pred):
        error = keras.ops.abs(y_true - y_pred)
        largest.assign(keras.ops.maximum(largest, keras.ops.max(error)))
        return keras.ops.mean(error, axis=-1)

    with pytest.raises(KerasdistError, match=r"metric .* assigns the variable 'largest'"):
        fit(dense(metrics=[worst]), (X, Y), devices=1)


class Outside(keras.Sequential):
    """Assigns variables that it does not own, so that Keras does not list them."""

    def __init__(self, layers):
        super().__init__(layers)
        total = keras.Variable(0.0, dtype="float64")
        self.kept = (total, keras.Variable(0, dtype="int32"), keras.metrics.Mean())

    def __setattr__(self, name, value):
        if name == "kept":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def call(self, x, training=None, mask=None):
        total, steps, mean = self.kept
        total.assign_add(keras.ops.sum(x))
        steps.assign_add(1)
        mean.update_state(keras.ops.mean(x))
        return super().call(x, training=training, mask=mask) + 0.01 * keras.ops.tanh(total)

    @property
    def numbers(self):
        total, steps, mean = self.kept
        return [float(v) for v in (total, steps, *mean.variables)]


def test_variables_that_no_layer_owns_are_state():
    def build():
        return dense(Outside)

    reference = fresh(build)
    assert not {id(v) for v in reference.variables} & {id(v) for v in reference.kept[:2]}
    validation = {"validation_data": (X[:13], Y[:13])}
    expected = keras_fit(reference, X, Y, **validation)
    reference.evaluate(X, Y, batch_size=8, verbose=0)
    # Its output depends on the sum over a whole batch, which a shard does not see.
    model = fresh(build)
    found = fit(model, (X, Y), devices=1, shards=1, **validation)
    kerasdist.evaluate(model, (X, Y), batch_size=8, devices=1)
    assert_same_history(found, expected)
    assert_close(weights_of(model), weights_of(reference))
    assert model.numbers == pytest.approx(reference.numbers, rel=1e-9)


class Counting(Outside):
    def call(self, x, training=None, mask=None):
        total, steps, mean = self.kept
        total.assign_add(keras.ops.sum(x))
        steps.assign_add(keras.ops.shape(x)[0])
        mean.update_state(keras.ops.mean(x))
        return keras.Sequential.call(self, x, training=training, mask=mask)


@pytest.mark.parametrize("count", DEVICES)
def test_variables_that_no_layer_owns_add_up_over_shards(count, tmp_path):
    reference, model = (fresh(lambda: dense(Counting)) for _ in range(2))
    keras_fit(reference, X, Y)
    reference.predict(X, batch_size=8, verbose=0)
    # In two runs of one folder: checkpoints have them, too.
    fit(model, (X, Y), devices=count, shards=4, epochs=1, run_dir=tmp_path / "run")
    resumed = fresh(lambda: dense(Counting))
    fit(resumed, (X, Y), devices=count, shards=4, epochs=2, run_dir=tmp_path / "run")
    kerasdist.predict(resumed, X, batch_size=8, devices=count)
    assert_close(weights_of(resumed), weights_of(reference))
    assert resumed.numbers == pytest.approx(reference.numbers, rel=1e-9)


GENERATOR = keras.random.SeedGenerator(3)


class NoiseFromOutside(LAYERS.Layer):
    def call(self, x, training=False):
        noise = keras.random.normal(keras.ops.shape(x), seed=GENERATOR)
        return x + 0.1 * noise if training else x


def test_a_seed_generator_that_no_layer_owns_is_seeded_by_the_run():
    losses = []
    for count in (1, 2, 4):
        model = fresh(lambda: keras.Sequential([NoiseFromOutside(), LAYERS.Dense(2)]))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        run = fit(model, (X, Y), devices=count, shards=4, deterministic=True)
        losses.append(run.history["loss"])
    assert losses[0] == losses[1] == losses[2]
    other = fresh(lambda: keras.Sequential([NoiseFromOutside(), LAYERS.Dense(2)]))
    other.compile(keras.optimizers.SGD(0.05), "mse")
    run = fit(other, (X, Y), devices=1, shards=4, deterministic=True, seed=5)
    assert run.history["loss"] != losses[0]


class NativeVariable(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.steps = tf.Variable(0.0, trainable=False, name="my_steps")

    def call(self, x):
        self.steps.assign_add(1.0)
        return x


@pytest.mark.parametrize("how", ["fit", "evaluate", "predict"])
def test_a_tensorflow_variable_that_is_assigned_is_refused_by_name(how):
    model = keras.Sequential([NativeVariable(), LAYERS.Dense(2)])
    model.compile("sgd", "mse")
    calls = {
        "fit": lambda: fit(model, (X, Y), devices=1),
        "evaluate": lambda: kerasdist.evaluate(model, (X, Y), devices=1),
        "predict": lambda: kerasdist.predict(model, X, devices=1),
    }
    with pytest.raises(KerasdistError, match=r"`tf.Variable` 'my_steps:0'.*add_weight"):
        calls[how]()


class TensorFlowNoise(LAYERS.Layer):
    def __init__(self, in_loop):
        super().__init__()
        self.in_loop = in_loop

    def call(self, x):
        if not self.in_loop:
            return tf.nn.dropout(x, 0.5) + tf.random.normal(tf.shape(x), dtype=x.dtype)
        body = lambda i, t: (i + 1, t + tf.random.normal(tf.shape(t), dtype=t.dtype))  # noqa: E731
        return tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]


def noisy(in_loop):
    model = fresh(lambda: keras.Sequential([TensorFlowNoise(in_loop), LAYERS.Dense(2)]))
    model.compile("sgd", "mse")
    return model


def test_random_numbers_of_tensorflow_depend_on_step_and_shard_alone():
    found = []
    for devices in DEVICES:
        model = noisy(in_loop=False)
        options = {"devices": devices, "shards": 4, "deterministic": True, "seed": 1}
        history = fit(model, (X, Y), epochs=3, **options).history["loss"]
        found.append((history, [w.tobytes() for w in model.get_weights()]))
    assert found[0] == found[1] == found[2]
    assert len(set(found[0][0])) == 3


def test_random_numbers_of_tensorflow_in_loops_are_refused_where_bits_must_agree():
    with pytest.raises(KerasdistError, match=r"`tf.random` \(operation '.*andom.*keras.random"):
        fit(noisy(in_loop=True), (X, Y), devices=1, deterministic=True)
    assert np.isfinite(fit(noisy(in_loop=True), (X, Y), devices=1).history["loss"]).all()


class TestModelsOfAStrategy:
    """Built and compiled in `strategy.scope()`, as people come from `tf.distribute`."""

    @staticmethod
    def make(replicas, compiled_inside=True, is_built=True):
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
        options = {"loss": "mse", "metrics": ["mae"]}
        keras.utils.set_random_seed(1)
        with strategy.scope():
            inputs = [keras.Input((4,))] if is_built else []
            model = keras.Sequential([*inputs, LAYERS.Dense(3, activation="tanh"), LAYERS.Dense(2)])
            if compiled_inside:
                model.compile(keras.optimizers.Adam(0.05), **options)
        if not compiled_inside:
            model.compile(keras.optimizers.Adam(0.05), **options)
        return model

    @pytest.mark.parametrize(
        ("count", "replicas", "is_built"),
        [(1, 1, True), (2, 1, True), (1, 2, False), (2, 2, True), (4, 2, False)],
    )
    def test_they_are_trained_and_hold_the_weights_on_all_replicas(self, count, replicas, is_built):
        def plain():
            model = keras.Sequential([LAYERS.Dense(3, activation="tanh"), LAYERS.Dense(2)])
            model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
            return model

        reference, model = fresh(plain), self.make(replicas, is_built=is_built)
        expected = keras_fit(reference, X, Y, validation_data=(X[:13], Y[:13]))
        found = fit(model, (X, Y), devices=count, validation_data=(X[:13], Y[:13]))
        assert_same_history(found, expected)
        for own, other in zip(model.weights, reference.weights, strict=True):
            copies = own._value.values
            assert len(copies) == replicas
            assert_close([copy.numpy() for copy in copies], [other.numpy()] * replicas)
        assert model.optimizer.iterations.numpy() == 6
        evaluated = kerasdist.evaluate(model, (X, Y), batch_size=8, devices=count)
        expected = reference.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)
        assert evaluated == pytest.approx(expected, rel=1e-9)
        outputs = kerasdist.predict(model, X, batch_size=8, devices=count)
        assert_close([outputs], [reference.predict(X, verbose=0)])

    def test_one_that_is_compiled_outside_goes_on_in_a_second_fit(self):
        models = [self.make(2, compiled_inside=False), self.make(1)]
        for model, count in zip(models, (2, 1), strict=True):
            fit(model, (X, Y), devices=count)
            fit(model, (X, Y), devices=count)
        assert_close(models[0].get_weights(), models[1].get_weights())

    def test_a_call_inside_the_scope_is_refused(self):
        model, strategy = self.make(2), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        refusal = pytest.raises(KerasdistError, match=r"inside the scope .* move this call out")
        with strategy.scope(), refusal:
            fit(model, (X, Y), devices=2)
        for call in (kerasdist.evaluate, kerasdist.predict):
            refusal = pytest.raises(KerasdistError, match="move this call out")
            with strategy.scope(), refusal:
                call(model, (X, Y), devices=2)


CLASSES = RANDOM.integers(0, 3, size=21)


@pytest.mark.parametrize("outputs_in", [list, dict])
@pytest.mark.parametrize("targets_in", [tuple, dict])
@pytest.mark.parametrize("as_dataset", [False, True])
def test_outputs_and_targets_in_different_structures_are_matched_as_in_keras(
    outputs_in, targets_in, as_dataset
):
    def build():
        inputs = keras.Input((4,))
        outputs = {"a": LAYERS.Dense(2, name="a")(inputs)}
        outputs["b"] = LAYERS.Dense(3, activation="softmax", name="b")(inputs)
        model = keras.Model(inputs, outputs if outputs_in is dict else list(outputs.values()))
        losses = {"a": "mse", "b": "sparse_categorical_crossentropy"}
        model.compile(keras.optimizers.SGD(0.05), losses, metrics={"b": ["accuracy"]})
        return model

    y = {"a": Y, "b": CLASSES} if targets_in is dict else (Y, CLASSES)
    reference = fresh(build)
    expected = keras_fit(reference, X, y)
    for count in (1, 2):
        model, data, options = fresh(build), (X, y), {}
        if as_dataset:
            data, options = tf.data.Dataset.from_tensor_slices(data).batch(8), {"batch_size": None}
        assert_same_history(fit(model, data, devices=count, **options), expected)
        assert_close(weights_of(model), weights_of(reference))


def test_a_wrong_label_of_targets_in_another_structure_is_named():
    inputs = keras.Input((4,))
    outputs = [LAYERS.Dense(2, name="a")(inputs), LAYERS.Dense(2, name="b")(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", ["mse", "sparse_categorical_crossentropy"])
    with pytest.raises(KerasdistError, match=r"label 2 .*from 0 to 1"):
        fit(model, (X, {"a": Y, "b": np.full(21, 2)}))


IMAGES = RANDOM.uniform(size=(12, 10, 10, 3))
RANGE = {"value_range": (0, 1)}
PREPROCESSING = {
    "RandomCrop": lambda: LAYERS.RandomCrop(8, 8),
    "RandomFlip": lambda: LAYERS.RandomFlip(),
    "RandomRotation": lambda: LAYERS.RandomRotation(0.2),
    "RandomZoom": lambda: LAYERS.RandomZoom(0.2),
    "RandomTranslation": lambda: LAYERS.RandomTranslation(0.2, 0.2),
    "RandomContrast": lambda: LAYERS.RandomContrast(0.2),
    "RandomBrightness": lambda: LAYERS.RandomBrightness(0.2, **RANGE),
    "RandomErasing": lambda: LAYERS.RandomErasing(),
    "Resizing": lambda: LAYERS.Resizing(8, 8),
    "CenterCrop": lambda: LAYERS.CenterCrop(8, 8),
    "Rescaling": lambda: LAYERS.Rescaling(0.5),
    "Pipeline": lambda: LAYERS.Pipeline([LAYERS.RandomFlip(), LAYERS.RandomCrop(8, 8)]),
}
FIXED = ("Resizing", "CenterCrop", "Rescaling")


@pytest.mark.parametrize("name", PREPROCESSING)
def test_preprocessing_layers_in_a_model(name):
    # Some of them cannot compute in float64 (Keras 3.15.1).
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")

    def build(is_built):
        inputs = [keras.Input((10, 10, 3))] if is_built else []
        layers = [*inputs, PREPROCESSING[name](), LAYERS.Flatten(), LAYERS.Dense(2)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    y = Y[:12]
    expected = keras_fit(fresh(lambda: build(True)), IMAGES, y)
    for is_built, count in ((True, 1), (False, 2)):
        model = fresh(lambda is_built=is_built: build(is_built))
        found = fit(model, (IMAGES, y), devices=count)
        assert np.isfinite(found.history["loss"]).all()
        if name in FIXED:  # The others draw.
            assert_same_history(found, expected, 1e-5)


def frozen():
    layers = [LAYERS.BatchNormalization(trainable=True, scale=False, center=False)]
    model = keras.Sequential([keras.Input((4,)), *layers, LAYERS.Dense(2, trainable=False)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.mark.filterwarnings("ignore:.*any trainable weights")
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_model_without_trainable_weights_is_run_as_in_keras(clip_norm):
    reference = fresh(frozen)
    expected = keras_fit(reference, X, Y, validation_data=(X[:13], Y[:13]))
    model = fresh(frozen)
    options = {"validation_data": (X[:13], Y[:13]), "clip_norm": clip_norm}
    found = fit(model, (X, Y), devices=1, shards=1, **options)
    assert_same_history(found, expected)
    assert_close(weights_of(model), weights_of(reference))
    assert int(model.optimizer.iterations) == int(reference.optimizer.iterations) == 0
    assert np.isfinite(fit(fresh(frozen), (X, Y), devices=2).history["loss"]).all()


def test_a_model_without_trainable_weights_is_warned_about_as_in_keras():
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        fit(fresh(frozen), (X, Y), devices=1)


class OwnFit(keras.Sequential):
    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


class OwnEvaluate(keras.Sequential):
    def evaluate(self, *args, **kwargs):
        return super().evaluate(*args, **kwargs)


class OwnPredict(keras.Sequential):
    def predict(self, *args, **kwargs):
        return super().predict(*args, **kwargs)


CALLS = {
    "fit": lambda model: fit(model, (X, Y), devices=1),
    "validate": lambda model: fit(model, (X, Y), devices=1, validation_data=(X, Y)),
    "evaluate": lambda model: kerasdist.evaluate(model, (X, Y), devices=1),
    "predict": lambda model: kerasdist.predict(model, X, devices=1),
}


@pytest.mark.parametrize(
    ("kind", "refused", "method"),
    [
        (OwnFit, {"fit", "validate"}, "fit"),
        (OwnEvaluate, {"validate", "evaluate"}, "evaluate"),
        (OwnPredict, {"predict"}, "predict"),
    ],
)
def test_methods_of_a_model_that_would_be_bypassed_are_refused_where_they_matter(
    kind, refused, method
):
    for name, call in CALLS.items():
        model = dense(kind)
        if name in refused:
            with pytest.raises(KerasdistError, match=rf"'{kind.__name__}' overrides `{method}`"):
                call(model)
        else:
            call(model)


class TestKerasHub:
    """Its tasks override `fit`, to preprocess the data."""

    @pytest.fixture
    def hub(self):
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
        return pytest.importorskip("keras_hub")

    @staticmethod
    def classifier(hub, **options):
        keras.utils.set_random_seed(1)
        backbone = hub.models.ViTBackbone(
            image_shape=(8, 8, 3),
            patch_size=(4, 4),
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            mlp_dim=8,
        )
        model = hub.models.ViTImageClassifier(backbone=backbone, num_classes=3, **options)
        model.compile(
            keras.optimizers.SGD(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    @staticmethod
    def preprocessor(hub):
        converter = hub.layers.ImageConverter(image_size=(8, 8), scale=0.02, offset=-1.0)
        return hub.models.ImageClassifierPreprocessor(image_converter=converter)

    IMAGES = (255 * IMAGES).astype("float32")
    CLASSES = CLASSES[:12]

    def test_with_its_preprocessor_it_is_refused_with_what_to_do(self, hub):
        model = self.classifier(hub, preprocessor=self.preprocessor(hub))
        for call in (kerasdist.fit, kerasdist.evaluate, kerasdist.predict):
            with pytest.raises(KerasdistError, match=r"preprocess_samples\(x, y\).*None"):
                call(model, (self.IMAGES, self.CLASSES), batch_size=8)

    @pytest.mark.parametrize("count", [1, 2])
    def test_what_the_message_says_trains_as_keras_does(self, hub, count):
        options = {"preprocessor": self.preprocessor(hub)}
        reference, model = (self.classifier(hub, **options) for _ in range(2))
        expected = keras_fit(reference, self.IMAGES, self.CLASSES)
        data = model.preprocess_samples(self.IMAGES, self.CLASSES)
        model.preprocessor = None
        found = fit(model, data, devices=count)
        assert_same_history(found, expected, 1e-4)
        assert_close(model.get_weights(), reference.get_weights(), 1e-4)
        evaluated = kerasdist.evaluate(model, data, batch_size=8, devices=count)
        expected = reference.evaluate(
            self.IMAGES, self.CLASSES, batch_size=8, verbose=0, return_dict=True
        )
        assert evaluated == pytest.approx(expected, rel=1e-4)


def test_weights_of_lora_are_float32_in_keras_and_agree_to_its_rounding():
    """Keras multiplies them in float32, forwards and backwards, also in a model of float64.

    Before 3.14 they have the model's precision.
    """

    def build():
        layer = LAYERS.Dense(6, activation="tanh")
        model = keras.Sequential([keras.Input((4,)), layer, LAYERS.Dense(2)])
        layer.enable_lora(2)
        is_newer = number(keras.__version__) >= (3, 14)
        assert layer.lora_kernel_a.dtype == ("float32" if is_newer else "float64")
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    assert_as_keras(build, X, Y, devices=(1,), tolerance=1e-12)
    assert_as_keras(build, X, Y, devices=(2, 4), tolerance=1e-6)


def test_ctc_is_computed_in_float32_in_keras_and_agrees_to_its_rounding():
    def build():
        model = keras.Sequential([keras.Input((10, 4)), LAYERS.Dense(5)])
        model.compile(keras.optimizers.SGD(0.05), keras.losses.CTC())
        return model

    x, labels = RANDOM.normal(size=(21, 10, 4)), RANDOM.integers(1, 5, size=(21, 3))
    assert_as_keras(build, x, labels, devices=(1,), tolerance=1e-12)
    assert_as_keras(build, x, labels, devices=(2, 4), tolerance=1e-6)


def normalised(**options):
    layers = [LAYERS.Dense(3), LAYERS.BatchNormalization(name="norm", **options), LAYERS.Dense(2)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("shards", "options", "expected"),
    [
        (
            4,
            {},
            "Note: BatchNormalization ('norm') takes its statistics over each of 4 shards (only 2",
        ),
        (2, {}, "over each of 2 shards (only 4 of a batch's 8 examples"),
        (1, {}, None),
        (4, {"trainable": False}, None),
    ],
)
def test_batch_normalization_by_shard_is_said_once(capsys, shards, options, expected):
    fit(normalised(**options), (X, Y), devices=1, shards=shards, progress="lines")
    found = [line for line in capsys.readouterr().out.splitlines() if "BatchNorm" in line]
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_more_shards_than_examples_are_told_by_words():
    """Such as with 12 devices and a batch of 8."""
    note = refusals.batch_norm_note(normalised(), 8, 12)
    assert "over each of 12 shards (a batch's 8 examples leave some of them empty)" in note


def test_batch_normalization_by_shard_is_not_said_where_nothing_is(capsys):
    fit(normalised(), (X, Y), devices=1, shards=4)
    assert capsys.readouterr().out == ""


def divided_by_weights():
    model = keras.Sequential([keras.Input((4,)), LAYERS.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    model.compile(keras.optimizers.SGD(0.5), loss)
    return model


STRONG = 5 * WEIGHT


def test_class_weights_of_a_loss_that_divides_by_the_weights():
    assert_as_keras(divided_by_weights, X, CLASSES, class_weight={0: 1.0, 1: 9.0, 2: 0.2})


@pytest.mark.parametrize("count", DEVICES)
@pytest.mark.parametrize("weighs", ["training", "validation"])
def test_weights_in_training_or_in_validation_alone(weighs, count):
    plain, weighted = (X, CLASSES), (X, CLASSES, STRONG)
    data, validation = (weighted, plain) if weighs == "training" else (plain, weighted)
    reference, model = fresh(divided_by_weights), fresh(divided_by_weights)
    options = {"sample_weight": STRONG} if weighs == "training" else {}
    options |= {"validation_data": validation, "validation_batch_size": 8}
    expected = keras_fit(reference, X, CLASSES, **options)
    found = fit(model, data, devices=count, validation_data=validation)
    assert_same_history(found, expected)
    assert_close(weights_of(model), weights_of(reference))


class Counts(LAYERS.Layer):
    """Counts steps in training, and examples in validation."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        rows = keras.ops.cast(keras.ops.shape(x)[0], self.count.dtype)
        self.count.assign_add(keras.ops.ones_like(rows) if training else rows)
        return x


@pytest.mark.parametrize("count", DEVICES)
def test_state_may_have_another_rule_in_validation(count):
    model = keras.Sequential([keras.Input((4,)), Counts(), LAYERS.Dense(2)])
    model.compile("sgd", "mse")
    fit(model, (X, Y), devices=count, epochs=1, batch_size=7, validation_data=(X[:16], Y[:16]))
    assert float(model.layers[0].count) == 3 + 16


def test_a_checkpoint_without_outside_state_is_put_back(engines):
    outside = keras.Variable(5.0, name="outside")

    class Adds(LAYERS.Layer):
        def call(self, x):
            outside.assign_add(1.0)
            return x

    model = keras.Sequential([keras.Input((4,)), Adds(), LAYERS.Dense(2)])
    model.compile("sgd", "mse")
    fit(model, (X, Y), epochs=1, batch_size=21)
    state = engines[0].state
    arrays = state.snapshot()
    assert float(arrays.pop("other/0000")) == 6
    state.restore(arrays)
    assert float(outside) == 6


def test_a_given_seed_leaves_pythons_random_alone():
    state = random.getstate()
    fit(lambda: dense(), (X, Y), epochs=1, seed=3)
    assert random.getstate() == state


def test_too_few_targets_are_told():
    inputs = keras.Input((4,))
    outputs = [LAYERS.Dense(3, name="a")(inputs), LAYERS.Dense(3, name="b")(inputs)]
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"b": loss, "a": loss})
    with pytest.raises(KerasdistError, match=r"targets|cannot read"):
        fit(model, (X, CLASSES), epochs=1)
