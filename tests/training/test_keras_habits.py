"""What Keras's own `fit`, `evaluate` and `predict` do, and programs rely on."""

import json
import random
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import open_stream
from kerasdist.devices.placement import Share
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.checkpoints.inherited import choose_seed
from kerasdist.runs.folder import RunFolder
from kerasdist.training import arguments
from tests import classifier_recipe

# Minutes in all: `.ci/full` runs them.
pytestmark = pytest.mark.slow

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


def test_a_callback_list_counts_as_the_callbacks_in_it(capsys):
    calls, model = Calls(), make_model()
    mine = keras.callbacks.CallbackList([calls], add_history=True, add_progbar=True)
    history = kerasdist.fit(model, X, Y, batch_size=BATCH, callbacks=mine, verbose=0)
    assert calls.names == ["train begin"]
    assert calls.model is model
    assert len(history.history["loss"]) == 1
    assert capsys.readouterr().out == ""  # Not even the progress bar that Keras put there.


class Listener:
    def on_epoch_end(self, epoch, logs=None): ...


@pytest.mark.parametrize(
    ("given", "named", "fix"),
    [
        ([Calls], "the class 'Calls'", r"`callbacks=\[Calls\(...\)\]`"),
        (["tensorboard"], "'tensorboard'", "Did you mean 'TensorBoard'"),
        ("early_stopping", "'early_stopping'", "Did you mean 'EarlyStopping'"),
        ([print], "the function 'print'", "LambdaCallback"),
        ([Listener], "the class 'Listener'", "inherit from `keras.callbacks.Callback`"),
        ([Listener()], "an object of the class 'Listener'", "Let its class inherit"),
        (
            keras.optimizers.schedules.CosineDecay(0.1, 3),
            "the learning rate schedule 'CosineDecay'",
            "Give it to the optimizer",
        ),
        ([None], "None", "TerminateOnNaN"),
    ],
)
def test_what_is_not_a_callback_is_refused(given, named, fix):
    expected = f"Received {named} in `callbacks`. Expected objects.*{fix}"
    with pytest.raises(KerasdistError, match=expected):
        kerasdist.fit(make_model(), (X, Y), batch_size=BATCH, callbacks=given)


@DEVICES
def test_predict_calls_the_hooks_that_keras_calls(devices):
    model, own, expected = make_model(), Calls(), Calls()
    model.predict(X, batch_size=BATCH, callbacks=[expected], verbose=0)
    kerasdist.predict(model, X, batch_size=BATCH, callbacks=own, devices=devices, verbose=0)
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


class StopAtOnce(keras.callbacks.Callback):
    def on_predict_begin(self, logs=None):
        self.model.stop_predicting = True

    def on_test_begin(self, logs=None):
        self.model.stop_evaluating = True


@pytest.mark.parametrize("together", [1, 2])
def test_a_callback_that_asks_to_stop_at_the_begin_gets_what_keras_gives_it(together):
    model, stop = make_model(), StopAtOnce()
    model.compile("sgd", "mse", metrics=["mae"], steps_per_execution=together)
    sized = {"batch_size": BATCH, "callbacks": [stop], "verbose": 0}
    expected = model.predict(X, **sized)
    assert len(expected) == together * BATCH
    np.testing.assert_allclose(kerasdist.predict(model, X, **sized), expected, rtol=0, atol=1e-12)
    expected = model.evaluate(X, Y, return_dict=True, **sized)
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


def test_a_workers_part_of_a_list_is_a_list_of_parts():
    """Several inputs must not become inputs and targets on the way."""
    model = make_sum()
    stream = open_stream([X, X + 1], batch_size=NUM)
    as_batches = open_stream(lambda: iter([((X, X + 1),)]))
    for each in (stream, as_batches):
        options = {"labels": (), "name": "data", "need_targets": False, "share": Share(1, 2, 2)}
        prepare = preparation(model, each, **options)
        ((part, span),) = prepare(each.open(0, 0), 0, 0)
        ((first, second),) = part
        np.testing.assert_array_equal(first, X[11:])
        np.testing.assert_array_equal(second, X[11:] + 1)
        assert span.numpy().tolist() == [NUM, 11]
        each.close()


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


