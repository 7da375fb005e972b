"""recipes/audio: reading, features, augmentation, padding, the provider, the synthetic set."""

import json
import shutil
import struct
import wave
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.data import streams
from kerasdist.recipes.importing import import_part
from kerasdist.recipes.places import bundled

RECIPE = bundled()["audio"]
# Fast enough for a test.
SMALL = {"source": "synthetic", "num_train": 60, "num_validation": 40, "units": 6, "layers": 1}


def part(name):
    return import_part(RECIPE, name)


def write_wav(path, samples, *, rate=8000, channels=1, width=2):
    with wave.open(str(path), "wb") as clip:
        clip.setparams((channels, width, rate, 0, "NONE", ""))
        clip.writeframes(np.asarray(samples, "<i2").tobytes())
    return path


@pytest.fixture
def folder(tmp_path):
    """Recordings 3 to 6 of two digits by two speakers: 3 and 4 are for testing."""
    random = np.random.default_rng(0)
    path = tmp_path / "recordings"
    path.mkdir()
    for digit in (0, 7):
        for speaker in ("ann", "bob"):
            for index in (3, 4, 5, 6):
                num = 900 + 100 * index + digit
                samples = random.integers(-3000, 3000, num)
                write_wav(path / f"{digit}_{speaker}_{index}.wav", samples)
    return tmp_path


def load(folder, **settings):
    return kerasdist.load_recipe("audio", data_dir=str(folder), **settings)


def test_the_official_split_is_one_of_names(folder):
    recipe = load(folder)
    assert recipe.source() == "files"
    train, test = recipe.build_data("train"), recipe.build_data("validation")
    assert (len(train), len(test)) == (8, 8)
    # 1,200 and 1,300 samples, and seven more of the digit 7: a frame every 80.
    assert test.lengths.tolist() == [15, 17, 15, 17, 16, 17, 16, 17]
    assert test.others["label"].tolist() == [0] * 4 + [7] * 4
    assert part("data").build_groups(recipe.config, "validation") == {
        "speaker": ["ann", "ann", "bob", "bob"] * 2
    }
    assert load(folder / "recordings").source() == "files"


def test_a_speaker_can_be_held_out(folder):
    recipe = load(folder, hold_out_speaker="bob")
    build_groups = part("data").build_groups
    groups = [build_groups(recipe.config, split)["speaker"] for split in ("train", "validation")]
    assert groups == [["ann"] * 8, ["bob"] * 8]
    with pytest.raises(KerasdistError, match=r"`hold_out_speaker='eve'`.*ann, bob"):
        load(folder, hold_out_speaker="eve").build_data("train")


def _cut_short(path):
    path.write_bytes(path.read_bytes()[:-200])


def _no_samples(path):
    write_wav(path, [])


