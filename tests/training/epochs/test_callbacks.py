"""Keras callbacks through `kerasdist.fit` do what they document, on one device and two."""

import csv
import json

import keras
import numpy as np
import pytest

import kerasdist

HOOKS = (
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)
BATCH_SIZE = 8
both = pytest.mark.parametrize("devices", [1, 2])


def linear_model(rate=0.1):
    """One dense layer from zeros, so that NumPy can follow."""
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(2, kernel_initializer="zeros", use_bias=False)]
    )
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    return model


def numpy_sgd(data, rates):
    """The kernel after one pass for each rate; a rate may be a function of the batch's number."""
    x, y = (array.astype("float64") for array in data)
    kernel = np.zeros((5, 2))
    for rate in rates:
        for number, start in enumerate(range(0, len(x), BATCH_SIZE)):
            rows = slice(start, start + BATCH_SIZE)
            gradient = 2 * x[rows].T @ (x[rows] @ kernel - y[rows]) / y[rows].size
            kernel = kernel - (rate(number) if callable(rate) else rate) * gradient
    return kernel


def fit(model, data, callbacks, **options):
    options = {"batch_size": BATCH_SIZE, "shuffle": False, "progress": False} | options
    return kerasdist.fit(model, data, callbacks=callbacks, **options)


class Recorder(keras.callbacks.Callback):
    """Every call of every hook."""

    def __init__(self):
        super().__init__()
        self.calls = []


def _record(name):
    def hook(self, *arguments):
        *index, logs = arguments
        self.calls.append((name, *index, dict(logs or {})))

    # One argument for train and test, two for the others.
    if name.startswith(("on_train_b", "on_test_b", "on_epoch")) and not name.endswith(
        ("train_begin", "test_begin")
    ):
        return lambda self, index, logs=None: hook(self, index, logs)
    return lambda self, logs=None: hook(self, logs)


for _name in HOOKS:
    setattr(Recorder, _name, _record(_name))


def test_history_is_that_of_kerass_own_fit(regression):
    ours, theirs = linear_model(), linear_model()
    history = fit(ours, regression, [], epochs=3, validation_data=regression)
    expected = theirs.fit(
        *regression,
        batch_size=BATCH_SIZE,
        shuffle=False,
        epochs=3,
        validation_data=regression,
        validation_batch_size=BATCH_SIZE,
        verbose=0,
    )
    assert list(history.history) == list(expected.history)
    assert history.epoch == expected.epoch == [0, 1, 2]
    for name, values in expected.history.items():
        assert history.history[name] == pytest.approx(values, rel=1e-5)
        assert all(type(value) is float for value in history.history[name])
    assert ours.history is history
    assert history.params == expected.params
    np.testing.assert_allclose(ours.get_weights()[0], theirs.get_weights()[0], rtol=1e-5)


@both
def test_hooks_come_in_kerass_order_with_kerass_logs(regression, devices):
    ours, theirs = Recorder(), Recorder()
    fit(linear_model(), regression, [ours], epochs=2, validation_data=regression, devices=devices)
    model = linear_model()
    model.fit(
        *regression,
        batch_size=BATCH_SIZE,
        shuffle=False,
        epochs=2,
        validation_data=regression,
        validation_batch_size=BATCH_SIZE,
        verbose=0,
        callbacks=[theirs],
    )
    assert [call[:-1] for call in ours.calls] == [call[:-1] for call in theirs.calls]
    assert len(ours.calls) == 2 + 2 * (2 + 2 * 5 + 2 + 2 * 5)
    for own, other in zip(ours.calls, theirs.calls, strict=True):
        assert own[-1] == pytest.approx(other[-1], rel=1e-4), own


def test_batch_hooks_of_a_lambda_callback_are_called_for_every_batch(regression):
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((batch, sorted(logs)))
    )
    fit(linear_model(), regression, [callback], steps=7)
    names = ["loss", "mae"]
    assert seen == [(i, names) for i in range(5)] + [(i, names) for i in range(2)]