# Steps, epochs and passes


def as_dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


class Batches(keras.utils.PyDataset):
    """Notes which batches are read, and which hooks are called."""

    def __init__(self, num_batches=6):
        super().__init__()
        self.notes, self._num_batches = [], num_batches

    @property
    def num_batches(self):
        return self._num_batches

    def __getitem__(self, index):
        self.notes.append(index)
        rows = slice(index % 6 * BATCH, (index % 6 + 1) * BATCH)
        return X[rows], Y[rows]

    def on_epoch_begin(self):
        self.notes.append("begin")

    def on_epoch_end(self):
        self.notes.append("end")


def generate(num_batches=6):
    for i in range(num_batches):
        yield X[i * BATCH : (i + 1) * BATCH], Y[i * BATCH : (i + 1) * BATCH]


FORMS = {
    "arrays": lambda: (X, Y),
    "dataset": as_dataset,
    "dataset of unknown length": lambda: as_dataset().filter(lambda *_: True),
    "PyDataset": Batches,
}


def keras_fit(model, data, **options):
    if isinstance(data, tuple):
        return model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0, **options)
    return model.fit(data, shuffle=False, verbose=0, **options)


def fit(model, data, **options):
    size = {"batch_size": BATCH} if isinstance(data, tuple) else {}
    options = {"shuffle": False, "progress": False, **size, **options}
    return kerasdist.fit(model, data, **options)


class Steps(keras.callbacks.Callback):
    """How many steps each epoch has."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def on_epoch_begin(self, epoch, logs=None):
        self.counts.append(0)

    def on_train_batch_end(self, batch, logs=None):
        assert batch == self.counts[-1]
        self.counts[-1] += 1


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", [3, 4, 9])
def test_epochs_have_the_steps_that_keras_gives_them(form, steps, capfd):
    model, expected, counts, others = make_model(), make_model(), Steps(), Steps()
    options = {"epochs": 5, "steps_per_epoch": steps}
    history = keras_fit(expected, FORMS[form](), callbacks=[others], **options)
    own = fit(model, FORMS[form](), devices=2, callbacks=[counts], **options)
    # An epoch finds out at its beginning that data of unknown length has ended.
    whole = [3, 3, 0, 3, 3] if form == "dataset of unknown length" else [3] * 5
    assert counts.counts == others.counts == {3: whole, 4: [4, 2, 4, 2, 4], 9: [6] * 5}[steps]
    assert_same_weights(model, expected)
    assert_same_history(own, history)
    told = capfd.readouterr().err.count("the next one starts the data again, as in Keras")
    assert told == (0 if counts.counts == [3] * 5 else 1)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@DEVICES
@pytest.mark.parametrize("steps", [2, 9])
def test_validation_has_the_steps_that_keras_gives_it(devices, steps):
    model, expected = make_model(), make_model()
    options = {"epochs": 2, "validation_data": as_dataset(), "validation_steps": steps}
    history = keras_fit(expected, (X, Y), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = fit(model, (X, Y), devices=devices, **options)
    assert_same_history(own, history)
    told = [w for w in caught if "`validation_data` ended after 6 of 9 requested" in str(w.message)]
    assert len(told) == (2 if steps == 9 else 0)


def test_evaluate_and_predict_warn_where_data_is_shorter_than_asked_for():
    for function in (kerasdist.evaluate, kerasdist.predict):
        with pytest.warns(UserWarning, match="`data` ended after 6 of 9 requested batches"):
            function(make_model(), as_dataset(), steps=9)


def test_a_run_continues_within_a_pass_that_an_epoch_ended_in(tmp_path):
    whole, parts = make_model(), make_model()
    fit(whole, (X, Y), epochs=4, steps_per_epoch=4, shuffle=True, seed=3)
    for epochs in (1, 3, 4):  # within the first pass, and at the beginning of the third
        options = {"epochs": epochs, "steps_per_epoch": 4, "shuffle": True, "seed": 3}
        parts = make_model()
        fit(parts, (X, Y), run_dir=tmp_path / "run", **options)
    assert_same_weights(parts, whole, 0)


def test_an_epoch_of_a_generator_function_is_never_empty():
    """Keras has no such data: the end of a pass at the end of an epoch is nothing to tell."""
    counts = Steps()
    fit(make_model(), generate, steps_per_epoch=3, epochs=4, callbacks=[counts])
    assert counts.counts == [3, 3, 3, 3]


def test_an_empty_epoch_is_not_the_best(tmp_path):
    y = np.concatenate([Y[:12], 9 * Y[12:]])  # The second epoch is worse than the first.
    data = tf.data.Dataset.from_tensor_slices((X, y)).batch(BATCH).filter(lambda *_: True)
    options = {"steps_per_epoch": 3, "epochs": 3, "run_dir": tmp_path / "run"}
    losses = fit(make_model(), data, **options).history["loss"]
    assert losses[2] == 0 < losses[0] < losses[1]
    fit(first := make_model(), data, steps_per_epoch=3, epochs=1)
    assert_same_weights(keras.models.load_model(tmp_path / "run" / "best.keras"), first, 0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@DEVICES
@pytest.mark.parametrize("num_batches", [6, 5, 4])
def test_a_generator_that_ends_ends_the_training_as_in_keras(devices, num_batches, capfd):
    model, expected = make_model(), make_model()
    options = {"epochs": 2, "steps_per_epoch": 4, "validation_data": (X, Y)}
    history = keras_fit(expected, generate(num_batches), **options)
    own = fit(model, generate(num_batches), devices=devices, **options)
    assert_same_weights(model, expected)
    # Keras's default of 32 for validation: the loss is that of all examples either way.
    assert_same_history(own, history)
    text = capfd.readouterr().err
    assert f"the data ended after {num_batches - 4} of its 4 steps of epoch 2." in text
    assert "so the training ends here" in text


def test_epochs_after_the_end_of_a_generator_are_left_out(tmp_path, capfd):
    """Keras trains them on the generator's first two batches, which nobody wants."""
    counts, folder = Steps(), tmp_path / "run"
    options = {"epochs": 4, "steps_per_epoch": 4, "run_dir": folder}
    model = make_model()
    history = fit(model, generate(), callbacks=[counts], **options)
    assert counts.counts == [4, 2]
    assert history.epoch == [0, 1]
    assert "Keras would continue with the generator's first two batches" in capfd.readouterr().err
    again = make_model()  # The same program once more: it is finished.
    fit(again, generate(), **options)
    assert_same_weights(again, model, 0)
    assert int(again.optimizer.iterations) == 6


