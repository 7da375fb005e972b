"""A checkpoint of TensorFlow 1's CIFAR-10 tutorial gives the same logits in Keras."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from tests.devices.real_workers import environment

NAMES = ("conv1", "conv2", "local3", "local4", "softmax_linear")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tf1")
    script = Path(__file__).with_name("tutorial_tf1.py")
    subprocess.run([sys.executable, str(script), str(path)], env=environment(), check=True)
    return path


def norm(name):
    return keras.layers.Lambda(
        lambda x: tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75), name=name
    )


def tutorial(names=NAMES, classes=10):
    """The same network in Keras."""
    conv1, conv2, local3, local4, softmax_linear = names
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((24, 24, 3)),
            layers.Conv2D(32, 5, padding="same", activation="relu", name=conv1),
            layers.MaxPooling2D(3, 2, padding="same"),
            norm("norm1"),
            layers.Conv2D(32, 5, padding="same", activation="relu", name=conv2),
            norm("norm2"),
            layers.MaxPooling2D(3, 2, padding="same"),
            layers.Flatten(),
            layers.Dense(48, activation="relu", name=local3),
            layers.Dense(24, activation="relu", name=local4),
            layers.Dense(classes, name=softmax_linear),
        ]
    )


def logits_of(model, folder):
    with np.load(folder / "logits.npz") as saved:
        return kerasdist.predict(model, saved["images"], verbose=0)


def expected(folder, kind):
    with np.load(folder / "logits.npz") as saved:
        return saved[kind]


def test_the_logits_are_the_same(folder):
    model = tutorial()
    report = kerasdist.load_weights(model, folder / "model.ckpt-5")
    assert report.complete
    assert len(report.loaded) == 10
    assert report.loaded["local3/kernel"] == "local3/weights"
    np.testing.assert_allclose(logits_of(model, folder), expected(folder, "raw"), atol=2e-6)
    summary = report.summary()
    assert "TensorFlow 1" in summary
    assert "softmax_linear/bias   <- softmax_linear/biases" in summary
    assert "left out, counters and rates: global_step" in summary
    assert "conv1/biases/Momentum" in summary
    assert "moving averages of 10 weights, which were not taken" in summary


def test_the_averages_are_an_option(folder):
    model = tutorial()
    report = kerasdist.load_weights(model, folder / "model.ckpt-5", init_averages=True)
    assert len(report.averaged) == 10
    np.testing.assert_allclose(logits_of(model, folder), expected(folder, "averaged"), atol=2e-6)
    assert np.abs(expected(folder, "averaged") - expected(folder, "raw")).max() > 1e-4


@pytest.mark.parametrize("name", ["", "model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001"])
def test_what_names_a_checkpoint(folder, name):
    model = tutorial()
    assert kerasdist.load_weights(model, folder / name).complete


def test_fit_starts_from_a_checkpoint(folder, capsys):
    model = tutorial()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = np.zeros((4, 24, 24, 3), "float32"), np.zeros((4, 10), "float32")
    kerasdist.fit(model, x, y, steps=1, batch_size=4, init_from=folder, devices=2, verbose=2)
    assert "loaded 10 of the model's 10 weights" in capsys.readouterr().out
    np.testing.assert_allclose(logits_of(model, folder), expected(folder, "raw"), atol=2e-6)


def test_layers_without_names_are_matched_by_shape(folder):
    model = tutorial(names=[None] * 5)
    report = kerasdist.load_weights(model, folder)
    assert len(report.by_shape) == 10
    assert "matched by shape, not by name" in report.summary()
    np.testing.assert_allclose(logits_of(model, folder), expected(folder, "raw"), atol=2e-6)


def test_a_new_head_keeps_its_values(folder):
    model = tutorial(classes=5)
    before = [np.copy(value) for value in model.layers[-1].get_weights()]
    report = kerasdist.load_weights(model, folder)
    assert [name for name, *_ in report.mismatched] == [
        "softmax_linear/kernel",
        "softmax_linear/bias",
    ]
    for old, new in zip(before, model.layers[-1].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert "softmax_linear/kernel is (24, 5), not softmax_linear/weights (24, 10)" in (
        report.summary()
    )


def test_a_mapping_names_weights_and_layers(folder, tmp_path):
    file = tmp_path / "map.json"
    mapping = {
        "first": "conv1",
        "second/kernel": "conv2/weights",
        "second/bias": None,
        "last": "softmax_linear",
    }
    file.write_text(json.dumps(mapping))
    model = tutorial(names=["first", "second", "local3", "local4", "last"])
    report = kerasdist.load_weights(model, folder, init_map=file)
    assert report.missing == ("second/bias",)
    assert report.unused == ("conv2/biases",)
    assert not report.by_shape
    reference = tutorial()
    kerasdist.load_weights(reference, folder)
    for a, b in zip(model.weights, reference.weights, strict=True):
        if not a.path.endswith("second/bias"):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"conv9": "conv1"}, r"'conv9', which is not a weight or a layer.*mean 'conv.'"),
        ({"conv1/kernel": "conv1/wights"}, r"'conv1/wights'.*Did you mean 'conv1/weights'"),
        ({"conv1/kernel": "conv2/weights"}, r"shape \(5, 5, 32, 32\).*Expected the same shape"),
        ({"conv1": "local"}, r"has no 'kernel' there.*Map each weight by itself"),
        ({"conv1/kernel": ["a", "b"]}, r"\['a', 'b'\].*Expected one name"),
        ([], r"is list.*Expected names of weights"),
    ],
)
def test_a_wrong_mapping_is_explained(folder, tmp_path, mapping, message):
    file = tmp_path / "map.json"
    file.write_text(json.dumps(mapping))
    with pytest.raises(KerasdistError, match=message):
        kerasdist.load_weights(tutorial(), folder, init_map=file)


def test_a_mapping_that_cannot_be_read(folder, tmp_path):
    with pytest.raises(KerasdistError, match=r"No such file.*Expected a JSON file"):
        kerasdist.load_weights(tutorial(), folder, init_map=tmp_path / "nope.json")
    (tmp_path / "map.json").write_text("{")
    with pytest.raises(KerasdistError, match="it is not JSON"):
        kerasdist.load_weights(tutorial(), folder, init_map=tmp_path / "map.json")
