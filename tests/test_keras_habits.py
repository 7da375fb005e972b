"""What Keras's own `fit`, `evaluate` and `predict` do, and programs rely on."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError

NUM = 22
BATCH = 4
DEVICES = pytest.mark.parametrize("devices", [1, 2, 4])


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def arrays(num=NUM):
    random = np.random.default_rng(3)
    x = random.normal(size=(num, 3))
    return x, x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * random.normal(size=(num, 1))


X, Y = arrays()


def make_model(optimizer=None):
    """A model whose first weights are the same every time."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh", kernel_initializer=keras.initializers.GlorotNormal(1)),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotNormal(2)),
        ]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    return model


def make_sum(num_inputs=2):
    """The outputs are x1 + 10 x2."""
    inputs = [keras.Input((3,), name=f"x{i + 1}") for i in range(num_inputs)]
    sums = [10.0**i * x for i, x in enumerate(inputs)]
    return keras.Model(inputs, sum(sums[1:], sums[0]))


def assert_same_weights(model, expected, tolerance=1e-9):
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=tolerance)


def assert_same_history(history, expected):
    assert set(history.history) == set(expected.history)
    assert history.epoch == expected.epoch
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=0, atol=1e-9)


class Calls(keras.callbacks.Callback):
    """Writes down the hooks that are called, and their logs."""

    def __init__(self):
        super().__init__()
        self.names, self.logs = [], []

    def _note(self, name, logs):
        self.names.append(name)
        self.logs.append(logs)

    def on_train_begin(self, logs=None):
        self._note("train begin", logs)

    def on_test_begin(self, logs=None):
        self._note("test begin", logs)

    def on_predict_begin(self, logs=None):
        self._note("predict begin", logs)

    def on_predict_batch_begin(self, batch, logs=None):
        self._note(f"predict batch begin {batch}", logs)

    def on_predict_batch_end(self, batch, logs=None):
        self._note(f"predict batch end {batch}", logs)

    def on_predict_end(self, logs=None):
        self._note("predict end", logs)


# Callbacks


@pytest.mark.parametrize("form", ["None", "one", "list", "tuple", "nested"])
def test_callbacks_come_in_the_forms_that_keras_takes(form):
    calls = Calls()
    given = {
        "None": None,
        "one": calls,
        "list": [calls],
        "tuple": (calls,),
        "nested": [[calls], keras.callbacks.TerminateOnNaN()],
    }[form]
    model = make_model()
    kerasdist.fit(model, (X, Y), batch_size=BATCH, callbacks=given, progress=False)
    kerasdist.evaluate(model, (X, Y), callbacks=given)
    assert calls.names == ([] if form == "None" else ["train begin", "test begin"])


def test_a_callback_list_is_refused_with_the_way_out():
    mine = keras.callbacks.CallbackList([Calls()])
    for function in (kerasdist.fit, kerasdist.evaluate, kerasdist.predict):
        with pytest.raises(KerasdistError, match=r"CallbackList.*callbacks=mine\.callbacks"):
            function(make_model(), (X, Y), batch_size=BATCH, callbacks=mine)


@pytest.mark.parametrize(
    ("given", "named"), [([Calls], "the class 'Calls'"), (["tensorboard"], "'tensorboard'")]
)
def test_what_is_not_a_callback_is_refused(given, named):
    with pytest.raises(KerasdistError, match=f"Received {named} in `callbacks`. Expected objects"):
        kerasdist.fit(make_model(), (X, Y), batch_size=BATCH, callbacks=given)


@DEVICES
def test_predict_calls_the_hooks_that_keras_calls(devices):
    model, own, expected = make_model(), Calls(), Calls()
    model.predict(X, batch_size=BATCH, callbacks=[expected], verbose=0)
    kerasdist.predict(model, X, batch_size=BATCH, callbacks=own, devices=devices)
    assert own.names == expected.names
    assert own.params == {"verbose": 0, "epochs": 1, "steps": 6}
    for logs, other in zip(own.logs, expected.logs, strict=True):
        assert set(logs or {}) == set(other or {})
        if other:
            assert type(logs["outputs"]) is type(other["outputs"])
            np.testing.assert_allclose(logs["outputs"], other["outputs"], rtol=0, atol=1e-12)


class StopAfterTwo(keras.callbacks.Callback):
    def on_predict_batch_end(self, batch, logs=None):
        self.model.stop_predicting = batch == 1

    def on_test_batch_end(self, batch, logs=None):
        self.model.stop_evaluating = batch == 1


def test_a_callback_ends_predict_and_evaluate_as_in_keras():
    model, stop = make_model(), StopAfterTwo()
    sized = {"batch_size": BATCH, "callbacks": [stop]}
    assert len(kerasdist.predict(model, X, **sized)) == 2 * BATCH
    expected = model.evaluate(X, Y, return_dict=True, verbose=0, **sized)
    assert kerasdist.evaluate(model, (X, Y), **sized) == pytest.approx(expected, abs=1e-12)


def test_evaluate_and_predict_leave_the_history_of_fit_alone():
    model = make_model()
    history = kerasdist.fit(model, (X, Y), batch_size=BATCH, progress=False)
    kerasdist.evaluate(model, (X, Y))
    kerasdist.predict(model, X)
    assert model.history is history


# Lists and tuples


@DEVICES
def test_predict_takes_a_list_for_several_inputs(devices):
    outputs = kerasdist.predict(make_sum(), [X, X + 1], batch_size=BATCH, devices=devices)
    np.testing.assert_allclose(outputs, X + 10 * (X + 1))


def test_predict_takes_a_list_of_one_input():
    np.testing.assert_allclose(kerasdist.predict(make_sum(1), [X]), X)


def test_predict_takes_rows_of_numbers_for_one_array():
    np.testing.assert_allclose(kerasdist.predict(make_sum(1), X.tolist()), X)


@DEVICES
def test_a_tuple_of_a_list_and_targets_trains_as_in_keras(devices):
    def make():
        inputs = [keras.Input((3,)), keras.Input((3,))]
        joined = keras.layers.concatenate(inputs)
        outputs = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotNormal(1))
        model = keras.Model(inputs, outputs(joined))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    model, expected = make(), make()
    data, sized = ([X, X**2], Y), {"batch_size": BATCH, "epochs": 2, "shuffle": False}
    expected.fit(*data, validation_data=data, verbose=0, **sized)
    history = kerasdist.fit(
        model, data, validation_data=list(data), devices=devices, progress=False, **sized
    )
    assert_same_weights(model, expected)
    assert_same_history(history, expected.history)
    loss = expected.evaluate(*data, batch_size=BATCH, verbose=0)
    assert kerasdist.evaluate(model, data, devices=devices)["loss"] == pytest.approx(loss, abs=1e-9)


def test_a_list_has_no_targets():
    model = make_sum()
    model.compile("sgd", "mse")
    with pytest.raises(KerasdistError, match="target"):
        kerasdist.fit(model, [X, X], batch_size=BATCH, progress=False)


def test_a_list_that_a_generator_yields_is_x_and_y():
    model, expected = make_model(), make_model()
    expected.fit(X, Y, batch_size=NUM, verbose=0)
    kerasdist.fit(model, lambda: iter([[X, Y]]), progress=False)
    assert_same_weights(model, expected)


class Two(kerasdist.Model):
    features = ("a", "b")
    targets = "y"

    def call(self, a, b):
        return a + 10 * b


def test_a_list_is_matched_with_named_features_in_their_order():
    np.testing.assert_allclose(kerasdist.predict(Two(), [X, X + 1]), X + 10 * (X + 1))