def test_a_generator_that_ends_before_the_steps_ends_the_training(capfd):
    model, expected = make_model(), make_model()
    fit(model, generate(), steps=50)
    fit(expected, generate())
    assert_same_weights(model, expected, 0)
    assert "the data ended after 6 steps of epoch 1." in capfd.readouterr().err


def test_a_generator_for_several_epochs_ends_the_training_with_a_warning(capfd):
    model, expected = make_model(), make_model()
    history = fit(model, generate(), epochs=3)
    fit(expected, generate())
    assert history.epoch == [0]
    assert_same_weights(model, expected, 0)
    told = capfd.readouterr().err
    assert "the data ended after 6 steps of epoch 1." in told
    assert "pass the generator function itself" in told


def test_a_generator_for_one_epoch_ends_without_a_warning(capfd):
    fit(make_model(), generate())
    assert "the data ended" not in capfd.readouterr().err


@pytest.fixture
def limits():
    yield
    keras.config.set_max_epochs(None)
    keras.config.set_max_steps_per_epoch(None)


@pytest.mark.usefixtures("limits")
@pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:Limiting")
@DEVICES
def test_the_limits_of_keras_hold(devices):
    keras.config.set_max_epochs(3)
    keras.config.set_max_steps_per_epoch(4)
    model, expected = make_model(), make_model()
    options = {"epochs": 5, "validation_data": as_dataset()}
    history = keras_fit(expected, (X, Y), **options)
    with (
        pytest.warns(UserWarning, match="`epochs` is 3: `keras.config`"),
        pytest.warns(UserWarning, match="`steps_per_epoch` is 4: `keras.config`"),
        pytest.warns(UserWarning, match="`validation_steps` is 4: `keras.config`"),
    ):
        own = fit(model, (X, Y), devices=devices, **options)
    assert_same_weights(model, expected)
    assert_same_history(own, history)
    assert own.epoch == [0, 1, 2]
    loss = expected.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True)
    with pytest.warns(UserWarning, match="`steps` is 4"):
        assert kerasdist.evaluate(model, (X, Y), batch_size=BATCH) == pytest.approx(loss, abs=1e-9)
    with pytest.warns(UserWarning, match="`steps` is 4"):
        assert len(kerasdist.predict(model, X, batch_size=BATCH)) == 4 * BATCH


