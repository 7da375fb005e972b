"""A run is not continued with another loss, other metrics or another optimizer without a word."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.errors import OtherRunError
from kerasdist.runs.checkpoints.differences import refuse_other_run

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X[:, :1]


def fit(folder, epochs, optimizer="sgd", loss="mse", metrics=None, **options):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=metrics)
    options = {"verbose": 0, "seed": 0, **options}
    return kerasdist.fit(model, X, Y, epochs=epochs, run_dir=folder, **options)


CHANGES = {
    "another loss": ({"loss": "mae"}, "loss was .*mse.* and is .*mae"),
    "a loss's argument": ({"loss": keras.losses.Huber(delta=3)}, "is 'Huber'"),
    "a metric more": ({"metrics": ["mae"]}, r"metrics was .*None.* and is .*mae"),
    "another optimizer": ({"optimizer": "adam"}, "optimizer was 'SGD' and is 'Adam'"),
    "momentum": (
        {"optimizer": keras.optimizers.SGD(0.01, momentum=0.9)},
        "the optimizer's momentum was 0.0 and is 0.9",
    ),
    "weight decay": (
        {"optimizer": keras.optimizers.SGD(0.01, weight_decay=0.5)},
        "the optimizer's weight_decay was None and is 0.5",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_compilation_is_refused_by_name(name, tmp_path):
    changed, told = CHANGES[name]
    fit(tmp_path / "run", 2)
    with pytest.raises(OtherRunError, match=told) as error:
        fit(tmp_path / "run", 3, **changed)
    assert "layers of the model" not in str(error.value)
    assert fit(tmp_path / "run", 3).epoch == [0, 1, 2]


def test_another_metric_instead_is_refused(tmp_path):
    fit(tmp_path / "run", 2, metrics=["mape"])
    with pytest.raises(OtherRunError, match=r"metrics was .*mape.* and is .*mae"):
        fit(tmp_path / "run", 3, metrics=["mae"])


def test_another_rate_is_said(tmp_path, capsys):
    fit(tmp_path / "run", 2)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    kerasdist.fit(model, X, Y, epochs=3, run_dir=tmp_path / "run", seed=0)
    shown = "".join(capsys.readouterr())
    assert "was 0.01 when the run began, and is 0.5 now" in " ".join(shown.split())
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


def test_the_rate_of_the_beginning_is_kept_over_several_resumes(tmp_path, capsys):
    def shown_with(rate, epochs):
        fit(tmp_path / "run", epochs, keras.optimizers.SGD(rate), verbose=1)
        return " ".join("".join(capsys.readouterr()).split())

    assert "when the run began" not in shown_with(0.01, 1)
    assert "was 0.01 when the run began, and is 0.001 now" in shown_with(0.001, 2)
    assert "when the run began" not in shown_with(0.01, 3)
    assert "was 0.01 when the run began, and is 0.5 now" in shown_with(0.5, 4)


def test_another_schedule_is_refused_but_not_a_longer_one(tmp_path):
    def of(rate, steps):
        schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
        return keras.optimizers.SGD(schedule)

    fit(tmp_path / "run", 2, optimizer=of(0.1, 10))
    with pytest.raises(OtherRunError, match=r"initial_learning_rate was 0\.1 and is 0\.2"):
        fit(tmp_path / "run", 3, optimizer=of(0.2, 10))
    assert fit(tmp_path / "run", 3, optimizer=of(0.1, 20)).epoch == [0, 1, 2]


def test_another_batch_size_is_not_other_data(tmp_path):
    fit(tmp_path / "run", 1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(OtherRunError, match="batch_size was 32 and is 16") as error:
        kerasdist.fit(model, X, Y, batch_size=16, epochs=2, run_dir=tmp_path / "run", verbose=0)
    assert "the data differ" not in str(error.value)


def flipped(batch, seed):
    x, y = batch
    return -x, -y


@pytest.mark.parametrize("was_given", [True, False])
def test_an_augment_is_neither_added_nor_removed(was_given, tmp_path):
    with_one, without = {"augment": flipped}, {}
    first, second = (with_one, without) if was_given else (without, with_one)
    told = "began with an `augment`, and has none" if was_given else "began without `augment`, and"
    fit(tmp_path / "run", 1, **first)
    with pytest.raises(OtherRunError, match=told):
        fit(tmp_path / "run", 2, **second)
    assert fit(tmp_path / "run", 2, **first).epoch == [0, 1]


def test_an_augment_may_have_another_name(tmp_path):
    fit(tmp_path / "run", 1, augment=flipped)
    again = fit(tmp_path / "run", 2, augment=lambda batch, seed: flipped(batch, seed))
    assert again.epoch == [0, 1]


def test_checkpoints_from_before_do_not_say_whether_there_was_an_augment():
    now = {"model": "Sequential 1", "batch_size": 8, "augment": True}
    refuse_other_run({"model": "Sequential 1", "batch_size": 8}, now, "folder")


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Without a `get_config`."""

    def __call__(self, step):
        return 0.01