BROKEN = {
    "is empty": lambda path: path.write_bytes(b""),
    "cannot be read": lambda path: path.write_bytes(b"RIFF, not"),
    "is cut short": _cut_short,
    "has 2 channels": lambda path: write_wav(path, np.zeros(800), channels=2),
    "has 16000 samples per second": lambda path: write_wav(path, np.zeros(800), rate=16000),
    "has samples of 8 bits": lambda path: write_wav(path, np.zeros(800), width=1),
    "has no samples": _no_samples,
    "does not tell its digit": lambda path: path.rename(path.with_name("0_george_a.wav")),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_bad_file_is_named_or_left_out(folder, reason, capsys):
    path = folder / "recordings" / "0_ann_5.wav"
    BROKEN[reason](path)
    with pytest.raises(KerasdistError, match=f"0_(ann_5|george_a).wav', .*{reason}"):
        load(folder).build_data("train")
    for _ in range(2):
        assert len(load(folder, skip_bad=True).build_data("train")) == 7
    told = capsys.readouterr().err
    assert told.count("skipped 1 of 16 files; the first is the file ") == 1
    assert reason in told


def test_a_folder_without_clips_is_an_error(tmp_path):
    with pytest.raises(KerasdistError, match="no FSDD"):
        load(tmp_path).build_data("train")


def test_frames_are_those_of_numpy():
    """The same with NumPy alone: windows, FFT, mel bands, logarithm, normalisation, slopes."""
    samples = np.random.default_rng(1).integers(-9000, 9000, 1003).astype(np.int16)
    found = part("features").log_mel(samples, mels=20)
    sound = samples.astype("float64") / 32768
    sound = sound - 0.97 * np.concatenate([sound[:1], sound[:-1]])
    num = -(-len(sound) // 80)
    sound = np.pad(sound, (0, 200 + 80 * num - len(sound)))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    windows = np.stack([sound[80 * i : 80 * i + 200] * window for i in range(num)])
    power = np.abs(np.fft.rfft(windows, 256)) ** 2
    hertz = np.linspace(0, 4000, 129)

    def to_mel(f):
        return 1127 * np.log1p(np.asarray(f) / 700)

    edges = np.linspace(to_mel(60), to_mel(3900), 22)
    up = (to_mel(hertz)[:, None] - edges[None, :-2]) / np.diff(edges)[:-1]
    down = (edges[None, 2:] - to_mel(hertz)[:, None]) / np.diff(edges)[1:]
    bands = np.maximum(0, np.minimum(up, down))
    bands[0] = 0
    frames = np.log(power @ bands + 1e-8)
    frames = (frames - frames.mean()) / np.sqrt(frames.var() + 1e-3)
    padded = np.pad(frames, ((2, 2), (0, 0)), "edge")
    slopes = (2 * (padded[4:] - padded[:-4]) + padded[3:-1] - padded[1:-3]) / 10
    np.testing.assert_allclose(found, np.concatenate([frames, slopes], 1), atol=2e-3)
    assert part("features").log_mel(samples, mels=20, deltas=False).shape == (num, 20)


def test_a_clip_shorter_than_a_frame_is_one_frame():
    assert part("features").log_mel(np.ones(30, np.int16)).shape == (1, 80)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("stack", [1, 3])
def test_padding_changes_no_result(cell, stack):
    random = np.random.default_rng(0)
    clips = [random.normal(size=(n, 8)).astype("float32") for n in (1, 4, 7, 12)]
    model = part("model").AudioRNN(cell, units=5, layers=2, stack=stack)
    batch = part("data").pad(clips)
    frames = np.pad(batch["frames"], ((0, 0), (0, 9), (0, 0)))
    together = model(frames, batch["length"]).numpy()
    # Whatever lies behind a clip, too.
    noisy = np.where(frames == 0, 5, frames).astype("float32")
    np.testing.assert_allclose(model(noisy, batch["length"]), together, atol=1e-6)
    for clip, row in zip(clips, together, strict=True):
        alone = model(clip[None], np.array([len(clip)], "int32"))
        np.testing.assert_allclose(alone[0], row, atol=1e-6)


def augmented(seed, frames, length):
    batch = {"frames": tf.constant(frames), "length": tf.constant(length), "label": 0}
    return part("augmentation").speech(batch, tf.constant(seed), mels=frames.shape[2] // 2)


def test_augmentation_keeps_clips_whole_and_depends_on_its_seed_alone():
    random = np.random.default_rng(0)
    lengths = np.array([1, 2, 30, 60], "int32")
    frames = random.normal(size=(4, 60, 40)).astype("float32")
    frames *= (np.arange(60) < lengths[:, None])[..., None]
    seen = [augmented([1, i], frames, lengths) for i in range(30)]
    for batch in seen:
        new = batch["length"].numpy()
        assert (new >= 1).all()
        assert (new <= np.ceil(lengths / 0.85)).all()
        assert (new >= np.maximum(1, lengths * 0.8 / 1.15 - 2)).all()
        assert batch["frames"].shape == (4, new.max(), 40)
        for row, n in zip(batch["frames"].numpy(), new, strict=True):
            assert not row[n:].any()
            assert np.isfinite(row).all()
            # Values are moved and masked, and never mixed.
            assert np.isin(row[row != 0], frames).all()
    assert len({tuple(batch["length"].numpy()) for batch in seen}) > 20
    again = augmented([1, 3], frames, lengths)
    np.testing.assert_array_equal(again["frames"], seen[3]["frames"])
    # An example's augmentation is its own: the lengths of the others do not change it.
    longer = np.pad(frames, ((0, 0), (0, 7), (0, 0)))
    other = augmented([1, 3], longer, lengths)["frames"]
    np.testing.assert_array_equal(other, seen[3]["frames"])


def fit(replicas, epochs=2, **options):
    recipe = kerasdist.load_recipe("audio", **SMALL, batch_size=16, epochs=epochs)
    return kerasdist.fit(
        recipe.build_model,
        recipe.build_data("train"),
        batch_size=16,
        epochs=epochs,
        augment=recipe.build_augment(),
        devices=replicas,
        shards=4,
        seed=0,
        progress=False,
        **options,
    )


def test_the_same_bits_on_any_number_of_devices_and_one_compilation(engines):
    """With masks, grouping by length, augmentation and dropout."""
    first, *others = (
        [w.tobytes() for w in fit(n, deterministic=True).model.get_weights()] for n in (1, 2, 4)
    )
    assert others == [first, first]
    assert [e.train_loop.experimental_get_tracing_count() for e in engines] == [1, 1, 1]


@pytest.mark.slow
def test_in_float64_the_same_weights_on_any_number_of_devices():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    first, *others = (fit(n, epochs=1).model.get_weights() for n in (1, 2, 4))
    for weights in others:
        for mine, its in zip(weights, first, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-9)


def test_the_synthetic_set_is_a_function_of_its_seed_and_its_splits_differ():
    make = part("synthetic").make_synthetic
    clips, labels = make(40, (0, 0))
    again, _ = make(40, (0, 0))
    assert all(np.array_equal(a, b) for a, b in zip(clips, again, strict=True))
    other, _ = make(40, (0, 1))
    assert not {c.tobytes() for c in clips} & {c.tobytes() for c in other}
    assert np.bincount(labels).tolist() == [4] * 10
    assert len({len(clip) for clip in clips}) > 30
    assert all(2000 <= len(clip) <= 6000 for clip in clips)


# The provider of old.


def provider(folder, pattern="*.wav", batch_size=5):
    return part("provider").AudioDataProviderNumpy(str(folder / "recordings" / pattern), batch_size)


def read_all(source):
    return list(iter(source.get_batch_data, None))


def test_fit_gets_the_providers_batches_in_order(folder):
    expected = read_all(provider(folder))
    assert [len(label) for _, _, label in expected] == [5, 5, 5, 1]
    stream = streams.open_stream(provider(folder))
    for _ in range(2):  # Two passes.
        opened = stream.open(0, 0)
        found = []
        while opened is not None:  # A new shape ends a dataset; the next has room for it.
            found += list(opened.as_numpy_iterator())
            opened = stream.reopen()
        for mine, its in zip(found, expected, strict=True):
            for one, other in zip(mine, its, strict=True):
                np.testing.assert_array_equal(one, other)
    stream.close()


def test_the_command_line_trains_with_the_provider(command, folder):
    pattern = str(folder / "recordings" / "*.wav")
    done = command(
        *("fit", "--model", f"{RECIPE}/model.py:AudioRNN", "--model.units", 4),
        *("--data", f"{RECIPE}/provider.py:AudioDataProviderNumpy"),
        *("--data.data-pattern", pattern, "--batch-size", 8, "--epochs", 2, "--quiet"),
        *("--run-dir", "run"),
    )
    assert (done.code, done.out) == (0, "")
    result = json.loads(Path("run/result.json").read_text())
    assert (result["steps"], result["examples_seen"]) == (4, 32)


def test_a_provider_without_files_or_with_a_bad_one(folder):
    with pytest.raises(KerasdistError, match="which no file matches"):
        provider(folder, "*.mp3")
    (folder / "recordings" / "7_bob_6.wav").write_bytes(b"")
    model = part("model").AudioRNN(units=4)
    with pytest.raises(KerasdistError, match=r"7_bob_6\.wav', which is empty"):
        kerasdist.fit(model, provider(folder), progress=False)


# Commands.


def test_fit_evaluate_and_predict(command, folder):
    fitting = ("--data-dir", folder, "--units", 4, "--epochs", 1, "--quiet", "--run-dir", "run")
    assert command("fit", "audio", *fitting).code == 0
    (found,) = command("evaluate", "run", "--json").objects
    assert [row["name"] for row in found["groups"]["speaker"]] == ["ann", "bob"]
    assert found["classes"][7]["examples"] == 4
    clips = [folder / "recordings" / f"{name}.wav" for name in ("7_ann_3", "0_bob_6")]
    together = command("predict", "run", *clips, "--json").objects
    assert [Path(line["file"]).stem for line in together] == ["7_ann_3", "0_bob_6"]
    for clip, line in zip(clips, together, strict=True):
        (alone,) = command("predict", "run", clip, "--json").objects
        assert alone["class"] == line["class"]
        assert alone["probability"] == pytest.approx(line["probability"], abs=1e-5)


def test_the_real_clips(shared_data):
    recipe = kerasdist.load_recipe("audio", data_dir=shared_data)
    train, test = recipe.build_data("train"), recipe.build_data("validation")
    assert (len(train), len(test)) == (2700, 300)
    assert np.bincount(test.others["label"]).tolist() == [30] * 10
    groups = part("data").build_groups(recipe.config, "validation")["speaker"]
    assert sorted(set(groups)) == ["george", "jackson", "lucas", "nicolas", "theo", "yweweler"]


def test_a_header_that_lies_about_its_size_is_found_out(folder):
    path = folder / "recordings" / "0_ann_5.wav"
    content = bytearray(path.read_bytes())
    content[40:44] = struct.pack("<I", 10**9)
    path.write_bytes(content)
    with pytest.raises(KerasdistError, match=r"0_ann_5\.wav', which is cut short"):
        load(folder).build_data("train")
    shutil.copy(folder / "recordings" / "0_ann_6.wav", path)
    assert len(load(folder, skip_bad=True).build_data("train")) == 8