@pytest.mark.usefixtures("limits")
@pytest.mark.filterwarnings("ignore:`epochs` is")
def test_the_limit_of_epochs_holds_for_steps():
    keras.config.set_max_epochs(2)
    model = make_model()
    fit(model, (X, Y), steps=100)
    assert int(model.optimizer.iterations) == 12


# PyDataset


def passes(notes):
    """The batches that were read between two hooks, of those that were read at all."""
    found = [[]]
    for note in notes:
        if isinstance(note, str):
            found.append([])
        else:
            found[-1].append(note)
    return [batches for batches in found if batches]


@DEVICES
def test_a_py_dataset_is_shuffled_by_batches(devices):
    def train(seed, **options):
        data, model = Batches(), make_model()
        fit(model, data, shuffle=True, seed=seed, epochs=3, devices=devices, **options)
        return passes(data.notes), model

    order, model = train(1)
    assert [sorted(batches) for batches in order] == [[0, 1, 2, 3, 4, 5]] * 3
    assert len({tuple(batches) for batches in order}) == 3
    same, twin = train(1)
    assert same == order
    assert_same_weights(twin, model, 0)
    assert train(2)[0] != order
    # The weights are those of Keras on the batches in this order.
    expected = make_model()
    rows = [slice(i * BATCH, (i + 1) * BATCH) for batches in order for i in batches]
    keras_fit(expected, ((X[r], Y[r]) for r in rows), steps_per_epoch=18)
    assert_same_weights(model, expected)


def test_a_py_dataset_is_not_shuffled_where_keras_does_not():
    data, model = Batches(), make_model()
    kerasdist.fit(model, (X, Y), batch_size=BATCH, validation_data=data, progress=False)
    kerasdist.evaluate(model, data)
    kerasdist.predict(model, data)
    fit(model, data, shuffle=False)
    assert passes(data.notes) == [[0, 1, 2, 3, 4, 5]] * 4
    endless = Batches(num_batches=None)
    fit(model, endless, shuffle=True, steps_per_epoch=8)
    (read,) = passes(endless.notes)
    assert read[:8] == list(range(8))


def test_the_hooks_of_a_py_dataset_are_called_as_by_keras():
    own, other, model = Batches(), Batches(), make_model()
    keras_fit(model, other, epochs=2, validation_data=(other_validation := Batches()))
    fit(model, own, epochs=2, validation_data=(own_validation := Batches()))
    for data, expected in ((own, other), (own_validation, other_validation)):
        hooks = [note for note in data.notes if isinstance(note, str)]
        assert hooks == [note for note in expected.notes if isinstance(note, str)]


class Reshuffled(Batches):
    """Shuffles its examples after each epoch, as many programs do."""

    def __init__(self):
        super().__init__()
        self.rows, self.random = np.arange(NUM), np.random.default_rng(1)

    def __getitem__(self, index):
        rows = self.rows[index * BATCH : (index + 1) * BATCH]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.random.shuffle(self.rows)


def test_a_py_dataset_that_shuffles_itself_trains_as_in_keras_and_resumes(tmp_path):
    expected, whole = make_model(), make_model()
    # Keras reads ahead of `on_epoch_end` where it has the time: one epoch has no such race.
    keras_fit(expected, Reshuffled(), epochs=1)
    fit(whole, Reshuffled(), epochs=1)
    assert_same_weights(whole, expected)
    fit(whole := make_model(), Reshuffled(), epochs=3, shuffle=True, seed=5)
    for options in ({"epochs": 1}, {"epochs": 2}, {"epochs": 3}):
        parts = make_model()
        fit(parts, Reshuffled(), shuffle=True, seed=5, run_dir=tmp_path / "run", **options)
    assert_same_weights(parts, whole, 0)


