"""Stages of a training: frozen first and then unfrozen, as one run that can be killed anywhere."""

import functools
import json

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.devices.placement import place
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.options import (
    DataSource,
    ModelSource,
    RunOptions,
    Stage,
    StepOptions,
    TrainingOptions,
    WatchOptions,
)
from kerasdist.training.progress.reporter import Reporter
from kerasdist.training.session import train
from kerasdist.training.stages import seed_of_stage, stages_of

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 2)).astype("float32")


def build(dropout=0.0):
    """A frozen backbone with BatchNorm, and a head."""
    backbone = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
        ],
        name="backbone",
    )
    backbone.trainable = False
    x = keras.Input((6,))
    hidden = keras.layers.Dropout(dropout, seed=1)(backbone(x))
    model = keras.Model(x, keras.layers.Dense(2, name="head")(hidden))
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def unfreeze(model):
    model.get_layer("backbone").trainable = True
    model.get_layer("backbone").layers[-1].trainable = False  # The BatchNorm.
    model.compile(keras.optimizers.Adam(0.005), "mse", metrics=["mae"])


class Killed(Exception):
    pass


class Kill(keras.callbacks.Callback):
    """Ends the process, as far as this process can, after a number of steps or stages."""

    def __init__(self, steps=None, stages=None):
        super().__init__()
        self._left = {"steps": steps, "stages": stages}

    def _count(self, what):
        if self._left[what] is not None:
            self._left[what] -= 1
            if self._left[what] == 0:
                raise Killed

    def on_train_batch_end(self, batch, logs=None):
        self._count("steps")

    def on_train_end(self, logs=None):
        self._count("stages")


def run(
    folder=None,
    *,
    callbacks=(),
    stages=((2, unfreeze),),
    epochs=5,
    steps=None,
    devices=1,
    **options,
):
    """Four steps per epoch."""
    step = {"deterministic": True, "seed": 3, "shards": 2, **options}
    training = TrainingOptions(
        source=ModelSource.checked(build, None, None),
        data=DataSource.checked((X, Y), batch_size=8, shuffle=False),
        plan=Plan.checked(epochs=epochs, steps=steps, steps_per_epoch=None),
        step=StepOptions.checked(**step),
        keeping=RunOptions.checked(folder, save_every=3),
        watching=WatchOptions.checked(Reporter("silent"), run_dir=folder),
        callbacks=list(callbacks),
        stages=[Stage(*stage) for stage in stages],
    )
    return train(training, place(devices))


def weights(history):
    return history.model.get_weights()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "undisturbed")


