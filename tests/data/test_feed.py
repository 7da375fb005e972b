"""Passes: epochs of some steps, endless data, and data that is read once."""

import keras
import numpy as np

import kerasdist
from tests.data.every_form import BATCH, NUM, Batches, Provider, X, Y, generate, make_model, slices


def test_an_endless_dataset_trains_for_steps_per_epoch():
    model = make_model()
    data = slices(X, Y).repeat()
    history = kerasdist.fit(
        model, data, batch_size=BATCH, steps_per_epoch=3, epochs=2, shuffle=False, progress=False
    )
    assert int(model.optimizer.iterations) == 6
    means = [Y[:12].mean(), np.concatenate([Y[12:], Y[:1]]).mean()]
    np.testing.assert_allclose(history.history["mean_target"], means, atol=1e-5)


def test_an_endless_generator_trains_for_steps():
    def endless():
        while True:
            yield from generate()

    model = make_model()
    kerasdist.fit(model, endless, steps=14, progress=False)
    assert int(model.optimizer.iterations) == 14


def test_steps_per_epoch_goes_on_in_the_pass_of_the_last_epoch():
    model = make_model()
    history = kerasdist.fit(model, generate, steps_per_epoch=4, epochs=3, progress=False)
    parts = [Y[:16], Y[16:], Y[:16]]
    np.testing.assert_allclose(history.history["mean_target"], [p.mean() for p in parts], atol=1e-5)


def test_t12_a_one_shot_generator_of_ten_batches_trains_on_all_ten():
    given = []

    def ten():
        for i in range(10):
            given.append(i)
            yield np.full((2, 3), i, "float32"), np.full((2, 1), i, "float32")

    model = make_model()
    history = kerasdist.fit(model, ten(), progress=False)
    assert int(model.optimizer.iterations) == 10
    assert given == list(range(10))
    assert history.history["mean_target"] == [4.5]


def test_a_generator_function_is_called_once_an_epoch():
    calls = []

    def batches():
        calls.append(len(calls))
        yield from generate()

    kerasdist.fit(make_model(), batches, epochs=3, progress=False)
    assert calls == [0, 1, 2]


def test_a_py_dataset_is_told_of_each_epoch():
    class Told(Batches):
        def __init__(self):
            super().__init__()
            self.events = []

        def on_epoch_begin(self):
            self.events.append("begin")

        def on_epoch_end(self):
            self.events.append("end")

    data = Told()
    kerasdist.fit(make_model(), data, epochs=2, progress=False)
    assert data.events == ["end"] + ["begin", "end"] * 2  # The first one is Keras's habit.


def test_validation_reads_its_data_from_the_start_each_time():
    history = kerasdist.fit(
        make_model(),
        (X, Y),
        batch_size=NUM,
        epochs=3,
        validation_data=generate,
        validation_steps=2,
        progress=False,
    )
    means = [Y[:8].mean()] * 3
    np.testing.assert_allclose(history.history["val_mean_target"], means, atol=1e-5)


def validated(data, steps, fit=kerasdist.fit, **options):
    given = {"batch_size": NUM, "epochs": 3, "validation_data": data, "validation_steps": steps}
    return fit(make_model(), X, Y, verbose=0, **given, **options).history["val_mean_target"]


def test_what_cannot_be_read_again_goes_on_where_the_last_validation_ended():
    means = [Y[:12].mean(), Y[12:].mean(), Y[:12].mean()]
    np.testing.assert_allclose(validated(Provider(), 3), means, atol=1e-5)


def test_each_validation_on_a_generator_begins_with_its_first_two_batches_as_in_keras():
    endless = lambda: (batch for _ in range(100) for batch in generate())  # noqa: E731
    expected = validated(endless(), 2, fit=keras.Model.fit)
    np.testing.assert_allclose(validated(endless(), 2), expected, atol=1e-5)
    np.testing.assert_allclose(expected, [Y[:8].mean()] * 3, atol=1e-5)
    # Then it continues where the last validation ended. Keras loses what it has read ahead.
    ends = [Y[8:12], Y[12:16], Y[16:20]]
    means = [np.concatenate([Y[:8], end]).mean() for end in ends]
    for _ in range(3):
        np.testing.assert_allclose(validated(endless(), 3), means, atol=1e-5)