class Mined(Batches):
    """Looks at the model after each epoch, as one does to find hard examples."""

    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, []

    def on_epoch_end(self):
        self.seen.append(self.model.get_weights()[0].copy())


@pytest.mark.parametrize("options", [{}, {"devices": 2}, {"deterministic": True}])
def test_a_py_dataset_sees_the_model_as_each_epoch_left_it(options):
    model = make_model()
    data, after = Mined(model), [model.get_weights()[0].copy()]
    fit(model, data, epochs=3, **options)
    for epochs in (1, 2, 3):
        again = make_model()
        fit(again, Batches(), epochs=epochs, **options)
        after.append(again.get_weights()[0])
    assert len(data.seen) == 4
    for found, expected in zip(data.seen, after, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not np.allclose(data.seen[1], data.seen[2])


# Averages of the weights


def averaging(is_scaled):
    inner = keras.optimizers.SGD(0.05, momentum=0.5, use_ema=True, ema_momentum=0.8)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0) if is_scaled else inner


class WeightsAtEnd(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.weights = self.model.get_weights()


@DEVICES
@pytest.mark.parametrize("is_scaled", [False, True])
def test_use_ema_ends_with_the_weights_of_keras(devices, is_scaled):
    model, expected, seen = make_model(averaging(is_scaled)), make_model(averaging(is_scaled)), None
    for _ in range(2):
        keras_fit(expected, (X, Y), epochs=2)
        fit(model, (X, Y), devices=devices, epochs=2, callbacks=[seen := WeightsAtEnd()])
        assert_same_weights(model, expected)
        for own, other in zip(seen.weights, expected.get_weights(), strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-9)


# BackupAndRestore


class Interrupt(keras.callbacks.Callback):
    """Stops the training as a crash would: at the beginning of an epoch, or after a batch of it."""

    def __init__(self, epoch, batch=None):
        super().__init__()
        self.epoch, self.batch, self.now = epoch, batch, None

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch
        if self.batch is None and epoch == self.epoch:
            raise InterruptedError

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.batch):
            raise InterruptedError


def interrupted(train, folder, epoch, batch=None, **options):
    """A training that is interrupted and started again with a new model, and its history."""

    def backup():
        return keras.callbacks.BackupAndRestore(str(folder), **options)

    with pytest.raises(InterruptedError):
        train(make_model(adam()), callbacks=[backup(), Interrupt(epoch, batch)])
    model = make_model(adam())
    return model, train(model, callbacks=[backup()])


def adam():
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8)


@DEVICES
def test_backup_and_restore_continues_at_the_epoch_where_keras_does(devices, tmp_path):
    own, history = interrupted(
        lambda model, **more: fit(model, (X, Y), epochs=4, devices=devices, **more),
        tmp_path / "own",
        2,
    )
    expected, other = interrupted(
        lambda model, **more: keras_fit(model, (X, Y), epochs=4, **more), tmp_path / "keras", 2
    )
    assert history.epoch == [2, 3]
    assert_same_history(history, other)
    assert_same_weights(own, expected)
    fit(whole := make_model(adam()), (X, Y), epochs=4)
    assert_same_weights(own, whole)


@pytest.mark.parametrize("form", ["arrays", "PyDataset", "dataset of examples"])
@pytest.mark.parametrize("steps", [None, 3])
def test_backup_and_restore_continues_with_the_order_of_the_epoch(form, steps, tmp_path):
    examples = tf.data.Dataset.from_tensor_slices((X, Y))
    data = examples if form == "dataset of examples" else FORMS[form]()
    size = {"batch_size": BATCH} if form != "PyDataset" else {}
    options = {"epochs": 4, "steps_per_epoch": steps, "shuffle": True, "seed": 3, **size}
    own, _ = interrupted(lambda model, **more: fit(model, data, **options, **more), tmp_path, 2)
    fit(whole := make_model(adam()), data, **options)
    assert_same_weights(own, whole, 0)


