"""`kerasdist predict`: files to classes and probabilities, or to values."""

import importlib
import json
import os
import pickle
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.cli.commands.skipped_files import SkippedFiles
from kerasdist.recipes.importing import import_part
from tests import classifier_recipe

predict_command = importlib.import_module("kerasdist.cli.commands.predict")

NAMES = ("low", "middle", "high")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    recipe = classifier_recipe.write(folder / "small")
    path = folder / "run"
    assert main.main(["fit", str(recipe), "--quiet", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def images(run):
    return kerasdist.load_recipe(run / "config.json").build_data("validation")["image"]


@pytest.fixture(scope="module")
def probabilities(run, images):
    logits = kerasdist.predict(run, {"image": images}).astype("float64")
    powers = np.exp(logits)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture
def folder(tmp_path, images):
    """Five examples whose names are not in the order they are written, and other files."""
    path = tmp_path / "clips"
    (path / "inside").mkdir(parents=True)
    for i in (3, 0, 4, 1, 2):
        np.savetxt(path / f"{i}.{'TXT' if i == 1 else 'txt'}", images[i, :, :, 0])
    (path / "notes.md").write_text("not an example")
    (path / ".hidden.txt").write_text("not an example")
    return path


def test_a_folder_is_read_in_order_and_the_json_has_the_likeliest_classes(
    command, run, folder, probabilities
):
    done = command("predict", run, "--json", folder, "--top", 2)
    assert (done.code, done.err) == (0, "")
    files = [f"{i}.{'TXT' if i == 1 else 'txt'}" for i in range(5)]
    assert [o["file"] for o in done.objects] == [str(folder / name) for name in files]
    for found, expected in zip(done.objects, probabilities, strict=False):
        order = np.argsort(-expected)
        assert [g["index"] for g in found["top"]] == order[:2].tolist()
        assert [g["class"] for g in found["top"]] == [NAMES[i] for i in order[:2]]
        values = [g["probability"] for g in found["top"]]
        assert values == pytest.approx(expected[order[:2]], rel=1e-5)
        assert (found["class"], found["probability"]) == (NAMES[order[0]], values[0])


def test_several_files_are_answered_in_their_order(command, run, folder, probabilities):
    done = command("predict", run, folder / "2.txt", folder / "0.txt", "--batch-size", 1)
    assert (done.code, done.err) == (0, "")
    for line, name, i in zip(done.lines, ("2.txt", "0.txt"), (2, 0), strict=True):
        order = np.argsort(-probabilities[i])
        texts = ", ".join(f"{NAMES[k]} {probabilities[i, k]:.1%}" for k in order)
        assert line == f"{folder / name}: {texts}"


def test_broken_missing_and_other_files_are_named(command, run, folder, tmp_path):
    (folder / "5.txt").write_text("1 2 three")
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ((folder,), ("5.txt", "cannot be read")),
        ((folder / "0.txt", folder / "5.txt"), ("5.txt", "three")),
        ((folder / "notes.md",), ("notes.md", ".txt")),
        ((folder / "inside",), ("inside", "nothing to read")),
        ((tmp_path / "empty",), ("empty", "nothing to read")),
        (("nowhere.txt",), ("'nowhere.txt'", "does not exist")),
        ((), ("no file",)),
    ):
        done = command("predict", run, *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1
        for word in words:
            assert word in done.err


@pytest.mark.parametrize("size", [2, 128])
def test_bad_files_are_left_out_and_named(command, run, folder, size):
    expected = command("predict", run, folder, "--json").objects
    (folder / "2b.txt").write_text("no numbers")
    (folder / "9.txt").write_text("")
    (folder / "9b.txt").write_text("1 2 3")
    done = command("predict", run, folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("`--skip-bad` leaves out such files and answers the others.\n")
    options = ("--json", "--skip-bad", "--batch-size", size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of an empty file.
        done = command("predict", run, folder, *options)
    assert (done.code, [o["file"] for o in done.objects]) == (0, [o["file"] for o in expected])
    assert [o["class"] for o in done.objects] == [o["class"] for o in expected]
    assert done.err.count("\n") == 3
    assert f"kerasdist: skipped '{folder / '2b.txt'}': cannot be read: ValueError" in done.err


def test_there_must_be_a_file_that_is_good(command, run, folder):
    (folder / "2b.txt").write_text("no numbers")
    done = command("predict", run, folder / "2b.txt", "--skip-bad")
    assert (done.code, done.out) == (2, "")
    assert "None of the files can be read (1). The first: The file" in done.err
    done = command("predict", run, folder / "2b.txt")
    assert "--skip-bad" not in done.err  # It would not help.


def test_usage_errors_come_before_tensorflow(run, folder):
    lines = {
        "predict --help": 0,
        "predict": 2,
        "predict --json": 2,
        "predict nowhere x": 2,
        f"predict {run}": 2,
        f"predict {run} nowhere.txt": 2,
        f"predict {run} {folder} --top 0": 2,
        f"predict {run} {folder} --which bst": 2,
        "export --help": 0,
        "export": 2,
        f"export {run}": 2,
        f"export {run} extra --format keras": 2,
        f"export {run} --format tflit": 2,
        f"export {run} --format keras --output model.h5": 2,
        f"export {run} --format keras --output {folder}/0.keras.txt": 2,
        f"export {run} --format saved_model --output {folder}": 2,
        "evaluate --help": 0,
        f"evaluate {run} --which bst": 2,
        "predct run file": 2,
    }
    program = (
        "import json, sys\n"
        "from kerasdist.cli.main import main\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    code = main(line.split())\n"
        "    imported = {'tensorflow', 'keras'} & set(sys.modules)\n"
        "    print('::', line, code, *imported, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(list(lines))],
        # Which would be set up at once.
        env={k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("::|")]
    assert found == [[line, str(code)] for line, code in lines.items()]
    assert "Did you mean 'predict'?" in done.stderr
    assert "Did you mean 'best'?" in done.stderr
    assert "`--format` is missing" in done.stderr
    for command in ("predict RUN FILE", "export RUN"):
        assert command in done.stdout


@pytest.fixture(scope="module")
def plain(run, tmp_path_factory):
    """The same run of a recipe that has no `read_examples` and no names."""
    folder = tmp_path_factory.mktemp("plain")
    data = classifier_recipe.DATA.split("def build_groups")[0]
    data = data.replace('CLASS_NAMES = ("low", "middle", "high")', "")
    recipe = classifier_recipe.write(folder / "small", data=data)
    config = json.loads((run / "config.json").read_text())
    for name in ("model.json", "final.keras"):
        (folder / name).write_bytes((run / name).read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "recipe": str(recipe)}))
    return folder


def test_array_files_hold_one_example_or_many(command, plain, images, probabilities, tmp_path):
    np.save(tmp_path / "one.npy", images[0])
    np.save(tmp_path / "three.npy", images[1:4])
    np.savez(tmp_path / "named.npz", image=images[4:6], other=np.zeros(2))
    np.savez(tmp_path / "unnamed.npz", images[6:7])
    done = command("predict", plain, "--json", "one.npy", "three.npy", "named.npz", "unnamed.npz")
    assert (done.code, done.err) == (0, "")
    places = [(o["file"], o["example"]) for o in done.objects]
    expected = [("one.npy", 0), *(("three.npy", i) for i in range(3))]
    expected += [("named.npz", 0), ("named.npz", 1), ("unnamed.npz", 0)]
    assert places == expected
    for found, row in zip(done.objects, probabilities, strict=False):
        assert found["class"] == str(row.argmax())
        assert found["probability"] == pytest.approx(row.max(), rel=1e-5)
    assert command("predict", plain, "three.npy").lines[2].startswith("three.npy [2]: ")


def test_array_files_that_do_not_fit_are_named_and_pickles_are_not_opened(
    command, plain, images, tmp_path
):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "was-here"), "w"))

    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Bomb()))
    np.save(tmp_path / "objects.npy", np.array([Bomb()], object), allow_pickle=True)
    np.save(tmp_path / "flat.npy", images.reshape(100, 36))
    np.save(tmp_path / "wide.npy", np.zeros((2, 7, 6, 1), "uint8"))
    np.save(tmp_path / "float.npy", images[0] / 255)
    np.savez(tmp_path / "lost.npz", picture=images, number=np.zeros(100))
    for name, words in (
        ("pickle.npy", "cannot be read"),
        ("objects.npy", "cannot be read"),
        ("flat.npy", "shape (100, 36)"),
        ("wide.npy", "('n', 6, 6, 1)"),
        ("float.npy", "type float64"),
        ("lost.npz", "no field 'image'"),
    ):
        done = command("predict", plain, name)
        assert (done.code, done.out) == (2, "")
        assert repr(name) in done.err
        assert words in done.err
    assert not (tmp_path / "was-here").exists()


