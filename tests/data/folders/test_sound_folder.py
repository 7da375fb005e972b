"""Folders of WAV files: every kind of file, of one rate and length, also in a graph."""

import doctest
import struct

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.data.folders import sound_folder, sound_reader
from tests.own_data import write_sounds, write_wav


def test_the_examples_run():
    for module in (sound_folder, sound_reader):
        assert doctest.testmod(module).failed == 0


def tone(rate, seconds=0.25, hertz=440):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def write_floats(path, samples, rate, width):
    content = samples.astype(f"<f{width}").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, rate, rate * width, width, 8 * width)
    chunks = b"WAVEfact" + struct.pack("<II", 4, len(samples))
    chunks += b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(content)) + content
    path.write_bytes(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)


RATES, FORMS = (8000, 16000, 22050, 44100), (1, 2, 3, 4, "f4", "f8")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each rate and type of samples."""
    folder = tmp_path_factory.mktemp("wavs")
    found = {}
    for rate in RATES:
        for form in FORMS:
            path = found[rate, form] = folder / f"{rate}_{form}.wav"
            if isinstance(form, int):
                write_wav(path, tone(rate), rate, form, channels=1 + form % 2)
            else:
                write_floats(path, tone(rate), rate, int(form[1]))
    return found


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_wav_is_read(files, form, rate):
    found = kerasdist.SoundReader(16000, 0.3).read(files[rate, form])
    assert (found.shape, found.dtype) == ((4800,), np.float32)
    assert not found[4001:].any()  # Filled up.
    off = 0.02 if form == 1 else 0.01  # At both ends, a tone that is cut rings.
    assert np.abs(found[100:3900] - tone(16000)[100:3900]).max() < off


def test_every_kind_of_wav_is_decoded_in_a_graph(files):
    reader = kerasdist.SoundReader(16000, 0.3)
    contents = tf.constant([path.read_bytes() for path in files.values()])
    found = tf.function(reader.decode)(contents).numpy()
    for path, sound in zip(files.values(), found, strict=True):
        np.testing.assert_allclose(sound, reader.read(path), atol=1e-5, err_msg=path.name)


def test_channels_are_averaged_and_long_sounds_cut(tmp_path):
    write_wav(tmp_path / "a.wav", tone(8000, 1.0), 8000, channels=2)
    found = kerasdist.SoundReader(8000, 0.5).read(tmp_path / "a.wav")
    np.testing.assert_allclose(found, tone(8000, 1.0)[:4000], atol=1e-4)


def test_a_file_that_ends_early_or_is_not_finite_is_refused(tmp_path):
    path = tmp_path / "a.wav"
    reader = kerasdist.SoundReader(8000, 0.1)
    write_floats(path, np.array([0.1, np.nan]), 8000, 4)
    with pytest.raises(KerasdistError, match=r"a.wav' has samples that are NaN or infinite"):
        reader.read(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(KerasdistError, match=r"a.wav' is cut short. Expected a complete WAV"):
        reader.read(path)


@pytest.mark.parametrize(
    ("rate", "seconds", "message"),
    [(0, 1, "`rate=0`"), (8000.5, 1, "a whole number"), (8000, -1, "`seconds=-1`")],
)
def test_wrong_numbers_are_refused(rate, seconds, message):
    with pytest.raises(KerasdistError, match=message):
        kerasdist.SoundReader(rate, seconds)


def test_a_folder_of_sounds(tmp_path):
    kinds = ((8000, 2, 1), (8000, 3, 2), (16000, 1, 1))
    folder = kerasdist.SoundFolder(write_sounds(tmp_path / "data", 6, kinds))
    assert (folder.class_names, folder.rate, folder.seconds) == (("high", "low"), 8000, 0.2)
    sound, label = folder.train[0]
    assert (sound.shape, int(label)) == ((1600,), 0)
    text = folder.describe()["sizes"]
    assert text.endswith("bits; read as 0.2 s, 8,000 Hz, mono")


def test_bad_files_are_left_out_only_if_asked(tmp_path):
    folder = write_sounds(tmp_path / "data", 3)
    (folder / "low" / "1.wav").write_bytes((folder / "low" / "1.wav").read_bytes()[:200])
    with pytest.raises(KerasdistError, match=r"low/1.wav is cut short\. Expected complete WAV"):
        kerasdist.SoundFolder(folder)
    assert len(kerasdist.SoundFolder(folder, skip_bad=True).all) == 5
