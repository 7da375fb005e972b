"""The recipe for folders of images with a backbone: what is frozen, when, and at which rate."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from tests.own_data import write_images

SETTINGS = {"backbone": "mobilenet_v3_small", "image_size": 32, "epochs": 5}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    file = tmp_path_factory.mktemp("weights") / "mine.weights.h5"
    kerasdist.backbone("mobilenet_v3_small", (32, 32)).save_weights(file)
    return str(file)


def recipe(**settings):
    return kerasdist.load_recipe("template:image", **SETTINGS, **settings)


def size(variables):
    return sum(int(np.prod(v.shape)) for v in variables)


def test_the_backbone_is_frozen_first(weights):
    mine = recipe(weights=weights, freeze=2, learning_rate=0.01)
    model = mine.build_model()
    assert size(model.trainable_weights) == 576 * 3 + 3
    before = np.copy(model.get_layer("backbone").get_weights()[0])
    mine.load_initial(model)
    assert not np.array_equal(before, model.get_layer("backbone").get_weights()[0])
    ((after, unfreeze),) = mine.build_stages()
    assert after == 2
    unfreeze(model)
    assert size(model.trainable_weights) > 900_000
    assert model.optimizer.get_config()["learning_rate"]["config"]["learning_rate"] == (
        pytest.approx(0.001)
    )
    # 600 pictures are drawn: 19 steps per epoch, and three epochs are left.
    assert model.optimizer.get_config()["learning_rate"]["config"]["decay_steps"] == 57


@pytest.mark.parametrize("settings", [{"weights": "x"}, {"init_from": "x"}, {}])
def test_batch_norms_of_a_trained_network_keep_their_statistics(settings):
    """Those of a network with random weights train, as everywhere: nothing else normalizes."""
    mine = recipe(**settings)
    model = mine.build_model()
    assert not mine.build_stages()
    names = ("moving_mean", "moving_variance", "gamma", "beta")
    before = {v.path: v.numpy() for v in model.weights if v.name in names}
    x = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3)).astype("uint8")
    kerasdist.fit(model, x, np.arange(4) % 3, steps=1, batch_size=4, devices=1, verbose=0)
    after = {v.path: v.numpy() for v in model.weights if v.name in names}
    assert len(before) > 100
    changed = [path for path, value in before.items() if not np.array_equal(value, after[path])]
    if settings:
        assert not changed
    else:
        assert len(changed) > 100


def test_lora_trains_small_matrices_only(weights):
    model = recipe(lora=2, weights=weights).build_model()
    trained = {v.name for v in model.get_layer("backbone").trainable_weights}
    assert trained == {"lora_kernel_a", "lora_kernel_b", "bias"}


@pytest.mark.parametrize("rank", [2, None])
def test_lora_starts_from_the_weights_that_keras_downloads(rank, monkeypatch):
    """With LoRA the backbone has more weights than what is downloaded."""
    kind, downloaded = keras.applications.MobileNetV3Small, []

    def without_network(*, weights, **options):
        network = kind(weights=None, **options)
        downloaded.extend([network] if weights == "imagenet" else [])
        return network

    monkeypatch.setattr(keras.applications, "MobileNetV3Small", without_network)
    mine = recipe(weights="imagenet", lora=rank)
    model = mine.build_model()
    mine.load_initial(model)
    backbone = model.get_layer("backbone")
    (expected,) = downloaded
    values = {v.path.removeprefix("backbone/"): v.numpy() for v in backbone.weights}
    for variable in expected.weights:
        np.testing.assert_array_equal(values[variable.path], variable.numpy())
    if rank is not None:
        names = [path for path in values if path.endswith("lora_kernel_a")]
        assert len(names) > 20
        assert all(values[name].any() for name in names)


def test_frozen_to_the_end_has_one_stage(weights):
    mine = recipe(weights=weights, freeze="all")
    assert mine.build_stages() == []
    assert size(mine.build_model().trainable_weights) == 576 * 3 + 3


def test_the_size_is_that_of_the_backbone():
    chosen = kerasdist.load_recipe("template:image", backbone="efficientnet_b1")
    assert chosen.config.shape == (240, 240)
    assert recipe().config.shape == (32, 32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": None, "freeze": 3}, r"`freeze=3` without a backbone"),
        ({"freeze": 3}, r"`freeze=3` without weights"),
        ({"weights": "x", "freeze": 0}, r"`freeze=0`\. Expected a number of epochs"),
        ({"weights": "x", "freeze": "nope"}, r"`freeze='nope'`"),
        ({"weights": "x", "freeze": 5}, r"`freeze=5` for 5 epochs: nothing would be unfrozen"),
        ({"weights": "x", "freeze": 2, "lora": 2}, r"`lora=2` and `freeze=2`"),
        ({"weights": "x", "lora": 0}, r"`lora=0`"),
        ({"lora": 2}, r"`lora=2` without weights"),
        ({"unfreeze_rate": 0.0}, r"`unfreeze_rate=0.0`"),
        ({"backbone": "mobilenet_v3_smal"}, r"Did you mean 'mobilenet_v3_small'"),
        ({"image_size": 16}, r"at least 32 x 32"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(KerasdistError, match=message):
        kerasdist.load_recipe("template:image", **{**SETTINGS, **settings})


def test_the_models_are_keras_models(tmp_path, weights):
    """So the trained file can be loaded, exported and served like any other."""
    model = recipe(lora=2, weights=weights).build_model()
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras", compile=False).output_shape == (
        None,
        3,
    )


def test_weights_of_a_run_are_trained_weights(command, tmp_path):
    write_images(tmp_path / "photos", 2)
    backbone = ("--backbone", "mobilenet_v3_small", "--image-size", 32)
    done = command("fit", "photos", *backbone, "--freeze", "--init-from", "nope", "--dry-run")
    assert done.code == 2
    assert "'nope'" in done.err
    assert "without weights" not in done.err
