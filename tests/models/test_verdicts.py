"""What was found about a model is remembered until the model changes."""

import gc
import weakref

import keras
import pytest

import kerasdist
from kerasdist.errors import InexactLossError
from kerasdist.models.memory.kept import kept
from kerasdist.models.probing import probe
from tests.models.sharded_models import (
    LAYERS,
    State,
    Wrapped,
    X,
    Y,
    counted,
    fit,
    rmse,
)


@pytest.fixture
def evaluations(monkeypatch):
    """One entry for each time that the check evaluates a model."""
    made, original = [], probe.Probe._evaluate

    def evaluate(self, *args, **kwargs):
        made.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(probe.Probe, "_evaluate", evaluate)
    return made


def counting():
    loss = Wrapped(keras.losses.MeanSquaredError())
    model = keras.Sequential([State(counted, "float32"), LAYERS.Dense(3)])
    model.compile("sgd", loss)
    return model


def test_what_was_found_for_a_model_is_remembered(evaluations):
    model = counting()
    for turn in range(2):
        fit(model, validation_data=(X, Y))
        kerasdist.evaluate(model, (X, Y), batch_size=16, devices=2)
        kerasdist.predict(model, X, batch_size=16, devices=2)
        if turn == 0:
            assert evaluations
            evaluations.clear()
    assert not evaluations
    assert float(model.layers[0].value) == 8 * 37


CHANGES = {
    "compiled again": lambda model: model.compile("sgd", model.loss),
    "a layer's setting": lambda model: setattr(model.layers[0], "only_training", True),
    "the loss's setting": lambda model: setattr(model.loss, "reduction", "sum"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_checked_again(change, evaluations):
    model = counting()
    fit(model)
    evaluations.clear()
    CHANGES[change](model)
    fit(model)
    assert evaluations


def test_other_data_and_another_loss_are_checked_again(evaluations):
    model = counting()
    fit(model)
    evaluations.clear()
    fit(model, batch_size=8)
    assert evaluations
    model.compile("sgd", rmse)
    with pytest.raises(InexactLossError):
        fit(model, whole_batch_loss=False)


def test_a_remembered_model_is_not_kept_alive():
    model = counting()
    fit(model)
    assert kept(model)._things["verdicts"]
    known = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert known() is None


def test_what_a_model_tracks_is_compared_on_a_batch_that_shows_it():
    class Counting(LAYERS.Layer):
        def __init__(self):
            super().__init__()
            self.batches = keras.metrics.Sum(name="batches")

        def call(self, x):
            self.batches.update_state(1.0)
            return x

    model = keras.Sequential([Counting(), LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    seen = []
    for rows in (1, 16):  # One example does not show it.
        with kerasdist.enable(devices=2):
            model.layers[0].batches.reset_state()
            model.train_on_batch(X[:rows], Y[:rows])
        seen.append(float(model.layers[0].batches.result()))
    assert seen[1] == 1