@pytest.mark.parametrize("devices", [1, 2])
def test_backup_and_restore_by_batches_repeats_the_epoch_as_keras_does(devices, tmp_path):
    options = {"epoch": 1, "batch": 4, "save_freq": 4}
    own, history = interrupted(
        lambda model, **more: fit(model, (X, Y), epochs=3, devices=devices, **more),
        tmp_path / "own",
        **options,
    )
    expected, other = interrupted(
        lambda model, **more: keras_fit(model, (X, Y), epochs=3, **more),
        tmp_path / "keras",
        **options,
    )
    assert int(own.optimizer.iterations) > 18  # Some batches are used twice: that is Keras's way.
    assert_same_history(history, other)
    assert_same_weights(own, expected)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_backup_and_restore_within_a_pass_starts_the_data_again_as_keras_does(tmp_path):
    options = {"epochs": 4, "steps_per_epoch": 4}
    own, history = interrupted(
        lambda model, **more: fit(model, (X, Y), **options, **more), tmp_path / "own", 1
    )
    expected, other = interrupted(
        lambda model, **more: keras_fit(model, (X, Y), **options, **more), tmp_path / "keras", 1
    )
    assert_same_history(history, other)
    assert_same_weights(own, expected)


def test_a_backup_of_a_finished_training_leaves_nothing_to_do_as_in_keras(tmp_path):
    models = []
    for train, folder in ((fit, tmp_path / "own"), (keras_fit, tmp_path / "keras")):
        for _ in range(2):
            backup = keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)
            model = make_model(adam())
            history = train(model, (X, Y), epochs=2, callbacks=[backup])
        assert history.epoch == []
        assert int(model.optimizer.iterations) == 12
        models.append(model)
    assert_same_weights(*models)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"run_dir": "run"}, "`run_dir`: a run has its own checkpoints"),
        ({"steps": 7}, "`steps`: its backups count epochs"),
        ({"ema": 0.9}, "`ema`: the averages are not in its backups"),
    ],
)
def test_backup_and_restore_is_refused_beside_another_way_to_continue(options, named, tmp_path):
    options = {k: tmp_path / v if k == "run_dir" else v for k, v in options.items()}
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(KerasdistError, match=f"`BackupAndRestore` together with {named}"):
        fit(make_model(), (X, Y), callbacks=[backup], **options)
    assert not list(tmp_path.iterdir())


def test_backup_and_restore_is_refused_on_several_workers():
    backup = keras.callbacks.BackupAndRestore("unused")
    others = {"run_dir": None, "steps": None, "ema": None, "workers": object()}
    with pytest.raises(KerasdistError, match="several workers: each worker would need"):
        arguments.check_backup([backup], **others)


# NaN that is masked


def make_masked():
    """A model and a loss that leave out what is not finite."""

    def known(values):
        is_known = keras.ops.isfinite(values)
        return is_known, keras.ops.where(is_known, values, 0.0)

    @keras.saving.register_keras_serializable("habits")
    class Known(keras.layers.Layer):
        def call(self, x):
            return known(x)[1]

    def loss(y, outputs):
        is_known, y = known(y)
        return keras.ops.mean(keras.ops.where(is_known, (y - outputs) ** 2, 0.0), axis=-1)

    out = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotNormal(1))
    model = keras.Sequential([keras.Input((3,)), Known(), out])
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def with_gaps():
    x, y = X.copy(), Y.copy()
    x[3, 1], x[20, 0], y[7], y[15] = np.nan, np.inf, np.nan, -np.inf
    return x, y


