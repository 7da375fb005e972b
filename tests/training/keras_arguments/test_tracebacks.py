"""Errors show the caller's code, and kerasdist's and Keras's own frames only if asked."""

import traceback

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.training.epochs.loop import Loop

X, Y = np.ones((20, 4), "float32"), np.ones((20, 5), "float32")


def compiled(loss):
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", loss)
    return model


def of_user(y, outputs):
    raise ValueError("not today")


class Failing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ZeroDivisionError


def files(error):
    """The files of the frames of an error and of its causes."""
    found = []
    while error is not None:
        found += [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        error = error.__cause__
    return found


def failed(error, *args, **options):
    with pytest.raises(error) as caught:
        kerasdist.fit(*args, verbose=0, **options)
    return caught.value


@pytest.fixture
def unfiltered():
    keras.config.disable_traceback_filtering()
    yield
    keras.config.enable_traceback_filtering()


def test_an_error_of_kerasdist_is_short_and_keeps_its_cause():
    error = failed(KerasdistError, compiled("mse"), X, Y)
    assert isinstance(error.__cause__, ValueError)
    assert {file.rpartition("/")[2] for file in files(error)} == {"test_tracebacks.py"}
    assert len("".join(traceback.format_exception(error)).splitlines()) < 25


def test_all_frames_are_shown_where_keras_shows_its_own(unfiltered):
    error = failed(KerasdistError, compiled("mse"), X, Y)
    assert any("kerasdist/models/inspection.py" in file for file in files(error))


def test_an_error_in_the_callers_loss_shows_that_loss():
    error = failed(KerasdistError, compiled(of_user), X, Y)
    names = [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
    assert names == ["of_user"]


def test_an_error_in_a_callback_shows_the_callback():
    error = failed(ZeroDivisionError, compiled("mse"), X, X[:, :3], callbacks=[Failing()])
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names == ["failed", "on_epoch_end"]


def test_an_error_inside_kerasdist_keeps_its_frames(monkeypatch):
    """It is a bug, and they say where."""
    monkeypatch.setattr(Loop, "begin", None)
    error = failed(TypeError, compiled("mse"), X, X[:, :3])
    assert any(file.endswith("training/session.py") for file in files(error))