def test_bad_array_files_are_left_out(command, plain, images, tmp_path):
    np.save(tmp_path / "flat.npy", images.reshape(100, 36))
    np.save(tmp_path / "two.npy", images[:2])
    done = command("predict", plain, "flat.npy", "two.npy", "--skip-bad", "--json")
    assert (done.code, [o["file"] for o in done.objects]) == (0, ["two.npy"] * 2)
    assert "skipped 'flat.npy': has 'image' with the shape (100, 36)" in done.err
    assert command("predict", plain, "flat.npy", "--skip-bad").code == 2


def test_array_files_of_different_lengths_are_given_one_by_one(tmp_path):
    class Sequences(kerasdist.Model):
        features = "x"

        def call(self, x):
            return x

    for length in (4, 5):
        np.save(tmp_path / f"{length}.npy", np.zeros((1, length, 2), "float32"))
    spec = {"x": tf.TensorSpec([None, None, 2], tf.float32)}
    files = SkippedFiles([tmp_path / "4.npy", tmp_path / "5.npy"], skip_bad=False)
    with pytest.raises(kerasdist.KerasdistError, match=r"files of different shapes: .*one by one"):
        predict_command._arrays(Sequences(), spec, files)


def test_a_regression_of_a_notebook_prints_values(command, tmp_path, regression):
    x, y = regression
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, (x, y), batch_size=8, run_dir=tmp_path / "run", progress=False)
    np.save(tmp_path / "x.npy", x[:3])
    expected = kerasdist.predict(model, x[:3])
    done = command("predict", "run", "x.npy", "--json")
    assert (done.code, done.err) == (0, "")
    assert [o["values"] for o in done.objects] == [pytest.approx(row) for row in expected.tolist()]
    line = command("predict", "run", "x.npy", "--which", "last").lines[1]
    assert line == "x.npy [1]: " + ", ".join(f"{value:.6g}" for value in expected[1])