@DEVICES
@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_nan_that_is_masked_trains_as_in_keras(devices, form):
    x, y = with_gaps()
    data = (x, y)
    if form == "dataset":
        data = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    model, expected = make_masked(), make_masked()
    options = {"epochs": 2, "validation_data": data}
    history = keras_fit(expected, data, **options)
    own = fit(model, data, devices=devices, allow_nan=True, **options)
    assert_same_weights(model, expected)
    assert_same_history(own, history)
    loss = expected.evaluate(x, y, verbose=0)
    found = kerasdist.evaluate(model, data, allow_nan=True, devices=devices)
    assert found["loss"] == pytest.approx(loss, abs=1e-9)


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_nan_is_refused_with_the_way_to_let_it_through(form):
    data = with_gaps()
    if form == "dataset":
        data = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    hint = r"NaN or infinity in `data`.*masks such values, give `allow_nan=True` \(`--allow-nan`\)"
    with pytest.raises(KerasdistError, match=hint):
        fit(make_masked(), data)
    with pytest.raises(KerasdistError, match=hint):
        kerasdist.evaluate(make_masked(), data)
    with pytest.raises(KerasdistError, match="NaN or infinity in `validation_data`"):
        fit(make_masked(), (X, Y), validation_data=data)


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_nan_may_be_a_warning(form):
    x, y = with_gaps()
    data = (x, y)
    if form == "dataset":
        data = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    place = "x, example 3" if form == "arrays" else "., batch [0-9]"
    told = rf"`data` has NaN or infinity \({place} \(from 0\)\).*give `allow_nan=True`"
    model, expected = make_masked(), make_masked()
    fit(expected, data, epochs=2, allow_nan=True)
    with pytest.warns(UserWarning, match=told) as caught:
        fit(model, data, epochs=2, allow_nan="warn")
    # Older versions of NumPy and TensorFlow add warnings of their own.
    assert len([found for found in caught if "has NaN" in str(found.message)]) == 1
    assert_same_weights(model, expected, 0)
    with pytest.warns(UserWarning, match=told):
        kerasdist.evaluate(model, data, allow_nan="warn")
    with pytest.warns(UserWarning, match="`validation_data` has NaN"):
        fit(make_masked(), (X, Y), validation_data=data, allow_nan="warn")
    # Data without NaN gives no warning, which would be an error here.
    fit(make_masked(), (X, Y), allow_nan="warn")
    # The step is still checked.
    with pytest.warns(UserWarning, match="has NaN"), pytest.raises(kerasdist.DivergedError):
        fit(make_model(), (x, y), allow_nan="warn")


@pytest.mark.parametrize("value", ["maybe", None, 2])
def test_allow_nan_is_one_of_three(value):
    with pytest.raises(KerasdistError, match=r'Expected False .*, "warn" or True'):
        fit(make_model(), (X, Y), allow_nan=value)
    with pytest.raises(KerasdistError, match=r'Expected False .*, "warn" or True'):
        kerasdist.evaluate(make_model(), (X, Y), allow_nan=value)


@DEVICES
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_model_without_weights_trains_as_in_keras(devices, deterministic):
    def frozen(layer):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), layer()])
        model.trainable = False
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    told = "does not have any trainable weights"
    for layer, y in ((lambda: keras.layers.Rescaling(2.0), X), (lambda: keras.layers.Dense(1), Y)):
        model, expected = frozen(layer), frozen(layer)
        with pytest.warns(UserWarning, match=told):
            history = keras_fit(expected, (X, y), epochs=2)
        with pytest.warns(UserWarning, match=told):
            own = fit(model, (X, y), epochs=2, devices=devices, deterministic=deterministic)
        assert_same_history(own, history)
        assert_same_weights(model, expected, 0)


@pytest.mark.parametrize("form", ["arrays", "dataset"])
@pytest.mark.parametrize("value", [3.0, np.nan])
def test_labels_are_checked_also_where_nan_is_allowed(form, value):
    labels = np.zeros(NUM)
    labels[5] = value
    data = (X, labels)
    if form == "dataset":
        data = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(KerasdistError, match=r"Received the label .* Expected classes from 0 to 2"):
        fit(model, data, allow_nan=True)


def test_the_command_line_lets_nan_through(tmp_path, command):
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    recipe = classifier_recipe.write(tmp_path / "small")
    data = recipe / "data.py"
    as_floats = 'image.astype("float32") * np.where(np.arange(36) == 5, np.nan, 1).reshape(6, 6, 1)'
    data.write_text(
        data.read_text().replace('image.astype("uint8"), "label"', f'{as_floats}, "label"')
    )
    model = recipe / "model.py"
    model.write_text(
        model.read_text().replace(
            "def call(self, image):",
            "def call(self, image):\n        image = keras.ops.nan_to_num(image)",
        )
    )
    run = tmp_path / "run"
    refused = command("fit", recipe, "--run-dir", run)
    assert refused.code == 2
    assert "`--allow-nan`" in refused.err
    assert command("fit", recipe, "--run-dir", run, "--allow-nan", "--quiet").code == 0
    assert command("evaluate", run).code == 2
    assert "accuracy" in command("evaluate", run, "--allow-nan").out