def test_two_fits_do_what_they_do_in_keras():
    keras.utils.set_random_seed(3)
    model = build()
    reference = build()
    reference.set_weights(model.get_weights())
    on_two = functools.partial(kerasdist.fit, devices=2)
    for each, fit in ((reference, keras.Model.fit), (model, on_two)):
        fit(each, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        unfreeze(each)
        fit(each, X, Y, batch_size=8, epochs=5, initial_epoch=2, shuffle=False, verbose=0)
    for a, b in zip(reference.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_one_run_has_the_weights_of_two_fits(undisturbed):
    first = run(epochs=2, stages=())
    model = first.model
    frozen = [np.copy(w) for w in model.get_layer("backbone").get_weights()]
    unfreeze(model)
    options = {"deterministic": True, "shards": 2, "seed": seed_of_stage(3, 1), "verbose": 0}
    kerasdist.fit(model, X, Y, 8, 5, initial_epoch=2, shuffle=False, **options)
    for a, b in zip(weights(undisturbed), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    kernel, _, *norm = undisturbed.model.get_layer("backbone").get_weights()
    assert not np.array_equal(kernel, frozen[0])
    for a, b in zip(norm, frozen[2:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_is_one_run(undisturbed, tmp_path):
    assert undisturbed.epoch == [0, 1, 2, 3, 4]
    assert len(undisturbed.history["loss"]) == 5
    history = run(tmp_path / "run", callbacks=[keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    folder = tmp_path / "run"
    result = json.loads((folder / "result.json").read_text())
    assert (result["steps"], result["epochs"], result["examples_seen"]) == (20, 5, 160)
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in logged if line["kind"] == "epoch"] == [1, 2, 3, 4, 5]
    assert [line["learning_rate"] for line in logged] == [0.05, 0.05, 0.005, 0.005, 0.005]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 6
    for a, b in zip(weights(history), kerasdist.load(folder, "final").get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param({"steps": 2}, marks=pytest.mark.slow),  # Before the first checkpoint.
        {"steps": 5},
        pytest.param({"steps": 8}, marks=pytest.mark.slow),  # The last step of the first stage.
        {"stages": 1},  # Between the stages.
        {"steps": 9},  # The first step of the second stage, before it has a checkpoint.
        {"steps": 14},
        pytest.param({"stages": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_killed_run_ends_with_the_same_bits(undisturbed, tmp_path, kill):
    with pytest.raises(Killed):
        run(tmp_path / "run", callbacks=[Kill(**kill)])
    history = run(tmp_path / "run", callbacks=[Kill()])
    for a, b in zip(weights(undisturbed), weights(history), strict=True):
        np.testing.assert_array_equal(a, b)
    assert history.history == undisturbed.history
    assert history.epoch == undisturbed.epoch


def test_the_same_bits_on_two_devices(undisturbed):
    for a, b in zip(weights(undisturbed), weights(run(devices=2)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_epochs_continue_the_last_stage(tmp_path):
    run(tmp_path / "run", epochs=3)
    history = run(tmp_path / "run", epochs=5)
    assert history.epoch == [0, 1, 2, 3, 4]
    assert float(history.model.optimizer.learning_rate) == np.float32(0.005)
    assert int(history.model.optimizer.iterations) == 12


@pytest.mark.parametrize("first", [{"epochs": 1}, {"epochs": 2}, {"steps": 8}])
def test_a_run_that_ended_before_a_stage_goes_on(first, undisturbed, tmp_path):
    short = run(tmp_path / "run", **first)
    assert not short.model.get_layer("backbone").trainable
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "finished"
    history = run(tmp_path / "run")
    assert history.epoch == undisturbed.epoch
    for a, b in zip(weights(history), weights(undisturbed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_early_stopping_ends_a_stage_and_not_the_run():
    stop = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=100)
    history = run(callbacks=[stop])
    # Before Keras 3.15, the callback compares with the best value of an earlier `fit`, too.
    another = keras.callbacks.EarlyStopping("loss")
    another.best = 1.0
    another.on_train_begin()
    assert history.epoch == ([0, 1, 2, 3] if another.best is None else [0, 1, 2])
    assert history.model.get_layer("backbone").trainable


def test_dropout_differs_between_stages():
    assert seed_of_stage(3, 0) == 3
    assert len({seed_of_stage(3, stage) for stage in range(4)}) == 4


class RecipeWith:
    name = "mine"

    def __init__(self, stages):
        self._stages = stages

    def build_stages(self):
        return self._stages


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([3], r"Received \[3\] from `build_stages` of the recipe 'mine'"),
        ([(3, None)], r"stage \(3, None\)"),
        ([(0, unfreeze)], r"stage \(0, "),
        ([(2, unfreeze), (2, unfreeze)], r"more than for the stage before it"),
        ([(2.5, unfreeze)], r"stage \(2.5, "),
    ],
)
def test_wrong_stages_are_refused(stages, message):
    with pytest.raises(KerasdistError, match=message):
        stages_of(RecipeWith(stages))


def test_a_change_must_compile_the_model():
    with pytest.raises(KerasdistError, match=r"stage 2 did not compile the model again"):
        run(stages=[(1, lambda model: None)])
