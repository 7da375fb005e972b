"""From a folder to a trained, evaluated and exported classifier, by the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.own_data import IMAGE_CLASSES, write_images, write_sounds

SUFFIXES = (".png", ".jpg", ".bmp", ".gif")
SOUND_KINDS = ((8000, 2, 1), (16000, 3, 2), (8000, 1, 1), (11025, 4, 1))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run of a folder of images, in the folder that holds both."""
    place = tmp_path_factory.mktemp("photos")
    write_images(place / "photos", 30, SUFFIXES)
    return trained(place, "photos", "--epochs", "12", "--deterministic")


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    place = tmp_path_factory.mktemp("sounds")
    write_sounds(place / "sounds", 30, SOUND_KINDS)
    return trained(place, "sounds", "--epochs", "12", "--batch-size", "8")


def trained(place, name, *options):
    """Runs `kerasdist fit` in a process of its own, as people do."""
    argv = [sys.executable, "-m", "kerasdist", "fit", name, *options]
    done = subprocess.run(argv, cwd=place, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (place / "out.txt").write_text(done.stdout)
    return place


def environment():
    return {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}


def result(place, name):
    return json.loads((place / "runs" / name / "0001" / "result.json").read_text())


@pytest.mark.parametrize("name", ["photos", "sounds"])
def test_the_report_names_the_files_of_the_worst_and_best_examples(name, request):
    place = request.getfixturevalue(name)
    run = place / "runs" / name / "0001"
    found = json.loads((run / "evaluation.json").read_text())
    examples = [*found["worst"], *found["best"]]
    files = [each["values"]["file"] for each in examples]
    assert len(set(files)) >= 8
    assert all((place / name / file).is_file() for file in files)
    assert [file.split("/")[0] for file in files] == [each["label"] for each in examples]
    report = (run / "report.html").read_text()
    assert all(f'<span class="soft">file</span> {file}</figure>' in report for file in files)


def test_a_folder_of_images_is_learnt(photos):
    assert result(photos, "photos")["val_accuracy"] >= 0.9
    lines = (photos / "out.txt").read_text().splitlines()
    assert lines[0] == "found      images of 3 classes: bar 30, disc 30, ring 30"
    assert lines[1] == "sizes      28 x 24; resized to 28 x 24"
    assert lines[2].startswith("split      72 for training, 18 for validation")
    assert any("an epoch takes about" in line for line in lines)


def test_a_folder_of_sounds_is_learnt(sounds):
    assert result(sounds, "sounds")["val_accuracy"] >= 0.9
    assert "found      WAV files of 2 classes: high 30, low 30" in (sounds / "out.txt").read_text()


def test_the_run_needs_no_folder(command, photos, monkeypatch, tmp_path):
    """After the folder has moved: predict and export as before, evaluate with `--data-dir`."""
    run = photos / "runs" / "photos" / "0001"
    config = json.loads((run / "config.json").read_text())
    assert config["recipe"] == "template:image"
    assert config["settings"]["class_names"] == list(IMAGE_CLASSES)
    expected = result(photos, "photos")["val_accuracy"]
    (found,) = command("evaluate", run, "--json").objects
    assert found["accuracy"] == pytest.approx(expected)
    moved = photos / "moved"
    (photos / "photos").rename(moved)
    try:
        done = command("evaluate", run)
        assert done.code == 2
        assert "photos' with the images does not exist" in done.err
        (found,) = command("evaluate", run, "--data-dir", moved, "--json").objects
        assert found["accuracy"] == pytest.approx(expected)
        (found,) = command("evaluate", run, "--data-dir", moved, "--split", "all", "--json").objects
        assert [row["examples"] for row in found["classes"]] == [30, 30, 30]
        done = command("evaluate", run, "--data-dir", moved, "--split", "test")
        assert done.code == 2
        assert "There is no test data for the run" in done.err
        done = command("predict", run, moved / "ring" / "0.png", moved / "bar")
        assert done.code == 0
        assert len(done.lines) == 31
        assert done.lines[0].startswith(f"{moved / 'ring' / '0.png'}: ring ")
        assert kerasdist.load(run).output_shape == (None, 3)
        check_served(
            command,
            run,
            [moved / n / f"{i}{s}" for n in IMAGE_CLASSES for i, s in enumerate(SUFFIXES)],
            0.03,
        )
    finally:
        moved.rename(photos / "photos")


@pytest.mark.parametrize("kind", ["photos", "sounds"])
def test_evaluate_uses_no_file_that_was_trained_on(command, kind, request, tmp_path):
    """After a folder has grown, from 30 files of a class to 45, or shrunk."""
    place = request.getfixturevalue(kind)
    run = place / "runs" / kind / "0001"
    config = kerasdist.load_recipe(run).config
    trained = set(folder_of(kind, place / kind, config).train.names)
    other = tmp_path / "other"
    shutil.copytree(place / kind, other)
    for path in sorted(other.glob("*/1*")):  # 11 of 30.
        shutil.copy(path, path.with_stem(f"new{path.stem}"))
        shutil.copy(path, path.with_stem(f"newer{path.stem}"))
    grown = folder_of(kind, other, config).validation.names
    assert not trained & {*grown}
    assert any("/new" in name for name in grown)
    (found,) = command("evaluate", run, "--data-dir", other, "--json").objects
    assert sum(row["examples"] for row in found["classes"]) == len(grown)
    for path in other.glob("*/*[0-5].*"):
        path.unlink()
    assert not trained & {*folder_of(kind, other, config).validation.names}
    # Training it again on the other folder keeps the split, too.
    again = kerasdist.load_recipe(run, data_dir=str(other)).config
    assert again.split == config.split
    assert again.num_train == len(folder_of(kind, other, config).train)


def folder_of(kind, path, config):
    """What the recipe reads for a run."""
    make = kerasdist.ImageFolder if kind == "photos" else kerasdist.SoundFolder
    return make(path, class_names=config.class_names, split=config.split)


def test_a_run_that_did_not_keep_its_split_is_used_as_before(command, photos, monkeypatch):
    path = photos / "runs" / "photos" / "0001" / "config.json"
    kept = path.read_text()
    config = json.loads(kept)
    del config["settings"]["split"]
    path.write_text(json.dumps(config))
    monkeypatch.chdir(photos)
    try:
        (found,) = command("evaluate", path.parent, "--json").objects
        assert found["accuracy"] == pytest.approx(result(photos, "photos")["val_accuracy"])
        # The same command finds its run.
        done = command("fit", "photos", "--epochs", 12, "--deterministic")
        assert done.code == 0
        assert not (photos / "runs" / "photos" / "0002").exists()
    finally:
        path.write_text(kept)


def check_served(command, run, files, most):
    """The exported model tells the same of the bytes of files as `kerasdist predict`."""
    done = command("export", run, "--format", "saved_model", "--output", "served", "--json")
    (about,) = done.objects
    assert about["classes"] == list(kerasdist.load_recipe(run).config.class_names)
    assert any("a text tensor" in note for note in about["notes"])
    assert any("or use serve_files, which gives probab" in note for note in about["notes"])
    served = tf.saved_model.load("served").signatures["serve_files"]
    found = served(contents=tf.constant([path.read_bytes() for path in files]))
    answers = command("predict", run, *files, "--json", "--top", 9).objects
    for answer, name, probabilities in zip(
        answers, found["class"].numpy(), found["probabilities"].numpy(), strict=True
    ):
        assert answer["class"] == name.decode()
        for guess in answer["top"]:
            assert abs(guess["probability"] - probabilities[guess["index"]]) <= most


def test_an_export_says_if_it_decodes_files_in_another_way(command, photos, monkeypatch):
    run = photos / "runs" / "photos" / "0001"
    argv = ("export", run, "--format", "saved_model", "--json", "--output")
    (about,) = command(*argv, "as_in_training").objects
    assert not any("something else" in note for note in about["notes"])
    right = kerasdist.ImageReader.decode

    def without_bmp(reader, contents):
        tf.debugging.assert_none_equal(tf.strings.substr(contents, 0, 2), "BM")
        return right(reader, contents)

    ways = {
        "differs by": lambda reader, contents: 255 - right(reader, contents),
        ".bmp cannot be decoded there": without_bmp,
    }
    for words, decode in ways.items():
        monkeypatch.setattr(kerasdist.ImageReader, "decode", decode)
        (about,) = command(*argv, words.strip(".")).objects
        (note,) = (note for note in about["notes"] if "something else" in note)
        assert words in note
        assert str(photos / "photos") in note


def test_served_sounds_are_those_of_predict(command, sounds):
    files = sorted((sounds / "sounds").glob("*/[0-7].wav"))
    check_served(command, sounds / "runs" / "sounds" / "0001", files, 1e-4)


def test_a_keras_file_loads_in_another_process(command, sounds):
    """Only kerasdist's layer is needed: the optimizer's schedule is not in the file."""
    run, path = sounds / "runs" / "sounds" / "0001", sounds / "sounds.keras"
    done = command("export", run, "--format", "keras", "--output", path)
    assert "run `from kerasdist import LogMel`" in done.out
    assert "TypeError" not in done.out
    code = f"import keras; from kerasdist import LogMel; keras.models.load_model({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_same_bits_on_two_devices(photos):
    other = trained_with_devices(photos, 2)
    assert other["weights_sha256"] == result(photos, "photos")["weights_sha256"]


def trained_with_devices(place, count):
    argv = [sys.executable, "-m", "kerasdist", "fit", "photos", "--epochs", "12"]
    argv += ["--deterministic", "--devices", str(count), "--run-dir", f"runs/devices{count}"]
    subprocess.run(argv, cwd=place, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return json.loads((place / "runs" / f"devices{count}" / "result.json").read_text())


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bits(photos):
    argv = [sys.executable, "-m", "kerasdist", "fit", "photos", "--epochs", "12", "--deterministic"]
    argv += ["--save-every", "2", "--run-dir", "runs/killed"]
    process = subprocess.Popen(
        argv, cwd=photos, env=environment(), stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if "step 10," in line:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(argv, cwd=photos, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "continuing after step" in done.stdout
    found = json.loads((photos / "runs" / "killed" / "result.json").read_text())
    assert found["weights_sha256"] == result(photos, "photos")["weights_sha256"]


def test_bad_files_are_named_before_the_training(command, tmp_path):
    folder = write_images(tmp_path / "photos", 6)
    (folder / "disc" / "2.png").write_bytes(b"<html>404")
    start = time.monotonic()
    done = command("fit", "photos", "--epochs", 1)
    assert done.code == 2
    assert "1 of 18 files in" in done.err
    assert "disc/2.png is not an image: it is an HTML page" in done.err
    assert time.monotonic() - start < 5
    assert not Path("runs").exists()
    done = command("fit", "photos", "--epochs", 1, "--skip-bad")
    assert done.code == 0
    assert "skipped    1 file: disc/2.png is not an image" in done.out
    settings = json.loads(Path("runs/photos/0001/config.json").read_text())["settings"]
    assert settings["skipped"] == ["disc/2.png"]
    (event,) = (
        e
        for e in command(
            "fit", "photos", "--epochs", 1, "--skip-bad", "--no-resume", "--json"
        ).objects
        if e["event"] == "data"
    )
    assert event["found"] == "images of 3 classes: bar 6, disc 5, ring 6"
    # Another folder: the run was trained with --skip-bad, so evaluate leaves them out, too.
    other = write_images(tmp_path / "other", 6)
    (other / "bar" / "1.png").write_bytes(b"<html>404")
    done = command("evaluate", "runs/photos/0001", "--data-dir", other, "--split", "all")
    assert done.code == 0
    assert "(all data, 17 examples, final model)" in done.out
    assert "left out 1 file: bar/1.png is not an image" in done.err


def test_evaluate_names_a_bad_file_or_leaves_it_out(command, photos, tmp_path):
    folder = write_images(tmp_path / "other", 6)
    (folder / "disc" / "2.png").write_bytes(b"<html>404")
    argv = ("evaluate", photos / "runs" / "photos" / "0001", "--data-dir", folder, "--split", "all")
    done = command(*argv)
    assert done.code == 2
    assert "1 of 18 files in" in done.err
    assert "--skip-bad" in done.err
    done = command(*argv, "--skip-bad")
    assert done.code == 0
    assert "left out 1 file: disc/2.png" in done.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fit", "photos/bar"], "holds images, but no folder of them"),
        (["fit", "photos/bar/0.png"], "is a file that kerasdist cannot train on"),
        (["fit", "photos", "--data-dir", "photos"], "Unknown option '--data-dir'"),
        (["fit", "photos", "--image-size", "0"], "Received `image_size=0`"),
        (["fit", "photos", "--validation-split", "2"], "Received `validation_split=2"),
        (["verify", "photo"], "Received the recipe 'photo'"),
    ],
)
def test_wrong_commands(command, tmp_path, argv, message):
    write_images(tmp_path / "photos", 2)
    done = command(*argv)
    assert done.code == 2
    assert message in done.err


def test_the_data_of_another_recipe_cannot_be_moved(command, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"kerasdist": "0", "recipe": "x", "settings": {}}))
    (run / "result.json").write_text(json.dumps({"status": "finished"}))
    (run / "final.keras").write_bytes(b"")
    done = command("evaluate", run, "--data-dir", tmp_path)
    assert done.code == 2
    assert "whose data is not a folder" in done.err


def test_verify_takes_a_folder(command, tmp_path):
    write_images(tmp_path / "photos", 8)
    done = command("verify", "photos", "--counts", "1,2", "--steps", 2, "--deterministic", "--json")
    (found,) = done.objects
    assert found["agree"] is True


@pytest.mark.slow
def test_many_small_images_need_little_memory():
    root = Path(__file__).parents[1]
    argv = [sys.executable, "benchmarks/folders.py", "--images", "100000", "--json"]
    done = subprocess.run(argv, cwd=root, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["images"] == 100_000
    assert found["peak_mb"] < 2000
    assert np.isfinite(found["images_per_second"])