# The seed


def order_of(model, **options):
    """The order of the batches of one epoch."""
    data = Batches()
    fit(model, data, shuffle=True, **options)
    (batches,) = passes(data.notes)
    return batches


def test_the_seed_of_keras_decides_about_the_order():
    keras.utils.set_random_seed(1)
    first = [order_of(make_model()) for _ in range(2)]
    keras.utils.set_random_seed(1)
    assert [order_of(make_model()) for _ in range(2)] == first
    keras.utils.set_random_seed(2)
    assert [order_of(make_model()) for _ in range(2)] != first
    keras.utils.set_random_seed(2)
    assert order_of(make_model(), seed=5) == order_of(make_model(), seed=5)


def test_each_further_fit_has_another_order():
    model = make_model()
    assert len({tuple(order_of(model)) for _ in range(4)}) > 1


def test_a_model_built_after_a_fit_begins_with_the_weights_of_keras():
    def second_weights(train):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        train(model)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).get_weights()[0]

    of_keras = second_weights(lambda model: model.fit(X, Y, verbose=0))
    np.testing.assert_array_equal(second_weights(lambda model: fit(model, (X, Y))), of_keras)


@DEVICES
def test_a_run_keeps_the_seed_that_was_drawn_for_it(devices, tmp_path):
    def train(epochs, **options):
        model = make_model()
        fit(model, (X, Y), shuffle=True, epochs=epochs, devices=devices, **options)
        return model, random.random()

    folder = tmp_path / "run"
    keras.utils.set_random_seed(1)
    whole, drawn = train(4)
    keras.utils.set_random_seed(1)
    _, drawn_first = train(2, run_dir=folder)
    keras.utils.set_random_seed(2)
    parts, drawn_resumed = train(4, run_dir=folder)
    assert_same_weights(parts, whole)
    # What a program draws afterwards does not depend on where the seed came from.
    assert drawn_first == drawn
    keras.utils.set_random_seed(2)
    assert train(1)[1] == drawn_resumed
    seed = json.loads((folder / "config.json").read_text())["seed"]
    assert Store(folder / "checkpoints").newest_meta()["identity"]["seed"] == seed
    with pytest.raises(KerasdistError, match=f"seed was {seed} and is {seed + 1}"):
        train(4, run_dir=folder, seed=seed + 1)


def test_a_run_without_a_checkpoint_keeps_its_seed_too(tmp_path):
    RunFolder(tmp_path / "run", {"kerasdist": "0", "seed": 123})
    fit(model := make_model(), (X, Y), shuffle=True, run_dir=tmp_path / "run")
    fit(expected := make_model(), (X, Y), shuffle=True, seed=123)
    assert_same_weights(model, expected, 0)


def test_a_model_that_is_a_function_follows_the_seed():
    def build():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    def weights(**options):
        return fit(build, (X, Y), **options).model.get_weights()[0].tolist()

    assert weights(seed=3) == weights(seed=3)
    keras.utils.set_random_seed(1)
    first, second = weights(), weights()
    assert first != second
    keras.utils.set_random_seed(1)
    assert weights() == first


def test_workers_take_the_seed_of_the_chief(tmp_path):
    class Placement:
        is_chief = False

        def of_chief(self, *values):
            return (42,)

    assert choose_seed(None, 7, Placement(), tmp_path) == 42
    assert choose_seed(5, 7, Placement(), tmp_path) == 5


def test_the_command_line_keeps_the_seed_0(tmp_path, command):
    run = tmp_path / "run"
    recipe = classifier_recipe.write(tmp_path / "small")
    assert command("fit", recipe, "--run-dir", run, "--quiet").code == 0
    assert Store(run / "checkpoints").newest_meta()["identity"]["seed"] == 0