def test_a_schedule_that_cannot_be_described_trains_and_resumes(tmp_path):
    for epochs in (1, 2):
        found = fit(tmp_path / "run", epochs, optimizer=keras.optimizers.SGD(OwnSchedule()))
    assert found.epoch == [0, 1]


SCHEDULES = {
    "described": lambda: keras.optimizers.schedules.CosineDecay(0.1, 10),
    "not described": OwnSchedule,
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_instead_of_a_number_is_refused_by_name(kind, tmp_path):
    def of_schedule():
        return keras.optimizers.SGD(SCHEDULES[kind]())

    fit(tmp_path / "number", 1, optimizer=keras.optimizers.SGD(0.1))
    told = "the learning rate was the number 0.1, and is a schedule now"
    with pytest.raises(OtherRunError) as error:
        fit(tmp_path / "number", 2, optimizer=of_schedule())
    assert error.value.differences == (told,)
    fit(tmp_path / "schedule", 1, optimizer=of_schedule())
    told = "the learning rate was a schedule, and is the number 0.1 now"
    with pytest.raises(OtherRunError) as error:
        fit(tmp_path / "schedule", 2, optimizer=keras.optimizers.SGD(0.1))
    assert error.value.differences == (told,)


def test_other_layers_are_told_with_the_schedule(tmp_path):
    fit_layers(tmp_path / "run", 1, hidden())
    other = hidden("tanh")
    other.compile(keras.optimizers.SGD(OwnSchedule()), "mse")
    with pytest.raises(OtherRunError, match=r"the layer Dense differs.*rate was the number 0.01, "):
        fit_layers(tmp_path / "run", 2, other)


def with_layers(*layers):
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def hidden(activation="relu", rate=0.2, penalty=1e-3):
    part = keras.Sequential(
        [
            keras.layers.Dense(4, activation, kernel_regularizer=keras.regularizers.L2(penalty)),
            keras.layers.Dropout(rate),
        ]
    )
    return with_layers(part)


OTHERS = {
    "rate": (lambda: hidden(rate=0.5), r"the layer Dropout differs: rate was 0.2 and is 0.5"),
    "activation": (lambda: hidden("tanh"), "the layer Dense differs: activation was 'relu' and is"),
    "penalty": (lambda: hidden(penalty=0.1), "kernel_regularizer config l2 was 0.001 and is 0.1"),
    "more": (
        lambda: with_layers(*hidden().layers[0].layers, keras.layers.ReLU()),
        "the model had no ReLU",
    ),
}


def fit_layers(folder, epochs, model):
    return kerasdist.fit(model, X, Y, epochs=epochs, run_dir=folder, verbose=0, seed=0)


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_of_a_layer_are_refused_by_name(name, tmp_path):
    build, told = OTHERS[name]
    fit_layers(tmp_path / "run", 1, hidden())
    with pytest.raises(OtherRunError, match=told):
        fit_layers(tmp_path / "run", 2, build())
    assert fit_layers(tmp_path / "run", 2, hidden()).epoch == [0, 1]


def test_what_changes_nothing_of_a_layer_does_not_matter(tmp_path):
    def build(seed, function):
        return with_layers(
            keras.layers.Dropout(0.1, seed=seed, name=f"mine_{seed}"),
            keras.layers.Dense(4, kernel_initializer=keras.initializers.RandomNormal(seed)),
            keras.layers.Lambda(function),
        )

    fit_layers(tmp_path / "run", 1, build(1, lambda x: x * 2))
    # The same function on another line of the script.
    assert fit_layers(tmp_path / "run", 2, build(2, lambda x: x * 2)).epoch == [0, 1]


def test_layers_of_older_runs_and_other_versions_are_compared_as_far_as_they_are_known():
    saved = {"layers": {"Dropout": {"rate": 0.2, "old": 1}}}
    now = {"layers": {"Dropout": {"rate": 0.2, "new": 2}}}
    for before, after in ((saved, now), ({}, now)):
        refuse_other_run(before, after, "ckpt")
    with pytest.raises(OtherRunError, match=r"rate was 0\.2 and is 0\.3"):
        refuse_other_run(saved, {"layers": {"Dropout": {"rate": 0.3}}}, "ckpt")


def compiled(loss="mse", **arguments):
    model = with_layers()
    model.compile(arguments.pop("optimizer", "sgd"), loss, **arguments)
    return model


def decayed(*names):
    optimizer = keras.optimizers.AdamW(0.01)
    if names:
        optimizer.exclude_from_weight_decay(var_names=list(names))
    return compiled(optimizer=optimizer)


def frozen(*numbers):
    layers = [keras.layers.Dense(6) for _ in range(3)]
    for number in numbers:
        layers[number].trainable = False
    return with_layers(*layers)


ENTROPY = keras.losses.BinaryCrossentropy
PAIRS = {
    "from_logits": (
        lambda: compiled(ENTROPY(from_logits=True)),
        lambda: compiled(ENTROPY(from_logits=False)),
        "the loss's from_logits was True and is False",
    ),
    "loss_weights": (
        lambda: compiled(loss_weights=1.0),
        lambda: compiled(loss_weights=50.0),
        r"loss_weights was '1\.0' and is '50\.0'",
    ),
    "a metric's threshold": (
        lambda: compiled(metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)]),
        lambda: compiled(metrics=[keras.metrics.BinaryAccuracy(threshold=0.7)]),
        r"metrics 0 threshold was 0\.5 and is 0\.7",
    ),
    "weighted metrics": (
        compiled,
        lambda: compiled(weighted_metrics=["mae"]),
        "weighted_metrics was 'None' and is",
    ),
    "no decay": (decayed, lambda: decayed("kernel"), "weights without decay was '0 "),
    "frozen": (frozen, lambda: frozen(0), "8 weights were trained, and 6 are now"),
    "unfrozen": (lambda: frozen(1), frozen, "6 weights were trained, and 8 are now"),
    "frozen elsewhere": (lambda: frozen(2), lambda: frozen(0), "other weights are trained"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_no_shape_tells_is_refused_by_name(name, tmp_path):
    before, after, told = PAIRS[name]
    fit_layers(tmp_path / "run", 1, before())
    model = after()
    values = model.get_weights()
    with pytest.raises(OtherRunError, match=told):
        fit_layers(tmp_path / "run", 2, model)
    for found, expected in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert fit_layers(tmp_path / "run", 2, before()).epoch == [0, 1]


def test_settings_that_only_one_version_of_keras_has_are_no_difference():
    saved = {"loss": "Huber", "loss_settings": {"0 delta": 1.0, "0 old": 1}}
    refuse_other_run(saved, {"loss": "Huber", "loss_settings": {"0 delta": 1.0}}, "ckpt")
    with pytest.raises(OtherRunError, match=r"the loss's 0 delta was 1\.0 and is 2\.0"):
        refuse_other_run(saved, {"loss": "Huber", "loss_settings": {"0 delta": 2.0}}, "ckpt")


def test_another_precision_and_statistics_of_whole_batches_are_refused(tmp_path):
    def train(folder, epochs, **options):
        def build():
            return with_layers(keras.layers.BatchNormalization())

        return kerasdist.fit(
            build, X, Y, epochs=epochs, run_dir=folder, verbose=0, seed=0, devices=2, **options
        )

    train(tmp_path / "run", 1)
    with pytest.raises(OtherRunError, match="precision was 'float32' and is 'mixed_bfloat16'"):
        train(tmp_path / "run", 2, precision="mixed_bfloat16")
    with pytest.raises(OtherRunError, match="sync_batch_norm was None and is True"):
        train(tmp_path / "run", 2, sync_batch_norm=True)
    assert train(tmp_path / "run", 2).epoch == [0, 1]
