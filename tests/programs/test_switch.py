"""`enable` and `disable`: which methods a model has, and whose they are."""

import inspect
import traceback
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models import pure
from kerasdist.programs import program
from kerasdist.training import keras_calls
from kerasdist.training.keras_arguments import verbosity
from kerasdist.training.progress import reporter

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5]], "float32")


def make():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.fixture
def calls(monkeypatch):
    """The devices of each `fit` that went through kerasdist."""
    found = []
    fit = keras_calls.fit

    def spy(model, **given):
        found.append(given["devices"])
        return fit(model, **given)

    monkeypatch.setattr(keras_calls, "fit", spy)
    return found


def test_disable_puts_exactly_kerass_methods_back():
    before = pure.methods()
    kerasdist.enable(devices=1)
    assert all(now is not before[name] for name, now in pure.methods().items())
    kerasdist.disable()
    assert all(now is before[name] for name, now in pure.methods().items())
    kerasdist.disable()
    assert pure.methods() == before


def test_the_methods_keep_kerass_signatures_and_docstrings():
    before = {
        name: (inspect.signature(method), method.__doc__) for name, method in pure.methods().items()
    }
    with kerasdist.enable(devices=1):
        for name in pure.METHODS:
            method = getattr(keras.Model, name)
            assert (inspect.signature(method), method.__doc__) == before[name]


def test_blocks_can_be_nested(calls):
    model = make()  # Made before.
    with kerasdist.enable(devices=2):
        model.fit(X, Y, verbose=0)
        with kerasdist.enable(devices=1):
            model.fit(X, Y, verbose=0)
        model.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)
    assert calls == [2, 1, 2]


def test_an_error_in_a_block_ends_it():
    before = pure.methods()
    with pytest.raises(RuntimeError), kerasdist.enable(devices=2):
        raise RuntimeError
    assert pure.methods() == before


def test_a_second_call_replaces_the_options(calls):
    model = make()
    kerasdist.enable(devices=2)
    kerasdist.enable(devices=1)
    model.fit(X, Y, verbose=0)
    kerasdist.disable()
    model.fit(X, Y, verbose=0)
    assert calls == [1]


@pytest.mark.parametrize("devices", [1, 2])
def test_results_are_those_of_keras(devices):
    def program():
        model = make()
        history = model.fit(X, Y, 8, 3, shuffle=False, verbose=0, validation_split=0.2)
        evaluated = model.evaluate(X, Y, verbose=0)
        as_dict = model.evaluate(X, Y, batch_size=7, verbose=0, return_dict=True)
        return history, evaluated, as_dict, model.predict(X, verbose=0), model.get_weights()

    of_keras = program()
    with kerasdist.enable(devices=devices):
        ours = program()
    assert ours[0].params == of_keras[0].params
    assert ours[0].epoch == of_keras[0].epoch
    assert set(ours[0].history) == set(of_keras[0].history)
    for name, values in of_keras[0].history.items():
        np.testing.assert_allclose(ours[0].history[name], values, rtol=1e-5)
    assert isinstance(ours[1], float)
    np.testing.assert_allclose(ours[1], of_keras[1], rtol=1e-5)
    assert ours[2] == pytest.approx(of_keras[2], rel=1e-5)
    for mine, other in zip([ours[3], *ours[4]], [of_keras[3], *of_keras[4]], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_a_models_own_fit_ends_in_kerasdist(calls):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.fits = 0

        def call(self, x):
            return self.dense(x)

        def fit(self, *args, **kwargs):
            self.fits += 1
            return super().fit(*args, **kwargs)

    model = Own()
    model.compile("sgd", "mse")
    with kerasdist.enable(devices=2):
        history = model.fit(X, Y, epochs=2, verbose=0)
    assert (model.fits, calls, history.epoch) == (1, [2], [0, 1])
    with pytest.raises(KerasdistError, match="overrides `fit`"):
        kerasdist.fit(model, (X, Y), verbose=0)


def test_a_model_that_is_not_compiled_gets_kerass_error():
    model = keras.Sequential([keras.layers.Dense(1)])
    with kerasdist.enable(devices=1):
        for call in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
            with pytest.raises(ValueError, match="compile"):
                call(X, Y)


def test_an_unknown_argument_is_a_type_error():
    with kerasdist.enable(devices=1):
        with pytest.raises(TypeError, match=r"Sequential.fit\(\) .*'epoch'"):
            make().fit(X, Y, epoch=3)
        with pytest.raises(ValueError, match="not recognized"):
            make().evaluate(X, Y, epoch=3)


def test_what_fit_prints_is_what_keras_prints(capsys):
    def lines():
        make().fit(X, Y, epochs=2, verbose=2)
        return [line.split(" - ")[0] for line in capsys.readouterr().out.splitlines()]

    of_keras = lines()
    with kerasdist.enable(devices=2):
        assert lines() == of_keras == ["Epoch 1/2", "2/2", "Epoch 2/2", "2/2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "shards=0"),
        ({"on_nan": "no"}, "on_nan='no'"),
        ({"clip_norm": -1}, "clip_norm=-1"),
        ({"save_every": "often"}, "save_every"),
        ({"jit": "perhaps"}, "jit='perhaps'"),
        ({"run_dir": True}, "`run_dir=True`. Expected the path of a folder"),
        ({"device": 2}, "`kerasdist.enable` has no argument `device`. Did you mean 'devices'"),
        ({"rundir": "runs"}, "Did you mean 'run_dir'"),
        ({"batch_size": 8}, "Expected one of devices, run_dir, "),
    ],
)
def test_a_wrong_option_is_refused_at_once(options, message):
    before = pure.methods()
    with pytest.raises(KerasdistError, match=message):
        kerasdist.enable(**options)
    assert pure.methods() == before


