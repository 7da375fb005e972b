"""The names of Keras's trainer that kerasdist uses: a test for each."""

import keras
import numpy as np
import pytest

from kerasdist.models import pure

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def make(kind=keras.Sequential):
    model = kind([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_every_kind_of_model_has_the_trainers_methods():
    inputs = keras.Input((2,))
    functional = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    for model in (make(), functional):
        for name, method in pure.methods().items():
            assert getattr(type(model), name) is method


def test_methods_are_replaced_for_models_that_exist():
    model, before = make(), pure.methods()
    try:
        pure.set_methods({"fit": lambda self, *args: (self, args)})
        assert model.fit(1, 2) == (model, (1, 2))
    finally:
        pure.set_methods(before)
    assert pure.methods() == before


def test_kerass_fit_tells_evaluate_that_it_validates():
    given = []

    class Own(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            given.append(kwargs)
            return super().evaluate(*args, **kwargs)

    make(Own).fit(X, Y, verbose=0, validation_data=(X, Y))
    assert [kwargs[pure.IN_FIT] for kwargs in given] == [True]


def test_a_model_that_is_not_compiled_is_refused():
    pure.check_compiled(make(), "fit")
    with pytest.raises(ValueError, match=r"compile.*"):
        pure.check_compiled(keras.Sequential(), "fit")


def test_class_weights_become_sample_weights():
    found = pure.class_weights(np.array([0, 2, 1]), {0: 1.0, 1: 5.0})
    assert np.asarray(found).tolist() == [1.0, 1.0, 5.0]


@pytest.mark.parametrize("verbose", [1, 2])
def test_lines_of_epochs_are_kerass(verbose, capsys):
    def printed(callback, batches):
        callback.set_model(make())
        callback.set_params({"verbose": verbose, "epochs": 2, "steps": 3})
        callback.on_train_begin()
        for epoch in range(2):
            callback.on_epoch_begin(epoch)
            for batch in range(3) if batches else ():
                callback.on_train_batch_end(batch, {"loss": 0.25})
            callback.on_epoch_end(epoch, {"loss": 0.25})
        return capsys.readouterr().out.rstrip()

    ours = printed(pure.EpochLines(verbose), batches=False)
    of_keras = printed(keras.callbacks.ProgbarLogger(), batches=True)
    for text in (ours, of_keras):
        assert text.startswith("Epoch 1/2\n")
        assert text.count("Epoch 2/2\n") == 1
        assert text.endswith(" - loss: 0.2500")
        assert "3/3" in text
    assert not pure.wants_batches(pure.EpochLines(verbose), "train")


def test_a_resumed_epoch_has_its_line(capsys):
    lines = pure.EpochLines(2)
    lines.set_model(make())
    lines.set_params({"verbose": 0, "epochs": 2, "steps": None})
    lines.on_train_begin()
    lines.on_epoch_end(1, {"loss": 0.25})
    shown = capsys.readouterr().out
    assert shown.startswith("Epoch 2/2\n")
    assert shown.endswith("loss: 0.2500\n")
