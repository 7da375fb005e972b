"""Arguments of `fit` that mean nothing: a clear error before anything is compiled."""

import keras
import pytest

import kerasdist
from tests.bad_input import Provider, X, Y, batches, dataset, refusal, regressor


def test_shards_that_are_no_multiple_of_the_devices(not_compiled):
    message = refusal(regressor(), (X, Y), devices=2, shards=3)
    assert "`shards=3` on 2 devices" in message
    assert "run on 1, 3 devices" in message
    assert "`shards=4`" in message


@pytest.mark.parametrize("shards", [0, -1, 1.5, True])
def test_shards_that_are_no_number(shards, not_compiled):
    assert f"`shards={shards!r}`" in refusal(regressor(), (X, Y), shards=shards)


def test_more_shards_than_examples_in_a_batch(not_compiled):
    message = refusal(regressor(), (X, Y), shards=8)
    assert "`batch_size=5` and 8 shards" in message
    assert "larger batch" in message
    assert "`batch_size=10` and 16 shards" in refusal(
        regressor(), Provider(), batch_size=None, shards=16
    )


def test_deterministic_shards_that_are_no_power_of_two(not_compiled):
    message = refusal(regressor(), (X, Y), devices=2, shards=6, deterministic=True, batch_size=10)
    assert "`shards=6` on 2 devices with `deterministic=True`" in message
    assert "power of two" in message
    assert "run on 1, 3, 6 devices" in message


def test_deterministic_with_several_reader_threads(not_compiled):
    data = kerasdist.read_provider(Provider(), reader_threads=2)
    message = refusal(regressor(), data, batch_size=None, deterministic=True)
    assert "2 threads" in message
    assert "`reader_threads=1`" in message


def test_a_generator_that_can_be_read_once_for_two_validations(not_compiled):
    message = refusal(regressor(), (X, Y), validation_data=batches(X, Y)(), epochs=2)
    assert "`validation_data`, a generator that can be read only once" in message
    assert "`epochs=2`" in message
    assert "Pass the function itself" in message


def test_validation_data_of_another_shape_is_named():
    wrong = X[:, :2]
    message = refusal(regressor(), (X, Y), validation_data=(wrong, Y))
    assert message.endswith("The error is about `validation_data`.")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert "validation_data" not in refusal(model, (wrong, Y), validation_data=(X, Y))


def test_data_that_never_ends(not_compiled):
    endless = dataset(X, Y).repeat()
    message = refusal(regressor(), endless)
    assert "`data` never ends" in message
    assert "`steps_per_epoch=1000`" in message
    message = refusal(regressor(), (X, Y), validation_data=endless.batch(5))
    assert "`validation_data` never ends and `validation_steps` is missing" in message
    for function in (kerasdist.evaluate, kerasdist.predict):
        with pytest.raises(kerasdist.KerasdistError, match="never ends and `steps` is missing"):
            function(regressor(), endless.batch(5))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 0, "at least 1"),
        ("epochs", None, "at least 1"),
        ("epochs", 1.5, "at least 1"),
        ("steps", -2, "at least 1"),
        ("steps_per_epoch", 0, "at least 1"),
        ("validation_steps", "all", "at least 1"),
        ("log_every", 0, "at least 1"),
        ("ema", 1.5, "between 0 and 1"),
        ("ema", True, "between 0 and 1"),
        ("clip_norm", -1, "above 0"),
        ("clip_norm", 0, "above 0"),
        ("clip_norm", float("nan"), "above 0"),
        ("seed", -1, "at least 0"),
        ("seed", 1.0, "at least 0"),
        ("shuffle", "yes", "True, False"),
        ("shuffle", -1, "True, False"),
        ("on_nan", "ignore", "'stop'"),
        ("augment", "flip", "a function"),
        ("save_every", "often", "seconds like '30s'"),
        ("save_every", 0, "more than 0"),
        ("precision", "half", "a dtype policy"),
        ("precision", 16, "a dtype policy"),
        ("class_weight", [1.0, 2.0], "a dict"),
        ("class_weight", {"cat": 1.0}, "class numbers"),
        ("class_weight", {0: -1.0}, "at least 0"),
        ("run_dir", True, "the path of a folder"),
        ("run_dir", 1, "`run_dir='runs/mine'`"),
    ],
)
def test_settings_outside_their_range(name, value, expected, not_compiled):
    message = refusal(regressor(), (X, Y), **{name: value})
    assert f"`{name}={value!r}`" in message
    assert expected in message


def test_an_augmentation_that_returns_nothing(not_compiled):
    assert "Received None from `augment`" in refusal(
        regressor(), (X, Y), augment=lambda batch, seed: None
    )


@pytest.mark.parametrize(
    "given", [{"save_every": "5s"}, {"keep": 5}, {"monitor": "loss"}, {"keep_best": 3}]
)
def test_what_only_a_run_has_needs_a_folder(given, not_compiled):
    ((name, value),) = given.items()
    message = refusal(regressor(), (X, Y), **given)
    assert f"Received `{name}={value!r}` without `run_dir`. Expected a folder" in message


@pytest.mark.parametrize(
    ("compiled", "told"),
    [
        ({"loss": "mse", "metrics": ["acuracy"]}, "the metric 'acuracy'"),
        ({"loss": "sparse_crossentropy"}, "the loss 'sparse_crossentropy'"),
    ],
)
def test_a_name_that_keras_does_not_know(compiled, told):
    model = regressor()
    model.compile("sgd", **compiled)
    message = refusal(model, (X, Y))
    assert told in message
    assert "`model.compile`" in message
    assert "the data" not in message


def test_unfrozen_weights_that_the_optimizer_does_not_know():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    kerasdist.fit(model, X, Y, verbose=0)
    model.layers[0].trainable = True
    assert "Call `model.compile` again" in refusal(model, (X, Y))