def test_a_batch_is_begun_once_where_one_pass_ends_and_the_next_begins(regression):
    x, y = regression

    def batches():
        for start in range(0, 24, BATCH_SIZE):
            yield x[start : start + BATCH_SIZE], y[start : start + BATCH_SIZE]

    seen = Recorder()
    fit(linear_model(), batches, [seen], steps_per_epoch=3, epochs=2, batch_size=None)
    batch = [call[:2] for call in seen.calls if "batch" in call[0]]
    names = ("on_train_batch_begin", "on_train_batch_end")
    assert batch == [(name, i) for i in range(3) for name in names] * 2


@both
def test_early_stopping_stops_and_restores_the_best_weights(regression, devices, tmp_path):
    # Nothing gets better by 100: the first epoch is the best, and two more are waited for.
    stop = keras.callbacks.EarlyStopping(
        "loss", min_delta=100, patience=2, restore_best_weights=True
    )
    weights = []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(model.get_weights()[0])
    )
    model = linear_model()
    history = fit(
        model, regression, [keep, stop], epochs=9, devices=devices, run_dir=tmp_path / "run"
    )
    assert history.epoch == [0, 1, 2]
    assert stop.stopped_epoch == 2
    assert np.abs(weights[0] - weights[2]).max() > 1e-3
    np.testing.assert_array_equal(model.get_weights()[0], weights[0])
    saved = keras.models.load_model(tmp_path / "run" / "final.keras")
    np.testing.assert_array_equal(saved.get_weights()[0], weights[0])
    # The next training starts from there, and is not stopped by the last one's word.
    history = fit(model, regression, [], epochs=2, devices=devices)
    assert history.epoch == [0, 1]
    np.testing.assert_allclose(model.get_weights()[0], weights[2], rtol=1e-5)


@both
def test_model_checkpoint_saves_the_weights_of_its_epoch(regression, devices, tmp_path):
    weights = []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(model.get_weights()[0])
    )
    save = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}-{loss:.3f}.keras")
    model = linear_model()
    history = fit(model, regression, [save, keep], epochs=2, devices=devices)
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == [
        f"{i + 1}-{loss:.3f}.keras" for i, loss in enumerate(history.history["loss"])
    ]
    for epoch, file in enumerate(files):
        loaded = keras.models.load_model(file)
        np.testing.assert_array_equal(loaded.get_weights()[0], weights[epoch])
        kernel = numpy_sgd(regression, [0.1] * (epoch + 1))
        np.testing.assert_allclose(weights[epoch], kernel, rtol=1e-4, atol=1e-6)


def test_model_checkpoint_counts_batches(regression, tmp_path):
    save = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}-{batch}.weights.h5", save_freq=2, save_weights_only=True
    )
    fit(linear_model(), regression, [save], steps=7)
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "1-2.weights.h5",
        "1-4.weights.h5",
        "2-1.weights.h5",
    ]


def test_model_checkpoint_keeps_the_best(regression, tmp_path):
    path = tmp_path / "best.keras"
    save = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    bad = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: epoch == 1 and model.set_weights([np.full((5, 2), 9.0)])
    )
    model = linear_model()
    history = fit(model, regression, [bad, save], epochs=2, validation_data=regression)
    assert history.history["val_loss"][1] > history.history["val_loss"][0]
    found = kerasdist.evaluate(keras.models.load_model(path), regression)
    assert found["loss"] == pytest.approx(history.history["val_loss"][0], rel=1e-5)


@both
def test_a_learning_rate_scheduler_reaches_every_replica(regression, devices):
    model = linear_model(rate=1.0)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.3 / (epoch + 1))
    history = fit(model, regression, [schedule], epochs=3, devices=devices)
    rates = [0.3, 0.15, 0.1]
    assert history.history["learning_rate"] == pytest.approx(rates)
    np.testing.assert_allclose(
        model.get_weights()[0], numpy_sgd(regression, rates), rtol=1e-4, atol=1e-6
    )


@both
def test_a_learning_rate_that_changes_every_batch_reaches_every_replica(regression, devices):
    model = linear_model(rate=1.0)

    class Warmup(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.02 * (batch + 1)

    fit(model, regression, [Warmup()], epochs=2, devices=devices)
    expected = numpy_sgd(regression, [lambda batch: 0.02 * (batch + 1)] * 2)
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-4, atol=1e-6)


