"""`compile(steps_per_execution=...)`: Keras calls the hooks of batches once per so many steps."""

import keras
import pytest


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
    import kerasdist

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
