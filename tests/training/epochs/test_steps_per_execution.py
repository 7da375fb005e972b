"""`compile(steps_per_execution=...)`: Keras calls the hooks of batches once per so many steps."""

import keras
import numpy as np
import pytest

import kerasdist


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("train begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("train end", batch, pytest.approx(logs["loss"], rel=1e-5)))

    def on_test_batch_begin(self, batch, logs=None):
        self.calls.append(("test begin", batch))

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append(("test end", batch, pytest.approx(logs["loss"], rel=1e-5)))


@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_hooks_are_called_as_by_keras(regression, steps):
    x, y = regression
    seen = []
    for fit in (keras.Model.fit, kerasdist.fit):
        layer = keras.layers.Dense(2, kernel_initializer="ones")
        model = keras.Sequential([layer])
        model.compile("sgd", "mse", steps_per_execution=steps)
        batches = Batches()
        options = {} if fit is keras.Model.fit else {"devices": 2}
        fit(
            model,
            x,
            y,
            batch_size=5,
            epochs=2,
            shuffle=False,
            verbose=0,
            validation_data=(x, y),
            callbacks=[batches],
            **options,
        )
        seen.append([(*call[:2], *(v.expected for v in call[2:])) for call in batches.calls])
    by_keras, ours = seen
    assert [call[:2] for call in ours] == [call[:2] for call in by_keras]
    for call, expected in zip(ours, by_keras, strict=True):
        assert call[2:] == pytest.approx(expected[2:], rel=1e-5)


class Predictions(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls, self.outputs = [], []

    def on_predict_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_predict_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))
        self.outputs.append(np.asarray(logs["outputs"]))


@pytest.mark.parametrize(("steps", "limit"), [(1, None), (3, None), (3, 6), (20, None)])
def test_hooks_of_predictions_are_called_as_by_keras(regression, steps, limit):
    x, _ = regression
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse", steps_per_execution=steps)
    by_keras, ours = Predictions(), Predictions()
    options = {"batch_size": 5, "steps": limit, "verbose": 0}
    expected = model.predict(x, callbacks=[by_keras], **options)
    found = kerasdist.predict(model, x, callbacks=[ours], devices=2, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert ours.calls == by_keras.calls
    for one, another in zip(ours.outputs, by_keras.outputs, strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-6)
