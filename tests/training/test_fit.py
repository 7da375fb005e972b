"""`fit` as a whole: options, several fits, and what the caller's model holds afterwards."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import InexactLossError, RunFailedError
from kerasdist.runs.trained_model import weights_sha256

RANDOM = np.random.default_rng(8)
X = RANDOM.normal(size=(37, 4)).astype("float32")
CLASSES = RANDOM.integers(0, 3, 37)


def classifier(optimizer=None, **compiled):
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(0.05), loss, **compiled)
    return model


def fit(model, data=(X, CLASSES), **options):
    defaults = {"batch_size": 8, "shuffle": False, "progress": False}
    return kerasdist.fit(model, data, **{**defaults, **options})


def assert_same_weights(first, second, rtol=1e-5):
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("replicas", [1, 3])
def test_fit_trains_what_keras_fit_trains(replicas):
    ours, theirs = classifier(metrics=["accuracy"]), classifier(metrics=["accuracy"])
    history = fit(ours, epochs=3, devices=replicas, validation_data=(X, CLASSES))
    expected = theirs.fit(
        X,
        CLASSES,
        batch_size=8,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(X, CLASSES),
    )
    assert_same_weights(ours, theirs)
    assert history.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-4, err_msg=name)
    assert history.epoch == expected.epoch
    assert history.model is ours


@pytest.mark.parametrize("replicas", [1, 2])
def test_class_and_sample_weights_are_kerass(replicas):
    weights = RANDOM.uniform(0.2, 2.0, 37).astype("float32")
    class_weight = {0: 0.5, 1: 3.0, 2: 1.0}
    ours = classifier(weighted_metrics=["accuracy"])
    theirs = classifier(weighted_metrics=["accuracy"])
    fit(ours, (X, CLASSES, weights), epochs=2, devices=replicas, class_weight=class_weight)
    # Keras takes one or the other with arrays: theirs get the product.
    product = weights * np.array([0.5, 3.0, 1.0], "float32")[CLASSES]
    theirs.fit(X, CLASSES, sample_weight=product, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs)


def test_one_hot_targets_and_unlisted_classes_take_class_weights():
    keras.utils.set_random_seed(1)
    one_hot = keras.utils.to_categorical(CLASSES, 3)

    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
        model.compile("sgd", "categorical_crossentropy")
        return model

    ours, theirs = build(), build()
    fit(ours, (X, one_hot), class_weight={0: 2.0})
    weights = np.where(CLASSES == 0, 2.0, 1.0)
    theirs.fit(X, one_hot, sample_weight=weights, batch_size=8, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("replicas", [1, 2])
def test_optimizer_state_survives_from_one_fit_to_the_next(replicas):
    twice, once = classifier(), classifier()
    fit(twice, epochs=2, devices=replicas)
    fit(twice, epochs=3, devices=3 - replicas)
    fit(once, epochs=5, devices=1)
    assert int(twice.optimizer.iterations) == 25
    assert_same_weights(twice, once)


def test_steps_train_exactly_that_many_over_passes():
    model = classifier()
    history = fit(model, steps=12)
    assert int(model.optimizer.iterations) == 12
    assert history.epoch == [0, 1, 2]  # 5 + 5 + 2


def test_steps_per_epoch_goes_on_in_the_pass_of_the_last_epoch():
    by_epochs, by_steps = classifier(), classifier()
    fit(by_epochs, epochs=2)  # 10 steps
    history = fit(by_steps, epochs=6, steps_per_epoch=2)  # 2, 2 and 1 of each pass
    assert len(history.epoch) == 6
    assert_same_weights(by_epochs, by_steps)


def test_validation_steps_limit_the_validation():
    history = fit(classifier(), validation_data=(X, CLASSES), validation_steps=1)
    model = history.model
    expected = model.evaluate(X[:8], CLASSES[:8], verbose=0)
    assert history.history["val_loss"][0] == pytest.approx(expected, rel=1e-5)


class Subclassed(keras.Model):
    """Unbuilt until it sees data, and not clonable."""

    def __init__(self, units):
        super().__init__()
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.out = keras.layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_unbuilt_subclassed_model_is_trained_itself(replicas):
    model = Subclassed(6)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = fit(model, epochs=30, devices=replicas)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert model.hidden.kernel.shape == (4, 6)


def test_a_function_builds_the_same_model_for_the_same_seed():
    def build():
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    first = fit(build, seed=3).model.get_weights()[0]
    keras.utils.set_random_seed(99)
    np.testing.assert_array_equal(first, fit(build, seed=3).model.get_weights()[0])
    assert not np.array_equal(first, fit(build, seed=4).model.get_weights()[0])


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_precision_builds_under_that_policy_and_trains(precision):
    def build():
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3, dtype="float32")])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    history = fit(build, precision=precision, epochs=20, devices=2)
    assert history.model.layers[0].compute_dtype == precision.removeprefix("mixed_")
    assert history.model.layers[0].kernel.dtype == "float32"
    assert history.history["loss"][-1] < history.history["loss"][0]
    scaled = isinstance(history.model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (precision == "mixed_float16")
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_layers_of_integers_suit_every_precision(precision):
    def build():
        layers = [keras.layers.Hashing(5), keras.layers.Embedding(5, 2), keras.layers.Flatten()]
        model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
        model.compile("sgd", "mse")
        return model

    x, y = np.arange(24).reshape(8, 3).astype("int32"), np.ones((8, 6), "float32")
    history = kerasdist.fit(build, (x, y), batch_size=4, precision=precision, progress=False)
    embedding = history.model.layers[1]
    assert embedding.compute_dtype == precision.removeprefix("mixed_")


def test_a_precision_that_keras_does_not_know_is_named():
    with pytest.raises(kerasdist.KerasdistError, match=r"precision='float17'.*mixed_bfloat16"):
        fit(classifier, precision="float17")


def test_several_outputs_and_loss_weights_are_kerass():
    def build():
        keras.utils.set_random_seed(2)
        inputs = keras.Input((4,), name="x")
        kind = keras.layers.Dense(3, name="kind")(inputs)
        size = keras.layers.Dense(1, name="size")(inputs)
        model = keras.Model(inputs, {"kind": kind, "size": size})
        model.compile(
            "sgd",
            {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
            loss_weights={"kind": 1.0, "size": 0.3},
            metrics={"kind": "accuracy", "size": "mae"},
        )
        return model

    targets = {"kind": CLASSES, "size": X[:, :1]}
    ours, theirs = build(), build()
    history = fit(ours, (X, targets), epochs=2, devices=2)
    expected = theirs.fit(X, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs)
    assert history.history.keys() == expected.history.keys()
    for name in ("loss", "kind_accuracy", "size_mae"):
        np.testing.assert_allclose(history.history[name], expected.history[name], rtol=1e-5)


def test_a_variable_without_a_gradient_stays_unchanged():
    class Unused(Subclassed):
        def __init__(self):
            super().__init__(5)
            self.extra = self.add_weight(shape=(3,), initializer="ones", name="extra")

    model = Unused()
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match=r"Gradients do not exist for variables.*extra"):
        fit(model, devices=2)
    np.testing.assert_array_equal(model.extra.numpy(), np.ones(3))


def test_frozen_layers_stay_and_the_others_train():
    model = Subclassed(5)
    model.hidden.trainable = False
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model(X[:1])
    before = model.get_weights()
    fit(model, devices=2)
    after = model.get_weights()
    same = [np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    frozen = [not v.trainable for v in model.weights]
    assert same == frozen
    assert frozen.count(True) == 2


def test_state_that_a_forward_pass_writes_into_weights_is_kept():
    def build():
        keras.utils.set_random_seed(5)
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(3))
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    ours, theirs = build(), build()
    fit(ours, epochs=2, devices=2)
    theirs.fit(X, CLASSES, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs, rtol=1e-3)


class SummedByHand(Subclassed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.sum(keras.ops.square(y_pred))


class Contrastive(Subclassed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - keras.ops.mean(y_pred, axis=0)))


class SummedActivity(Subclassed):
    def call(self, x):
        outputs = super().call(x)
        self.add_loss(0.1 * keras.ops.sum(keras.ops.square(outputs)))
        return outputs


@pytest.mark.parametrize("kind", [SummedByHand, Contrastive, SummedActivity])
@pytest.mark.parametrize("as_dataset", [False, True])
def test_a_loss_that_cannot_be_cut_is_refused_if_asked(kind, as_dataset):
    model = kind(4)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data, options = (X, CLASSES), {}
    if as_dataset:
        data, options = tf.data.Dataset.from_tensor_slices(data).batch(8), {"batch_size": None}
    with pytest.raises(InexactLossError, match=r"not a mean over examples.*exactness"):
        fit(model, data, devices=2, whole_batch_loss=False, **options)
    assert np.isfinite(fit(model, data, devices=2, **options).history["loss"]).all()


def test_a_mean_of_ones_own_is_not_refused():
    class Mean(Subclassed):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            own = super().compute_loss(x, y, y_pred, sample_weight, training)
            return own + 0.1 * keras.ops.mean(keras.ops.abs(y_pred))

    model = Mean(4)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(fit(model, devices=2).history["loss"]).all()


def test_a_run_folder_holds_configuration_metrics_model_and_result(tmp_path):
    model = classifier(metrics=["accuracy"])
    folder = tmp_path / "run"
    fit(model, epochs=2, validation_data=(X, CLASSES), run_dir=folder, log_every=2, ema=0.5)
    assert {p.name for p in folder.iterdir()} == {
        "best.keras",
        "checkpoints",
        "lock",
        "config.json",
        "environment.json",
        "model.json",
        "metrics.jsonl",
        "final.keras",
        "report.html",
        "result.json",
    }
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished"
    assert (result["steps"], result["epochs"], result["examples_seen"]) == (10, 2, 74)
    assert result["weights_sha256"] == weights_sha256(model)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [2, 4, 6, 8, 10]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2]
    saved = keras.models.load_model(folder / "final.keras")
    # The saved model is the average, which the validation was of.
    found = kerasdist.evaluate(saved, (X, CLASSES), batch_size=8)
    assert found["accuracy"] == pytest.approx(result["val_accuracy"], rel=1e-5)
    assert found["loss"] == pytest.approx(result["val_loss"], rel=1e-5)


class WithOwnStep(keras.Sequential):
    """Nobody knows before the first epoch what such a model logs."""

    def train_step(self, data):
        return super().train_step(data)


def test_an_error_after_the_start_is_a_failed_run(regression, tmp_path):
    """The command line exits with 1 for it, keeps the folder, and says why in result.json."""
    model = WithOwnStep([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    options = {"run_dir": tmp_path / "run", "monitor": "val_los", "progress": False}
    with pytest.raises(RunFailedError, match="Expected one of loss"):
        kerasdist.fit(model, regression, batch_size=8, **options)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "val_los" in result["error"]


@pytest.mark.parametrize("sync", [False, True])
def test_a_silent_run_notes_that_batch_normalization_is_by_shard(capsys, tmp_path, sync):
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, epochs=1, devices=2, run_dir=tmp_path, sync_batch_norm=sync)
    note = json.loads((tmp_path / "environment.json").read_text()).get("note", "")
    assert ("takes its statistics over each of 2 shards" in note) == (not sync)
    assert capsys.readouterr().out == ""
