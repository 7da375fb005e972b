"""Every argument of Keras's `fit`, `evaluate` and `predict` has Keras's meaning, by its own words.

Keras itself is the reference, in float64.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.streams import open_stream
from kerasdist.errors import KerasArgumentError, KerasdistError
from kerasdist.training import keras_calls

NUM, CLASSES = 45, 3
DEVICES = pytest.mark.parametrize("devices", [1, 2])


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def data(num=NUM):
    random = np.random.default_rng(7)
    x = random.normal(size=(num, 4))
    return x, random.integers(0, CLASSES, num), random.uniform(0.2, 2.0, num)


X, Y, W = data()


def layer(units, seed, activation=None, name=None):
    start = keras.initializers.GlorotNormal(seed)
    return keras.layers.Dense(units, activation, kernel_initializer=start, name=name)


def make_model(optimizer=None, **options):
    model = keras.Sequential([keras.Input((4,)), layer(5, 1, "tanh"), layer(CLASSES, 2, "softmax")])
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer or keras.optimizers.Adam(0.02), loss, metrics=["accuracy"], **options)
    return model


def make_double():
    """Two inputs, two outputs."""
    inputs = [keras.Input((4,), name="a"), keras.Input((4,), name="b")]
    hidden = layer(5, 1, "tanh")(keras.layers.concatenate(inputs))
    outputs = [layer(1, 2, name="first")(hidden), layer(1, 3, name="second")(hidden)]
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.05), ["mse", "mae"], weighted_metrics=[["mae"], ["mse"]])
    return model


def assert_same(history, model, expected_history, expected):
    assert history.epoch == expected_history.epoch
    assert set(history.history) == set(expected_history.history)
    for name, values in expected_history.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=0, atol=1e-9)
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-9)
    if not expected.optimizer.built:  # Keras trained nothing.
        return
    own_state, other_state = (m.optimizer.variables for m in (model, expected))
    for own, other in zip(own_state, other_state, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=0, atol=1e-9)


def batches(size=10):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


class Batches(keras.utils.PyDataset):
    """Batches, which notes the calls of its hooks."""

    def __init__(self, size=10):
        super().__init__()
        self.size, self.calls = size, []

    def __len__(self):
        return -(-NUM // self.size)

    def __getitem__(self, i):
        rows = slice(i * self.size, (i + 1) * self.size)
        return X[rows], Y[rows]

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


FITS = {
    "x and y": lambda: {"x": X, "y": Y},
    "epochs": lambda: {"x": X, "y": Y, "batch_size": 8, "epochs": 3},
    "a batch size from steps": lambda: {"x": X, "y": Y, "steps_per_epoch": 4, "epochs": 2},
    "weights": lambda: {"x": X, "y": Y, "sample_weight": W, "epochs": 2},
    "classes": lambda: {"x": X, "y": Y, "class_weight": {0: 0.5, 2: 3.0}, "validation_split": 0.3},
    "float labels": lambda: {"x": X, "y": Y * 0.9999999, "class_weight": {0: 0.5, 2: 3.0}},
    "a split": lambda: {"x": X, "y": Y, "validation_split": 0.25, "epochs": 2},
    "a weighted split": lambda: {"x": X, "y": Y, "sample_weight": W, "validation_split": 0.25},
    "validation": lambda: {"x": X, "y": Y, "validation_data": (X[:13], Y[:13])},
    "weighted validation": lambda: {"x": X, "y": Y, "validation_data": (X, Y, W)},
    "a list as validation": lambda: {"x": X, "y": Y, "validation_data": [X, Y]},
    "data wins over a split": lambda: {
        "x": X,
        "y": Y,
        "validation_data": (X[:13], Y[:13]),
        "validation_split": 0.5,
    },
    "validation steps": lambda: {
        "x": X,
        "y": Y,
        "validation_data": (X, Y),
        "validation_steps": 2,
        "validation_batch_size": 7,
    },
    "a size from validation steps": lambda: {
        "x": batches(),
        "validation_data": (X, Y),
        "validation_steps": 4,
    },
    "frequency": lambda: {
        "x": X,
        "y": Y,
        "validation_data": (X, Y),
        "validation_freq": 2,
        "epochs": 5,
    },
    "frequencies": lambda: {
        "x": X,
        "y": Y,
        "validation_data": batches(),
        "validation_freq": [1, 4],
        "epochs": 5,
    },
    "a later epoch": lambda: {
        "x": X,
        "y": Y,
        "initial_epoch": 2,
        "epochs": 5,
        "validation_split": 0.3,
        "validation_freq": 2,
    },
    "nothing left": lambda: {"x": X, "y": Y, "initial_epoch": 3, "epochs": 2},
    "no epochs": lambda: {"x": X, "y": Y, "epochs": 0},
    "a dataset": lambda: {"x": batches(), "epochs": 2, "validation_data": batches(7)},
    "a size that a dataset ignores": lambda: {"x": batches(), "batch_size": 3},
    "a later epoch of a dataset": lambda: {"x": batches(), "epochs": 3, "initial_epoch": 1},
    "a PyDataset": lambda: {"x": Batches(), "validation_data": Batches(7)},
    "a later epoch of a PyDataset": lambda: {"x": Batches(), "epochs": 4, "initial_epoch": 2},
    # Without the steps, Keras counts one iteration more than it trains.
    "a generator": lambda: {"x": (batch for batch in batches()), "steps_per_epoch": 5},
    "a tensor": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "validation_split": 0.2},
}


@pytest.mark.parametrize("case", FITS)
def test_fit_does_what_keras_does(case):
    ours, theirs, model, expected = FITS[case](), FITS[case](), make_model(), make_model()
    reference = expected.fit(**theirs, shuffle=False, verbose=0)
    history = keras_calls.fit(model, **ours, shuffle=False, verbose=0, devices=2)
    assert_same(history, model, reference, expected)
    if isinstance(ours["x"], Batches):
        assert ours["x"].calls == theirs["x"].calls


PUBLIC = ["weights", "classes", "a weighted split", "validation steps", "a later epoch"]


@pytest.mark.parametrize("case", PUBLIC)
def test_the_public_fit_has_the_same_arguments(case):
    model, expected = make_model(), make_model()
    reference = expected.fit(**FITS[case](), shuffle=False, verbose=0)
    history = kerasdist.fit(model, **FITS[case](), shuffle=False, verbose=0)
    assert_same(history, model, reference, expected)


def test_arguments_come_by_position_as_in_keras():
    model, expected = make_model(), make_model()
    given = (X, Y, 8, 3, 0, None, 0.2, None, False, {0: 2.0}, None, 1, None, 1, 4, 2)
    reference, history = expected.fit(*given), kerasdist.fit(model, *given)
    assert_same(history, model, reference, expected)
    found = kerasdist.evaluate(model, X, Y, 8, 0, W, 3)
    assert found == pytest.approx(expected.evaluate(X, Y, 8, 0, W, 3, return_dict=True), abs=1e-9)
    np.testing.assert_allclose(
        kerasdist.predict(model, X, 8, 0, 2), expected.predict(X, 8, 0, 2), atol=1e-9
    )


@pytest.mark.parametrize("weights", [None, "one", "each"])
def test_several_inputs_and_targets_train_as_in_keras(weights):
    targets = [X[:, :1], X[:, 1:2]]
    given = {None: None, "one": W, "each": [W, W[::-1].copy()]}[weights]
    options = {
        "x": (X, X[::-1].copy()),
        "y": targets,
        "sample_weight": given,
        "batch_size": 8,
        "epochs": 2,
        "validation_split": 0.2,
        "shuffle": False,
        "verbose": 0,
    }
    model, expected = make_double(), make_double()
    reference = expected.fit(**options)
    history = keras_calls.fit(model, **options, devices=2)
    assert_same(history, model, reference, expected)
    tests = {"x": [X, X], "y": targets, "sample_weight": given, "verbose": 0}
    own, other = keras_calls.evaluate(model, **tests), expected.evaluate(**tests)
    np.testing.assert_allclose(own, other, rtol=0, atol=1e-9)


@DEVICES
def test_a_tuple_without_targets_is_several_inputs(devices):
    model, both = make_double(), (X, X[::-1].copy())
    own = keras_calls.predict(model, x=both, verbose=0, devices=devices)
    for found, expected in zip(own, model.predict(both, verbose=0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_a_tuple_for_the_public_fit_is_x_and_y():
    model, expected, old = make_model(), make_model(), make_model()
    expected.fit(X, Y, sample_weight=W, shuffle=False, verbose=0)
    kerasdist.fit(model, (X, Y), sample_weight=W, shuffle=False, verbose=0)
    kerasdist.fit(old, data=(X, Y, W), batch_size=32, shuffle=False, progress=False)
    for own, other, third in zip(
        model.get_weights(), expected.get_weights(), old.get_weights(), strict=True
    ):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-9)
        np.testing.assert_allclose(third, other, rtol=0, atol=1e-9)


@DEVICES
@pytest.mark.parametrize("metrics", [None, ["accuracy"]])
def test_evaluate_returns_what_keras_returns(devices, metrics):
    model = make_model()
    model.compile(loss="sparse_categorical_crossentropy", optimizer="sgd", metrics=metrics)
    for options in ({}, {"return_dict": True}, {"sample_weight": W}, {"steps": 3, "batch_size": 4}):
        own = keras_calls.evaluate(model, x=X, y=Y, verbose=0, devices=devices, **options)
        other = model.evaluate(X, Y, verbose=0, **options)
        assert type(own) is type(other)
        assert own == pytest.approx(other, abs=1e-9)


def test_evaluate_and_predict_print_one_line(capsys):
    model = make_model()
    keras_calls.evaluate(model, x=X, y=Y)
    line = capsys.readouterr().out
    assert line.startswith("2/2 - ")
    assert "accuracy: " in line
    assert line.count("\n") == 1
    keras_calls.predict(model, x=X, verbose=2)
    assert capsys.readouterr().out.startswith("2/2 - ")
    keras_calls.evaluate(model, x=X, y=Y, verbose=0)
    keras_calls.predict(model, x=X, verbose=0)
    kerasdist.evaluate(model, X, Y)
    assert capsys.readouterr().out == ""
    kerasdist.evaluate(model, X, Y, verbose=1)
    assert "loss: " in capsys.readouterr().out


def test_the_public_evaluate_always_returns_a_dict():
    with pytest.raises(KerasdistError, match=r"return_dict=False.*\['loss'\]"):
        kerasdist.evaluate(make_model(), X, Y, return_dict=False)


@pytest.mark.parametrize(
    ("verbose", "lines"), [(0, 0), (False, 0), (1, 2), (True, 2), ("auto", 2), (2, 2)]
)
def test_verbose_shows_what_keras_users_expect(verbose, lines, capsys):
    kerasdist.fit(make_model(), X, Y, epochs=2, verbose=verbose)
    assert capsys.readouterr().out.count("epoch") == lines


def test_progress_wins_over_verbose(capsys):
    kerasdist.fit(make_model(), X, Y, verbose=0, progress="json")
    assert '"event": "epoch"' in capsys.readouterr().out.replace('":"', '": "')
    kerasdist.fit(make_model(), X, Y, verbose=2, progress=False)
    assert capsys.readouterr().out == ""
    with pytest.raises(KerasdistError, match=r"verbose='loud'.*Expected 'auto', 0"):
        kerasdist.fit(make_model(), X, Y, verbose="loud")


def test_callbacks_see_verbose_as_in_keras():
    own, other = keras.callbacks.Callback(), keras.callbacks.Callback()
    kerasdist.fit(make_model(), X, Y, 10, 2, 2, [own])
    make_model().fit(X, Y, 10, 2, 2, [other])
    assert own.params == other.params


@pytest.mark.parametrize("options", [{"devices": 2}, {"devices": 4}, {"deterministic": True}])
def test_a_batch_can_be_smaller_than_the_number_of_devices(options):
    model, expected = make_model(), make_model()
    reference = expected.fit(X[:7], Y[:7], 1, 2, 0, validation_split=0.3, shuffle=False)
    history = kerasdist.fit(
        model, X[:7], Y[:7], 1, 2, 0, validation_split=0.3, shuffle=False, **options
    )
    assert_same(history, model, reference, expected)


# Shuffling


def test_shuffle_batch_shuffles_within_batches():
    x = np.arange(11.0)[:, None]
    stream = open_stream(x, batch_size=4, shuffle="batch", seed=3)
    orders = [
        [[int(row) for row in batch[:, 0]] for batch in stream.open(epoch, 0)] for epoch in (0, 1)
    ]
    for order in orders:
        assert [sorted(batch) for batch in order] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert orders[0] != orders[1]
    kerasdist.fit(make_model(), X, Y, 4, shuffle="batch", verbose=0)
    with pytest.raises(KerasdistError, match=r"shuffle='batch'.*Expected arrays"):
        kerasdist.fit(make_model(), batches().unbatch(), batch_size=4, shuffle="batch")


# A second fit


def optimizers():
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 30)
    return {
        "adam": lambda: keras.optimizers.Adam(0.02),
        "schedule": lambda: keras.optimizers.SGD(schedule, momentum=0.9),
        "ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8),
    }


@DEVICES
@pytest.mark.parametrize("name", ["adam", "schedule", "ema"])
def test_a_second_fit_continues_as_in_keras(devices, name):
    make = optimizers()[name]
    model, expected = make_model(make()), make_model(make())
    fits = [
        {"x": X, "y": Y, "batch_size": 8, "epochs": 2},
        {"x": X[:20], "y": Y[:20], "batch_size": 6, "epochs": 1, "validation_data": (X, Y)},
        {"x": batches(), "epochs": 3, "initial_epoch": 1},
        {"x": X, "y": Y, "sample_weight": W, "validation_split": 0.4, "epochs": 2},
    ]
    for options in fits:
        reference = expected.fit(**options, shuffle=False, verbose=0)
        history = kerasdist.fit(model, **options, shuffle=False, verbose=0, devices=devices)
        assert_same(history, model, reference, expected)
        assert model.history is history
        assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)
    own, other = kerasdist.evaluate(model, X, Y), expected.evaluate(X, Y, verbose=0)
    assert list(own.values()) == pytest.approx(other, abs=1e-9)


def test_fits_of_both_follow_each_other():
    model, expected = make_model(), make_model()
    for i in range(4):
        expected.fit(X, Y, shuffle=False, verbose=0)
        if i % 2:
            model.fit(X, Y, shuffle=False, verbose=0)
        else:
            kerasdist.fit(model, X, Y, shuffle=False, verbose=0, devices=2)
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-9)


# Runs


def test_a_run_knows_the_arguments_that_change_it(tmp_path):
    options = {"epochs": 2, "batch_size": 8, "verbose": 0, "run_dir": tmp_path / "run", "seed": 1}
    chosen = {"class_weight": {0: 2.0, 1: 1.0}, "initial_epoch": 1}
    kerasdist.fit(make_model(), X, Y, **options, **chosen)
    again = dict(options, epochs=4)
    history = kerasdist.fit(make_model(), X, Y, **again, **chosen)
    assert history.epoch == [1, 2, 3]
    whole = kerasdist.fit(make_model(), X, Y, **dict(again, run_dir=tmp_path / "whole"), **chosen)
    np.testing.assert_allclose(history.history["loss"], whole.history["loss"], atol=1e-9)
    for other in (
        dict(chosen, class_weight={0: 3.0, 1: 1.0}),
        dict(chosen, initial_epoch=0),
        {"initial_epoch": 1},
        {"initial_epoch": 1, "sample_weight": W},
        dict(chosen, validation_split=0.2),
    ):
        with pytest.raises(KerasdistError, match="saved with other settings"):
            kerasdist.fit(make_model(), X, Y, **again, **other)


def test_the_best_model_of_a_run_is_one_that_was_validated(tmp_path):
    history = kerasdist.fit(
        make_model(),
        X,
        Y,
        epochs=5,
        validation_split=0.3,
        validation_freq=2,
        verbose=0,
        run_dir=tmp_path / "run",
    )
    values = history.history["val_loss"]
    assert len(values) == 2
    best = kerasdist.load(tmp_path / "run", which="best")
    border = int(NUM * 0.7)
    found = best.evaluate(X[border:], Y[border:], verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(min(values), abs=1e-9)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["batch_size"] == 32
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [("val_loss" in json.loads(line)) for line in lines] == [False, True, False, True, False]


# Refusals that Keras has, too


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"x": batches, "y": Y}, "a generator function as `x`"),
        ({"x": Batches(), "y": Y}, "PyDataset"),
        ({"x": Batches(), "sample_weight": W}, "the sample weights as part of the data"),
        ({"x": X, "y": Y, "validation_split": 0.999}, "45 examples and `validation_split=0.999`"),
        ({"x": X, "y": Y, "validation_split": 1.5}, "below 1"),
        ({"x": Batches(), "validation_split": 0.2}, "only these can be split"),
        ({"x": X, "y": Y, "validation_data": (X, Y, W, W)}, "`validation_data` with 4 items"),
    ],
)
def test_what_keras_refuses_is_refused_as_a_value_error(options, named):
    with pytest.raises(KerasArgumentError, match=named) as caught:
        keras_calls.fit(make_model(), **options, verbose=0)
    assert isinstance(caught.value, ValueError)


def test_a_dataset_has_its_own_targets():
    with pytest.raises(KerasArgumentError, match=r"`tf.data.Dataset`.*Leave `y` out"):
        kerasdist.fit(make_model(), batches(), Y)
    with pytest.raises(KerasArgumentError, match=r"Did you mean `epochs=10`\?"):
        kerasdist.fit(make_model(), batches(), 10)
    with pytest.raises(KerasArgumentError, match=r"Did you mean `validation_data`\?"):
        kerasdist.fit(make_model(), batches(), batches())


def test_weights_of_two_kinds_are_refused():
    for fit in (kerasdist.fit, keras_calls.fit):
        with pytest.raises(KerasdistError, match="`class_weight` and `sample_weight`"):
            fit(make_model(), x=X, y=Y, class_weight={0: 2.0}, sample_weight=W)


def test_class_weights_need_a_single_target():
    with pytest.raises(KerasdistError, match="several targets"):
        kerasdist.fit(make_double(), [X, X], [X[:, :1], X[:, :1]], class_weight={0: 2.0})


def test_weights_must_have_the_structure_of_the_targets():
    targets = [X[:, :1], X[:, :1]]
    with pytest.raises(KerasdistError, match="another structure than `y`"):
        kerasdist.fit(make_double(), [X, X], targets, sample_weight=[W])
    with pytest.raises(KerasdistError, match="one number per example"):
        kerasdist.fit(make_double(), [X, X], targets, sample_weight=X)
