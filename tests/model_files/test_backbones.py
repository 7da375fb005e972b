"""Networks of `keras.applications` as layers, and their weights from files."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.model_files import backbones


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    return kerasdist.backbone("mobilenet_v2", (32, 32))


def small_convolution(filters):
    layers = [keras.layers.Conv2D(n, 1) for n in filters]
    return keras.Sequential([keras.Input((4, 4, 3)), *layers])


def assert_same(model, other):
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_preprocessing_is_inside(network):
    """MobileNetV2 was made for values from -1 to 1."""
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("uint8")
    inner = network.layers[-1]
    expected = inner(image / 127.5 - 1, training=False)
    np.testing.assert_allclose(network(image, training=False), expected, rtol=1e-4, atol=1e-5)
    assert network.name == "backbone"
    assert expected.shape == (2, 1280)


def test_weights_of_the_backbone_alone_and_of_a_whole_model(network, tmp_path):
    """A whole model: the backbone is a layer of it, and the images had another size."""
    network.save_weights(tmp_path / "alone.weights.h5")
    image = keras.Input((32, 32, 3))
    keras.Model(image, keras.layers.Dense(3)(network(image))).save(tmp_path / "whole.keras")
    other = kerasdist.backbone("mobilenet_v2", (48, 48))
    for file in ("alone.weights.h5", "whole.keras"):
        other.set_weights([np.zeros_like(w) for w in other.get_weights()])
        kerasdist.load_backbone(other, "mobilenet_v2", tmp_path / file)
        assert_same(network, other)
    small = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    small.save_weights(tmp_path / "small.weights.h5")
    with pytest.raises(KerasdistError, match=r"Nothing in .*small.weights.h5"):
        kerasdist.load_backbone(other, "mobilenet_v2", tmp_path / "small.weights.h5")


@pytest.mark.parametrize("kind", ["weights", "model", "weights with classes"])
def test_a_file_that_keras_saved_of_its_own_network(network, kind, tmp_path):
    """Without the layer that preprocesses, so its names lie one level higher."""
    top = {"weights": None, "input_shape": (32, 32, 3), "include_top": kind.endswith("classes")}
    own = keras.applications.MobileNetV2(**top, classes=3)
    own.set_weights([*network.get_weights(), *own.get_weights()[len(network.weights) :]])
    if kind == "model":
        own.save(tmp_path / "own.keras")
    else:
        own.save_weights(tmp_path / "own.weights.h5")
    (file,) = tmp_path.iterdir()
    other = kerasdist.backbone("mobilenet_v2", (48, 48))
    kerasdist.load_backbone(other, "mobilenet_v2", file)
    assert_same(network, other)
    with pytest.raises(KerasdistError, match=r"fits the model|are not those of the backbone"):
        kerasdist.load_backbone(small_convolution([5]), "mine", file)


def test_weights_of_another_backbone_are_refused(tmp_path):
    conv = small_convolution
    conv([2, 3]).save_weights(tmp_path / "a.weights.h5")
    message = r"not those of the backbone 'mine'.*\n  loaded 2 of the model's 4"
    with pytest.raises(KerasdistError, match=message):
        kerasdist.load_backbone(conv([2, 4]), "mine", tmp_path / "a.weights.h5")


def test_imagenet_without_a_network_names_the_file(monkeypatch, network):
    url = "https://example.org/mobilenet_v2_no_top.h5"

    def fails(**options):
        raise Exception(f"URL fetch failure on {url}: None -- no route")  # As Keras does.

    monkeypatch.setattr(keras.applications, "MobileNetV2", fails)
    message = rf"'mobilenet_v2' cannot be loaded.*models.*Fetch {url} on a machine.*`weights`"
    with pytest.raises(KerasdistError, match=message):
        backbones.load_backbone(network, "mobilenet_v2", "imagenet")


def test_lora_trains_after_weights_are_loaded(tmp_path):
    """Keras's loading sets both matrices to 0, and then no gradient reaches them."""

    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(2)])

    trained, model = build(), build()
    trained.save_weights(tmp_path / "trained.weights.h5")
    model.layers[0].enable_lora(2)
    kerasdist.load_weights(model, tmp_path / "trained.weights.h5")
    x = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
    np.testing.assert_allclose(trained(x), model(x), rtol=1e-5, atol=1e-6)
    kernel = np.copy(model.layers[0].kernel)
    model.compile(keras.optimizers.Adam(0.1), "mse")
    kerasdist.fit(model, x, x[:, :2], batch_size=8, epochs=2, devices=2, verbose=0)
    assert np.abs(np.asarray(model.layers[0].kernel) - kernel).max() > 0.01
