"""The CIFAR-10 recipe's networks, presets and augmentation."""

import importlib
import math
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data"
needs_files = pytest.mark.skipif(
    not (REAL / "cifar-10-batches-bin").is_dir(), reason="the real CIFAR-10 is not here"
)


def part(name):
    """A file of the recipe, imported as kerasdist imports it."""
    package = type(kerasdist.load_recipe("cifar10").config).__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.{name}")


@pytest.fixture(scope="module")
def augmentation():
    return part("augmentation")


def load(**settings):
    return kerasdist.load_recipe("cifar10", source="synthetic", num_train=64, **settings)


def images(num=40, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)


SEED = tf.constant([5, 7], tf.int64)


# The numbers of the whitening layer.


@needs_files
def test_the_whitening_numbers_are_those_of_the_training_images():
    whitening = part("whitening")
    data = kerasdist.load_recipe("cifar10", data_dir=str(REAL)).build_data("train")["image"]
    pixels = data.reshape(-1, 3)
    np.testing.assert_allclose(pixels.mean(axis=0), whitening.MEAN, atol=2e-3)
    np.testing.assert_allclose(pixels.std(axis=0), whitening.DEVIATION, atol=2e-3)
    total = np.zeros((12, 12))
    for start in range(0, len(data), 5000):
        x = (data[start : start + 5000] - np.array(whitening.MEAN)) / whitening.DEVIATION
        windows = [x[:, i : 31 + i, j : 31 + j] for i in (0, 1) for j in (0, 1)]
        patches = np.concatenate(windows, axis=-1).reshape(-1, 12)
        total += patches.T @ patches / (len(data) * 31 * 31)
    np.testing.assert_allclose(total, whitening.covariance(), atol=1e-5)


def test_whitened_patches_have_unit_variance_and_no_correlation():
    whitening = part("whitening")
    directions = whitening.filters().reshape(12, 24)[:, :12]
    white = directions.T @ whitening.covariance() @ directions
    # Less than 1 where a direction is almost noise, by the constant that is added.
    assert np.all((np.diag(white) > 0.4) & (np.diag(white) < 1.01))
    assert np.abs(white - np.diag(np.diag(white))).max() < 1e-3
    np.testing.assert_array_equal(whitening.filters()[..., 12:], -whitening.filters()[..., :12])


def test_the_whitening_layer_is_never_trained():
    recipe = load(widths=(4, 4), epochs=1, batch_size=16)
    model = recipe.build_model()
    data = recipe.build_data("train")
    augment = recipe.build_augment()
    kerasdist.fit(model, data, batch_size=16, augment=augment, progress=False)
    whitening = model.get_layer("whitening").kernel
    np.testing.assert_array_equal(whitening, part("whitening").filters())
    assert all(v is not whitening for v in model.trainable_variables)


# Augmentation.


def test_take_is_what_numpy_takes(augmentation):
    x = images(3)
    random = np.random.default_rng(1)
    rows, columns = random.integers(0, 32, (3, 5)), random.integers(0, 32, (3, 7))
    expected = np.stack([image[np.ix_(r, c)] for image, r, c in zip(x, rows, columns, strict=True)])
    np.testing.assert_array_equal(augmentation.take(x, rows, columns), expected)


def test_a_shift_is_a_window_of_the_reflected_image(augmentation):
    x = images()
    found = set()
    for epoch in (0, 1):
        batch = {"image": tf.constant(x), "index": tf.range(len(x))}
        moved = augmentation.translate_and_flip(batch, SEED, tf.constant(epoch))["image"].numpy()
        assert moved.dtype == np.uint8
        for before, after in zip(x, moved, strict=True):
            padded = np.pad(before, ((2, 2), (2, 2), (0, 0)), mode="reflect")
            windows = {
                (i, j, turned): padded[i : i + 32, j : j + 32][:, :: -1 if turned else 1]
                for i in range(5)
                for j in range(5)
                for turned in (False, True)
            }
            matches = [key for key, window in windows.items() if np.array_equal(window, after)]
            assert len(matches) == 1
            found.add(matches[0])
    # All offsets come up, in both directions.
    assert {key[0] for key in found} == {key[1] for key in found} == set(range(5))


def test_each_image_is_flipped_in_every_other_epoch(augmentation):
    first = augmentation.first_flip(tf.range(10_000), seed=3).numpy()
    assert set(first.tolist()) == {0, 1}
    assert 0.48 < first.mean() < 0.52
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05
    other = augmentation.first_flip(tf.range(10_000), seed=4).numpy()
    assert 0.45 < np.mean(first == other) < 0.55
    x = images(20)

    def flipped(epoch):
        batch = {"image": tf.constant(x), "index": tf.range(20)}
        moved = augmentation.translate_and_flip(
            batch, SEED, tf.constant(epoch), pixels=0, first_flips=3
        )
        return [not np.array_equal(a, b) for a, b in zip(x, moved["image"].numpy(), strict=True)]

    assert flipped(0) == (first[:20] == 1).tolist()
    assert flipped(1) == (first[:20] == 0).tolist()
    assert flipped(2) == flipped(0)


