"""The layer that makes frequencies of samples."""

import doctest

import keras
import numpy as np

import kerasdist
from kerasdist.models.layers import log_mel


def test_the_example_runs():
    assert doctest.testmod(log_mel).failed == 0


def expected(samples, rate, mels):
    """The same by NumPy's FFT."""
    frame, step = round(0.025 * rate), round(0.01 * rate)
    padded = np.pad(samples, (0, frame - step))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    starts = range(0, len(padded) - frame + 1, step)
    spectrum = [np.fft.rfft(padded[i : i + frame] * window) / window.sum() for i in starts]
    power = np.abs(np.array(spectrum)) ** 2 @ log_mel._bands(rate, frame, mels)
    loudness = np.log10(np.maximum(power, 1e-10))
    return np.maximum(loudness - loudness.max(), -8) / 4 + 1


def test_it_computes_the_short_time_fourier_transform():
    random = np.random.default_rng(0)
    sounds = random.normal(size=(2, 3000)).astype("float32")
    found = np.asarray(kerasdist.LogMel(8000, 40)(sounds))
    assert found.shape == (2, 37, 40)
    for one, sound in zip(found, sounds, strict=True):
        np.testing.assert_allclose(one, expected(sound, 8000, 40), atol=2e-3)


def test_a_tone_is_in_its_band_and_loudness_does_not_matter():
    time = np.arange(8000) / 16000
    layer = kerasdist.LogMel(16000, 64)
    peaks = []
    for hertz in (300, 1000, 4000):
        sound = np.sin(2 * np.pi * hertz * time).astype("float32")[None]
        loud, soft = np.asarray(layer(sound)), np.asarray(layer(0.01 * sound))
        peaks.append(int(loud[0, 20].argmax()))
        assert np.abs(loud - soft)[loud > 0].max() < 1e-3
    assert peaks == sorted(peaks)
    assert len(set(peaks)) == 3


def test_silence_is_finite():
    found = np.asarray(kerasdist.LogMel(8000, 24)(np.zeros((1, 800), "float32")))
    assert np.isfinite(found).all()


def test_it_is_saved_with_a_model(tmp_path):
    samples = keras.Input((1600,))
    model = keras.Model(samples, kerasdist.LogMel(8000, 24)(samples))
    assert model.output_shape == (None, 20, 24)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    sounds = np.random.default_rng(0).normal(size=(1, 1600)).astype("float32")
    np.testing.assert_array_equal(model(sounds), again(sounds))


def test_it_computes_in_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    assert kerasdist.LogMel(8000, 24)(np.zeros((1, 800), "float32")).dtype == "float32"
