"""The network of the CIFAR-10 recipe's preset `tutorial`, and its settings."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.recipes.importing import import_part

ROOT = Path(__file__).resolve().parents[2]
CIFAR10 = ROOT / "recipes" / "cifar10"


@pytest.fixture(scope="module")
def model():
    """Built on four synthetic images."""
    keras.utils.set_random_seed(1)
    recipe = kerasdist.load_recipe("cifar10", preset="tutorial", source="synthetic", num_train=40)
    built = recipe.build_model()
    kerasdist.evaluate(built, recipe.build_data("train"))
    return built


def test_the_layers_are_the_tutorials(model):
    layers = {layer.name: layer for layer in model.layers}
    assert " ".join(layers) == ("conv1 pool1 norm1 conv2 norm2 pool2 flatten dense1 dense2 logits")
    shapes = {n: layer.kernel.shape for n, layer in layers.items() if hasattr(layer, "kernel")}
    assert shapes == {
        "conv1": (5, 5, 3, 64),
        "conv2": (5, 5, 64, 64),
        "dense1": (6 * 6 * 64, 384),
        "dense2": (384, 192),
        "logits": (192, 10),
    }
    for name in ("pool1", "pool2"):
        assert (layers[name].pool_size, layers[name].strides) == ((3, 3), (2, 2))
        assert layers[name].padding == "same"
    assert model(np.zeros((2, 32, 32, 3), "uint8")).shape == (2, 10)
    activations = {n: layer.activation.__name__ for n, layer in layers.items() if n in shapes}
    assert activations == dict.fromkeys(shapes, "relu") | {"logits": "linear"}


def test_initial_values_are_the_tutorials(model):
    layers = {layer.name: layer for layer in model.layers}
    for name, deviation, bias in (
        ("conv1", 0.05, 0.0),
        ("conv2", 0.05, 0.1),
        ("dense1", 0.04, 0.1),
        ("dense2", 0.04, 0.1),
        ("logits", 1 / 192, 0.0),
    ):
        kernel = layers[name].kernel.numpy()
        # Cut at two deviations, which leaves 0.8796 of the deviation.
        assert np.abs(kernel).max() <= 2 * deviation
        assert kernel.std() == pytest.approx(0.8796 * deviation, rel=0.05)
        assert abs(kernel.mean()) < 0.1 * deviation
        np.testing.assert_array_equal(layers[name].bias, np.float32(bias))


def test_weight_decay_is_on_exactly_the_two_hidden_dense_layers(model):
    layers = {layer.name: layer for layer in model.layers}
    kernels = [layers[name].kernel.numpy() for name in ("dense1", "dense2")]
    expected = [0.002 * float((k.astype("float64") ** 2).sum()) for k in kernels]
    np.testing.assert_allclose(sorted(map(float, model.losses)), sorted(expected), rtol=1e-4)


def test_local_response_normalization_is_the_tutorials():
    module = import_part(CIFAR10, "model")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 16)).astype("f") * 50
    expected = np.empty_like(x)
    for channel in range(16):
        around = x[..., max(0, channel - 4) : channel + 5]
        norm = (1.0 + 0.001 / 9 * (around**2).sum(-1)) ** 0.75
        expected[..., channel] = x[..., channel] / norm
    layer = module.LocalResponseNormalization()
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)
    half = module.LocalResponseNormalization(dtype="bfloat16")(x)
    assert half.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(half, "float32"), expected, rtol=0.02)


def test_images_are_cropped_in_the_middle_and_standardized():
    module = import_part(CIFAR10, "model")
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    middle = module.crop(image, 24)
    np.testing.assert_array_equal(middle, image[:, 4:28, 4:28])
    found = module.standardize(middle)
    np.testing.assert_allclose(found, tf.image.per_image_standardization(middle), atol=1e-5)
    uniform = module.standardize(np.full((1, 24, 24, 3), 9, "uint8"))
    np.testing.assert_array_equal(uniform, np.zeros((1, 24, 24, 3)))
    with pytest.raises(KerasdistError, match="Expected at least 24 x 24"):
        module.crop(image[:, :20], 24)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_size": 33}, "crop_size=33`. Expected 1 to 32"),
        ({"crop_size": 0}, "crop_size=0`. Expected 1 to 32"),
        ({"num_train": 0}, "num_train=0`. Expected at least 1"),
        ({"num_validation": -1}, "num_validation=-1`. Expected at least 1"),
        ({"optimizer": "adamm"}, "optimizer='adamm'`"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(KerasdistError, match=re.escape(message)):
        kerasdist.load_recipe("cifar10", **settings)


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [("adam", "Adam", None), ("momentum", "SGD", 0.9), ("sgd", "SGD", 0.0)],
)
def test_optimizers_have_the_learning_rate(name, kind, momentum):
    settings = {"optimizer": name, "momentum": momentum, "learning_rate": 0.25}
    recipe = kerasdist.load_recipe(
        "cifar10", source="synthetic", schedule="constant", weight_decay_on="kernels", **settings
    )
    optimizer = recipe.build_model().optimizer
    assert type(optimizer).__name__ == kind
    assert float(optimizer.learning_rate) == 0.25
    assert getattr(optimizer, "momentum", None) == momentum


def test_a_saved_model_gives_the_same_outputs(tmp_path):
    recipe = kerasdist.load_recipe(
        "cifar10", preset="tutorial", source="synthetic", num_train=20, crop_size=8
    )
    model, images = recipe.build_model(), recipe.build_data("train")
    kerasdist.evaluate(model, images)
    expected = model(images["image"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.crop_size == 8
    np.testing.assert_array_equal(loaded(images["image"]), expected)