def test_a_cutout_is_a_square_of_the_mean_colour_within_the_image(augmentation):
    x = images(60)
    batch = {"image": tf.constant(x), "index": tf.range(len(x))}

    def moved(**options):
        return augmentation.translate_and_flip(batch, SEED, tf.constant(0), **options)["image"]

    plain, cut = moved().numpy(), moved(cutout=12).numpy()
    assert cut.dtype == np.uint8
    mean = np.round(part("whitening").MEAN).astype("uint8")
    corners = set()
    for before, after in zip(plain, cut, strict=True):
        rows, columns = (
            np.any(before != after, axis=axes).nonzero()[0] for axes in ((1, 2), (0, 2))
        )
        top, left = rows.min(), columns.min()
        expected = before.copy()
        expected[top : top + 12, left : left + 12] = mean
        np.testing.assert_array_equal(after, expected)
        assert (np.ptp(rows), np.ptp(columns)) == (11, 11)
        corners.add((int(top), int(left)))
    assert len(corners) > 40


def test_the_tutorials_distortions(augmentation):
    """An image is a crop, perhaps flipped, plus a brightness, times a contrast around the mean."""
    x = images(60)
    outputs = augmentation.tutorial({"image": tf.constant(x)}, SEED)["image"].numpy()
    assert outputs.shape == (60, 24, 24, 3)
    assert outputs.dtype == np.float32
    tops, turns, brightness, contrasts = [], [], [], []
    for before, after in zip(x.astype(np.float64), outputs.astype(np.float64), strict=True):
        best = None
        for top in range(9):
            for left in range(9):
                for turned in (False, True):
                    window = before[top : top + 24, left : left + 24][:, :: -1 if turned else 1]
                    centred = window - window.mean(axis=(0, 1))
                    wanted = after - after.mean(axis=(0, 1))
                    contrast = (centred * wanted).sum() / (centred**2).sum()
                    error = np.abs(contrast * centred - wanted).max()
                    if best is None or error < best[0]:
                        shift = after.mean(axis=(0, 1)) - window.mean(axis=(0, 1))
                        best = (error, top, turned, shift, contrast)
        assert best[0] < 1e-2
        assert np.ptp(best[3]) < 1e-2  # One brightness for the three channels.
        tops.append(best[1])
        turns.append(best[2])
        brightness.append(best[3].mean())
        contrasts.append(best[4])
    assert set(tops) == set(range(9))
    assert 10 < sum(turns) < 50
    assert -63 <= min(brightness) < -40
    assert 40 < max(brightness) < 63
    assert 0.2 <= min(contrasts) < 0.5
    assert 1.5 < max(contrasts) < 1.8


@pytest.mark.parametrize("preset", ["fast", "tutorial"])
def test_augmentation_depends_on_the_seed_alone(preset):
    augment = load(preset=preset).build_augment()
    batch = {"image": tf.constant(images(6)), "index": tf.range(6), "label": tf.zeros(6, tf.int64)}
    epoch = {"epoch": tf.constant(0, tf.int64)} if preset == "fast" else {}
    one, again = (augment(batch, SEED, **epoch)["image"].numpy() for _ in range(2))
    other = augment(batch, SEED + 1, **epoch)["image"].numpy()
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


# The presets.


def multiply_adds(model, image_size):
    """Of the convolutions and dense layers, forward, for one image."""
    inputs = keras.Input((image_size, image_size, 3), dtype="uint8")
    functional = keras.Model(inputs, model.call(inputs))
    total = 0
    for layer in functional.layers:
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense)):
            outputs = math.prod(d for d in layer.output.shape if d is not None)
            total += outputs * math.prod(layer.kernel.shape[:-1])
    return total


def test_the_fast_network_costs_at_most_26_million_multiply_adds():
    assert multiply_adds(load().build_model(), 32) <= 26_000_000


def test_the_later_convolutions_of_a_group_of_three_are_a_residual():
    model = load(widths=(8, 12), convolutions=3).build_model()
    model(images(4))
    for layer in model.blocks:
        if layer.name.endswith(("_2_conv", "_3_conv")):
            layer.kernel.assign(layer.kernel * 0)
    by_name = {layer.name: layer for layer in (*model.blocks, model.whitening)}
    whitening = part("whitening")
    outputs = (images(4) - np.float32(whitening.MEAN)) / np.float32(whitening.DEVIATION)
    outputs = keras.ops.gelu(by_name["whitening"](outputs))
    for group in ("group1", "group2"):
        outputs = by_name[f"{group}_1_pool"](by_name[f"{group}_1_conv"](outputs))
        first = keras.ops.gelu(by_name[f"{group}_1_norm"](outputs))
        outputs = keras.ops.gelu(first)  # and nothing of the others
    expected = model.logits(model.pool(outputs)) / 9
    np.testing.assert_allclose(model(images(4)), expected, rtol=1e-5, atol=1e-6)