def test_batch_normalization_is_told_once(capsys):
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kerasdist.enable(devices=2):
        model.fit(X, Y, verbose=0)
        model.fit(X, Y, verbose=0)
    captured = capsys.readouterr()
    assert captured.err.count("--sync-batch-norm") == 1
    assert captured.out == ""


class Contrastive(keras.Model):
    """Cannot be cut: each example is compared with all others."""

    def train_step(self, data):
        x, y = data
        y = keras.ops.matmul(y, keras.ops.transpose(y))
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            near = keras.ops.log_softmax(keras.ops.matmul(outputs, keras.ops.transpose(outputs)))
            loss = -keras.ops.mean(keras.ops.sum(near * y, 1))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"contrastive": loss}


@pytest.mark.parametrize("verbose", [0, 2, "auto"])
def test_a_fall_back_to_one_device_is_told_once_on_stderr(verbose, capsys):
    inputs = keras.Input((3,))
    model = Contrastive(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd")
    with kerasdist.enable(devices=2):
        for _ in range(2):
            model.fit(X, Y, verbose=verbose)
    captured = capsys.readouterr()
    assert captured.err.count("kerasdist: 'Contrastive' trains on one device (CPU:0)") == 1
    assert "one device" not in captured.out


def test_a_display_does_not_repeat_the_note(capsys, monkeypatch):
    monkeypatch.setattr(reporter, "mode_of", lambda progress: "live")
    monkeypatch.setattr(program, "mode_of", lambda progress: "live")
    monkeypatch.setattr(verbosity, "mode_of", lambda progress: "live", raising=False)
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kerasdist.enable(devices=2):
        model.fit(X, Y)
        model.fit(X, Y)
    captured = capsys.readouterr()
    assert captured.err.count("--sync-batch-norm") == 1
    assert "sync-batch-norm" not in captured.out


def test_an_error_shows_the_callers_frames_only():
    with kerasdist.enable(devices=2), pytest.raises(KerasdistError) as caught:
        make().fit(X, np.ones((len(X), 7)), verbose=0)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {Path(frame.filename).name for frame in frames} == {"test_switch.py"}


def test_this_process_is_the_chief(monkeypatch):
    assert kerasdist.is_chief()
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", config)
    assert not kerasdist.is_chief()