@both
def test_reduce_lr_on_plateau_lowers_the_learning_rate(regression, devices):
    model = linear_model(rate=0.2)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9)
    history = fit(model, regression, [plateau], epochs=4, devices=devices)
    # Each epoch after the first is no better by a billion. The log has the rate before the change.
    rates = [0.2, 0.2, 0.1, 0.05]
    assert history.history["learning_rate"] == pytest.approx(rates)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.025)
    np.testing.assert_allclose(
        model.get_weights()[0], numpy_sgd(regression, rates), rtol=1e-4, atol=1e-6
    )


def test_csv_logger_writes_a_row_each_epoch(regression, tmp_path):
    history = fit(
        linear_model(),
        regression,
        [keras.callbacks.CSVLogger(tmp_path / "log.csv")],
        epochs=3,
        validation_data=regression,
    )
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    for name, values in history.history.items():
        assert [float(row[name]) for row in rows] == pytest.approx(values)


@both
def test_terminate_on_nan_stops_without_an_exception(regression, devices):
    model = linear_model(rate=1e30)
    seen = Recorder()
    history = fit(
        model, regression, [keras.callbacks.TerminateOnNaN(), seen], epochs=5, devices=devices
    )
    assert len(history.epoch) == 1
    assert model.stop_training
    assert np.isfinite(model.get_weights()[0]).all()
    assert seen.calls[-1][0] == "on_train_end"
    # As in Keras, history and callbacks show why the training ended.
    assert not np.isfinite(history.history["loss"][0])
    ends = [call for call in seen.calls if call[0] == "on_train_batch_end"]
    begins = [call for call in seen.calls if call[0] == "on_train_batch_begin"]
    assert len(ends) == len(begins)
    assert [np.isfinite(call[2]["loss"]) for call in ends] == [True] * (len(ends) - 1) + [False]


@pytest.mark.parametrize("restores", [True, False])
def test_the_screen_says_that_weights_were_restored(regression, tmp_path, capsys, restores):
    stop = keras.callbacks.EarlyStopping(
        "loss", min_delta=100, patience=2, restore_best_weights=restores
    )
    options = {"epochs": 5, "run_dir": tmp_path, "progress": "lines"}
    fit(linear_model(), regression, [stop], **options)
    out = capsys.readouterr().out
    assert ("\nlast epoch  loss = " in out) == restores
    assert ("the weights of epoch 1, which EarlyStopping restored\n" in out) == restores
    assert ("final     loss = " in out) != restores


@both
def test_a_metric_with_a_number_per_class_is_logged_as_by_keras(regression, devices):
    x, y = regression
    y = (y > 0).astype("float32")

    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.logs = logs

    def trained(fit, num_classes, **options):
        model = keras.Sequential([keras.layers.Dense(num_classes, kernel_initializer="ones")])
        model.compile("sgd", "mse", metrics=[keras.metrics.F1Score(threshold=0.5, name="f1")])
        logs = Logs()
        stop = keras.callbacks.EarlyStopping("f1", patience=5)
        callbacks = [logs, stop] if num_classes == 1 else [logs]
        options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0} | options
        return fit(model, x, y[:, :num_classes], callbacks=callbacks, **options), logs.logs

    for num_classes in (1, 2):
        expected, of_keras = trained(keras.Model.fit, num_classes)
        history, logs = trained(kerasdist.fit, num_classes, devices=devices)
        assert type(logs["f1"]) is type(of_keras["f1"])
        assert logs["f1"].shape == of_keras["f1"].shape
        np.testing.assert_allclose(history.history["f1"], expected.history["f1"], rtol=1e-5)


def test_a_resumed_run_keeps_numbers_per_class(regression, tmp_path):
    def trained(epochs, run_dir):
        keras.utils.set_random_seed(5)
        x, y = regression
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[keras.metrics.F1Score(threshold=0.5, name="f1")])
        best = keras.callbacks.EarlyStopping("f1", patience=9, restore_best_weights=True)
        data = (x, (y[:, :1] > 0).astype("float32"))
        history = fit(model, data, [best], epochs=epochs, run_dir=run_dir, seed=1)
        return history.history["f1"], best.best

    expected = trained(4, tmp_path / "whole")
    trained(2, tmp_path / "parts")
    found = trained(4, tmp_path / "parts")
    assert found == expected
    assert all(isinstance(value, np.ndarray) and value.dtype == "float32" for value in found[0])