@pytest.fixture(scope="module")
def cifar10():
    """`read_examples` of the recipe."""
    recipe = kerasdist.load_recipe("cifar10", source="synthetic", num_validation=4)
    part = import_part(recipe.path, "data")
    image = recipe.build_data("validation")["image"]
    return part, image, lambda *paths: part.read_examples(recipe.config, list(paths))["image"]


def test_an_image_of_the_right_size_keeps_its_bits(cifar10, tmp_path):
    part, images, read = cifar10
    for i, image in enumerate(images):
        (tmp_path / f"{i}.png").write_bytes(tf.io.encode_png(image).numpy())
    found = read(*(tmp_path / f"{i}.png" for i in range(4)))
    assert found.dtype == np.uint8
    assert found.tolist() == images.tolist()
    assert len(part.CLASS_NAMES) == 10
    assert {".png", ".jpg", ".jpeg", ".bmp", ".gif"} <= set(part.EXAMPLE_SUFFIXES)


def bitmap(image):
    """A BMP file of 24 bits a pixel: rows from the bottom, blue first."""
    height, width, _ = image.shape
    rows = image[::-1, :, ::-1].tobytes()
    assert width % 4 == 0  # Rows would be padded.
    header = b"BM" + np.array([54 + len(rows), 0, 54, 40, width, height], "<u4").tobytes()
    return header + np.array([1, 24, *[0] * 12], "<u2").tobytes() + rows


def test_images_of_any_size_and_kind_become_32_by_32_colours(cifar10, tmp_path):
    _, images, read = cifar10
    large = tf.cast(tf.image.resize(images[0], (64, 96), method="nearest"), tf.uint8)
    grey = tf.cast(tf.reduce_mean(tf.cast(images[0], tf.float32), -1, keepdims=True), tf.uint8)
    clear = tf.concat([images[0], tf.fill((32, 32, 1), tf.constant(7, tf.uint8))], -1)
    deep = tf.cast(images[0], tf.uint16) * 257
    files = {
        "large.png": tf.io.encode_png(large).numpy(),
        "large.jpg": tf.io.encode_jpeg(large, quality=95).numpy(),
        "grey.png": tf.io.encode_png(grey).numpy(),
        "grey.jpeg": tf.io.encode_jpeg(grey, quality=95).numpy(),
        "clear.png": tf.io.encode_png(clear).numpy(),
        "grey-clear.png": tf.io.encode_png(tf.concat([grey, grey], -1)).numpy(),
        "deep.png": tf.io.encode_png(deep).numpy(),
        "map.bmp": bitmap(images[0]),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = dict(zip(files, read(*(tmp_path / name for name in files)), strict=True))
    assert {image.shape for image in found.values()} == {(32, 32, 3)}
    for name in ("clear.png", "map.bmp", "deep.png"):
        assert found[name].tolist() == images[0].tolist(), name
    for name in ("grey.png", "grey-clear.png"):
        assert found[name].tolist() == np.repeat(grey.numpy(), 3, -1).tolist(), name
    # Shrinking an enlarged image gives back its colours, roughly.
    for name in ("large.png", "large.jpg"):
        gap = np.abs(found[name].astype(float) - images[0]).mean()
        assert gap < 25, name


def test_a_broken_image_is_named(cifar10, tmp_path):
    _, images, read = cifar10
    whole = tf.io.encode_png(images[0]).numpy()
    for name, content in (("cut.png", whole[:100]), ("text.png", b"hello"), ("none.png", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(
            kerasdist.KerasdistError, match=f"{name}', which is not an image"
        ) as found:
            read(path)
        assert "{{" not in str(found.value)
        assert "[Op" not in str(found.value)
    with pytest.raises(kerasdist.KerasdistError, match=r"gone\.png"):
        read(tmp_path / "gone.png")


def test_a_run_without_a_recipe_is_not_said_to_have_one(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_text("")
    reader = "`kerasdist predict`, without a recipe in the run,"
    with pytest.raises(
        kerasdist.KerasdistError, match=f"^{reader} cannot read the file .*.npy, .npz"
    ):
        predict_command.find([path], predict_command.ARRAY_SUFFIXES, reader)