def test_the_tutorials_network_costs_18_million_multiply_adds():
    assert round(multiply_adds(load(preset="tutorial").build_model(), 32) / 1e6) == 18


def test_the_tutorial_preset_has_the_tutorials_settings():
    config = load(preset="tutorial").config
    assert (config.batch_size, config.epochs, config.ema) == (128, 256, 0.9999)
    rate = load(preset="tutorial").build_model().optimizer._learning_rate
    rates = [float(rate(step)) for step in (0, 136_717, 136_718, 273_436)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.001], rtol=1e-6)


def plain_tutorial(weights, x):
    """The tutorial's network in TensorFlow's own operations, on 24 by 24 images."""
    kernel1, bias1, kernel2, bias2, w3, b3, w4, b4, w5, b5 = weights
    x = tf.map_fn(tf.image.per_image_standardization, x)
    norm = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
    hidden = tf.nn.relu(tf.nn.conv2d(x, kernel1, 1, "SAME") + bias1)
    hidden = tf.nn.lrn(tf.nn.max_pool2d(hidden, 3, 2, "SAME"), **norm)
    hidden = tf.nn.lrn(tf.nn.relu(tf.nn.conv2d(hidden, kernel2, 1, "SAME") + bias2), **norm)
    hidden = tf.reshape(tf.nn.max_pool2d(hidden, 3, 2, "SAME"), (x.shape[0], -1))
    hidden = tf.nn.relu(tf.nn.relu(hidden @ w3 + b3) @ w4 + b4)
    return hidden @ w5 + b5


def plain_loss(weights, x, y):
    logits = plain_tutorial(weights, x)
    data = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return data + 0.004 * (tf.nn.l2_loss(weights[4]) + tf.nn.l2_loss(weights[6]))


def test_the_tutorial_preset_computes_the_tutorials_loss_step_and_average():
    """Three steps of SGD and the average with its warm-up, against a plain loop."""
    recipe = load(preset="tutorial", steps=3, batch_size=8, epochs=1)
    model = recipe.build_model()
    x = images(24).astype(np.float32)[:, 4:28, 4:28]
    y = np.arange(24) % 10
    kerasdist.evaluate(model, {"image": x, "label": y})  # Builds it.
    weights = [tf.Variable(w) for w in model.get_weights()]
    initial = float(plain_loss(weights, x[:8], y[:8]))
    decay = sum(float(tf.reduce_sum(tf.square(weights[i]))) for i in (4, 6)) * 0.002
    assert initial == pytest.approx(math.log(10) + decay, rel=0.01)  # As in any log of 2017.
    averages = [w.numpy().astype(np.float64) for w in weights]
    losses = []
    for step in range(3):
        with tf.GradientTape() as tape:
            loss = plain_loss(weights, x[8 * step : 8 * step + 8], y[8 * step : 8 * step + 8])
        losses.append(float(loss))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        rate = min(0.9999, (1 + step + 1) / (10 + step + 1))
        averages = [
            rate * a + (1 - rate) * w.numpy() for a, w in zip(averages, weights, strict=True)
        ]
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])

    history = kerasdist.fit(
        model,
        {"image": x, "label": y},
        batch_size=8,
        shuffle=False,
        ema=recipe.config.ema,
        callbacks=[Watch()],
        progress=False,
    )
    # The log is the mean over the epoch so far.
    np.testing.assert_allclose(seen, np.cumsum(losses) / [1, 2, 3], rtol=1e-5)
    for ours, theirs in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    for ours, theirs in zip(history.ema_weights, averages, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_label_smoothing_is_that_of_keras():
    loss = kerasdist.SmoothedCrossentropy(0.2)
    logits = np.random.default_rng(0).normal(size=(7, 10)).astype("float32")
    labels = np.arange(7)
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    expected = keras_loss(np.eye(10, dtype="float32")[labels], logits)
    np.testing.assert_allclose(loss(labels, logits), expected, rtol=1e-6)


@pytest.mark.parametrize("preset", ["fast", "tutorial"])
def test_a_preset_trains_and_its_model_is_saved_and_loaded(preset, tmp_path):
    recipe = load(preset=preset, epochs=1, batch_size=16)
    data = recipe.build_data("train")
    history = kerasdist.fit(
        recipe.build_model,
        data,
        validation_data=data,
        batch_size=16,
        augment=recipe.build_augment(),
        run_dir=tmp_path / "run",
        progress=False,
    )
    loaded = keras.models.load_model(tmp_path / "run" / "final.keras")
    np.testing.assert_array_equal(loaded(data["image"]), history.model(data["image"]))


def test_settings_out_of_range_are_refused():
    for settings in ({"widths": ()}, {"widths": (0,)}, {"crop_size": 33}, {"label_smoothing": 2.0}):
        with pytest.raises(kerasdist.KerasdistError, match=next(iter(settings))):
            load(**settings)


def test_every_preset_is_known_to_the_settings():
    for name in part("config").PRESETS:
        assert load(preset=name).config.preset == name