def test_without_terminate_on_nan_a_loss_that_is_not_finite_raises(regression):
    model = linear_model(rate=1e30)
    with pytest.raises(kerasdist.DivergedError, match="not finite"):
        fit(model, regression, [], epochs=5)
    assert np.isfinite(model.get_weights()[0]).all()


@both
def test_weights_that_a_callback_sets_are_trained_on(regression, devices):
    model = linear_model()
    reset = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: model.set_weights([np.zeros((5, 2))])
    )
    history = fit(model, regression, [reset], epochs=3, devices=devices)
    np.testing.assert_allclose(
        model.get_weights()[0], numpy_sgd(regression, [0.1]), rtol=1e-4, atol=1e-6
    )
    assert history.history["loss"] == pytest.approx([history.history["loss"][0]] * 3, rel=1e-5)


@both
def test_a_callback_that_stops_ends_the_training_after_its_batch(regression, devices):
    model = linear_model()
    seen = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            self.model.stop_training = batch == 2

    history = fit(model, regression, [Stop()], epochs=3, devices=devices)
    assert seen == [0, 1, 2]
    assert history.epoch == [0]
    first = tuple(array[: 3 * BATCH_SIZE] for array in regression)
    np.testing.assert_allclose(
        model.get_weights()[0], numpy_sgd(first, [0.1]), rtol=1e-4, atol=1e-6
    )


def test_an_exception_of_a_callback_reaches_the_caller_and_the_weights_are_there(regression):
    model = linear_model()

    def fail(epoch, logs):
        raise ZeroDivisionError("in the callback")

    callback = keras.callbacks.LambdaCallback(on_epoch_end=fail)
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        fit(model, regression, [callback], devices=2)
    np.testing.assert_allclose(
        model.get_weights()[0], numpy_sgd(regression, [0.1]), rtol=1e-4, atol=1e-6
    )


def test_evaluate_calls_the_test_hooks(regression):
    seen = Recorder()
    model = linear_model()
    results = kerasdist.evaluate(model, regression, batch_size=16, callbacks=[seen])
    names = [call[0] for call in seen.calls]
    batch = ["on_test_batch_begin", "on_test_batch_end"]
    assert names == ["on_test_begin", *batch * 3, "on_test_end"]
    assert seen.calls[-1][-1] == pytest.approx(results)


@pytest.mark.filterwarnings("ignore")
def test_mlflows_callback_logs_what_the_history_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for its artifacts
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment("kerasdist")
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with mlflow.start_run() as run:
        history = kerasdist.fit(
            model,
            (x, x.sum(1)),
            validation_data=(x, x.sum(1)),
            batch_size=16,
            epochs=3,
            devices="cpu:2",
            callbacks=[mlflow.keras.MlflowCallback()],
            progress=False,
        )
    logged = mlflow.MlflowClient().get_metric_history(run.info.run_id, "val_loss")
    assert [metric.value for metric in logged] == history.history["val_loss"]


class Adding(keras.callbacks.Callback):
    """Adds values to the logs of an epoch, as Keras's own callbacks do."""

    def on_epoch_end(self, epoch, logs=None):
        logs.update(mine=np.float32(42.5), steps=7, kind="text", words="no number")


@pytest.mark.parametrize("progress", ["lines", "json"])
def test_what_callbacks_add_to_the_logs_is_shown_and_kept(progress, tmp_path, capsys):
    def given():
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2), Adding()]

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    run = tmp_path / "run"
    options = {"epochs": 2, "callbacks": given(), "run_dir": run, "progress": progress}
    history = kerasdist.fit(model, np.ones((8, 1)), np.ones((8, 1)), **options).history
    assert history["learning_rate"] == [0.25, 0.125]
    assert history["words"] == ["no number"] * 2
    shown = capsys.readouterr().out
    expected = ("learning_rate = 0.25, mine = 42.5", '"learning_rate": 0.25, "mine": 42.5')
    assert expected[progress == "json"] in shown
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [(e["learning_rate"], e["mine"]) for e in epochs] == [(0.25, 42.5), (0.125, 42.5)]
    result = json.loads((run / "result.json").read_text())
    assert (result["mine"], result["steps"]) == (42.5, 2)
    assert "words" not in result
