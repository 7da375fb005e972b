"""`kerasdist export`: files for other programs, which compute what the model does."""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.errors import KerasdistError, RunFailedError
from kerasdist.model_files import export_target, formats
from kerasdist.model_files.formats import keras_file, litert, onnx_file, saved_model
from kerasdist.runs.checkpoints import Store
from tests import classifier_recipe

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tf2onnx", "onnx", "onnxruntime")),
    reason="needs the extra onnx: pip install 'kerasdist[onnx]'",
)
FORMATS = ["keras", "saved_model", "litert", pytest.param("onnx", marks=needs_onnx)]
LOGITS = "output: logits of low, middle, high (in this order), not probabilities: apply a softmax"
each_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with averaged weights of a model that has layers of its own."""
    folder = tmp_path_factory.mktemp("export")
    recipe = classifier_recipe.write(folder / "blocks", model=classifier_recipe.BLOCKS)
    path = folder / "run"
    gone = ("--data-is-gone", str(folder / "data-is-gone"))
    options = ("--ema", "0.9", "--steps", "12", *gone, "--quiet", "--run-dir", str(path))
    assert main.main(["fit", str(recipe), *options]) == 0
    return path


@pytest.fixture(scope="module")
def images(run):
    return kerasdist.load_recipe(run / "config.json").build_data("validation")["image"]


@pytest.fixture(scope="module")
def expected(run, images):
    return kerasdist.predict(run, {"image": images})


def run_file(name, path, image):
    """The outputs of an exported file, without anything of kerasdist."""
    if name == "keras":
        return np.asarray(keras.models.load_model(path, safe_mode=True)(image))
    if name == "saved_model":
        return tf.saved_model.load(path).signatures["serving_default"](image=image)["output_0"]
    if name == "litert":
        return tf.lite.Interpreter(path).get_signature_runner()(image=image)["output_0"]
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return session.run(["output_0"], {"image": image})[0]


@each_format
def test_a_file_computes_what_the_run_does_for_any_number_of_examples(
    command, run, images, expected, tmp_path, name
):
    output = tmp_path / "new" / export_target.NAMES[name]
    done = command("export", run, "--format", name, "--output", output, "--json")
    assert (done.code, done.err) == (0, "")
    (about,) = done.objects
    assert about["path"] == str(output)
    assert about["inputs"] == {"image": ["uint8", 6, 6, 1]}
    assert about["examples"] == 100
    assert about["checked_on"] == "examples of the validation data (recipe)"
    assert about["notes"] == [LOGITS]
    assert 0 <= about["largest_difference"] < 1e-4
    assert about["bytes"] > 1000
    for rows in (slice(0, 1), slice(3, 10)):
        found = run_file(name, str(output), images[rows])
        np.testing.assert_allclose(found, expected[rows], atol=1e-4)
    assert sorted(p.name for p in output.parent.iterdir()) == [output.name]  # No draft is left.


def test_the_averaged_weights_are_exported(run, images, expected):
    """Otherwise the test above would not see the difference."""
    model = kerasdist.load(run, "final")
    arrays = Store(run / "checkpoints").newest().arrays
    raw = [arrays[name] for name in sorted(arrays) if name.startswith("trainable/")]
    for variable, array in zip(model.trainable_variables, raw, strict=True):
        variable.assign(array)
    assert np.abs(np.asarray(model(images)) - expected).max() > 1e-3


LOADER = """
import sys

import numpy as np

sys.modules["kerasdist"] = None  # An import raises.
import keras
import tensorflow as tf

folder = sys.argv[1]
image, expected = np.load(f"{folder}/image.npy"), np.load(f"{folder}/expected.npy")
model = keras.models.load_model(f"{folder}/model.keras", safe_mode=True)
loaded = tf.saved_model.load(f"{folder}/saved_model")
for outputs in (model(image), loaded.serve(image)["output_0"]):
    print(float(np.abs(np.asarray(outputs) - expected).max()))
print([layer.__class__.__module__.split(".")[0] for layer in model.layers], model.inputs[0].name)
assert not any(name.startswith("kerasdist") for name in sys.modules if sys.modules[name])
"""


def test_keras_and_saved_model_load_where_there_is_no_kerasdist(
    command, run, images, expected, tmp_path
):
    for name in ("keras", "saved_model"):
        output = tmp_path / export_target.NAMES[name]
        assert command("export", run, "--format", name, "--output", output, "--quiet").out == ""
    stored = tf.train.list_variables(str(tmp_path / "saved_model" / "variables" / "variables"))
    shapes = [tuple(shape) for name, shape in stored if not name.startswith("_CHECKPOINTABLE")]
    model = kerasdist.load(run, "final")
    assert sorted(shapes) == sorted(tuple(v.shape) for v in model.weights)  # Each of them once.
    np.save(tmp_path / "image.npy", images)
    np.save(tmp_path / "expected.npy", expected)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, layers = done.stdout.splitlines()
    assert float(first) < 1e-5
    assert float(second) < 1e-5
    assert layers.count("'keras'") == layers.count("'") / 2
    assert layers.endswith("image")


def test_the_runs_folder_is_the_default_and_our_own_export_is_replaced(command, run):
    target = run / "export" / "model.keras"
    done = command("export", run, "--format", "keras")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith(f"exported {target} (final model, ")
    assert done.lines[1].startswith("checked on 100 examples of the validation data")
    told = "exactly the same outputs|the same outputs up to rounding .largest difference"
    assert re.search(f"  the exported model gives ({told})", done.lines[2])
    records = json.loads((run / "export" / "exports.json").read_text())
    assert records["model.keras"]["sha256"] == export_target.sha256(target)
    before = target.stat().st_ino
    last = command("export", run, "--format", "keras", "--which", "last")
    assert (last.code, last.lines[0].startswith(f"exported {target} (last model, ")) == (0, True)
    assert target.stat().st_ino != before
    assert json.loads((run / "export" / "exports.json").read_text())["model.keras"]["which"] == (
        "last"
    )
    assert sorted(p.name for p in (run / "export").iterdir()) == ["exports.json", "model.keras"]


def test_a_saved_model_says_how_it_is_called_and_the_lines_work(command, run, images):
    done = command("export", run, "--format", "saved_model", "--output", "served")
    start = done.lines.index("call it from Python:")
    lines = [line.removeprefix("  ") for line in done.lines[start + 1 :]]
    assert lines[0] == "import tensorflow as tf"
    code = "\n".join(lines).replace("image=...", "image=images").replace("print", "found = ")
    names = {"images": tf.constant(images[:2])}
    exec(code, names)
    assert names["found"]["output_0"].shape == (2, 3)
    quiet = command("export", run, "--format", "saved_model", "--output", "other", "--json")
    assert len(quiet.objects) == 1


def test_nothing_foreign_is_overwritten(command, run, tmp_path):
    folder = run / "export"
    folder.mkdir(exist_ok=True)
    (folder / "model.tflite").write_text("all my work")
    (tmp_path / "mine.keras").write_text("all my work")
    (tmp_path / "mine").mkdir()
    (tmp_path / "link.keras").symlink_to("elsewhere.keras")
    for arguments in (
        ("litert",),
        ("keras", "--output", "mine.keras"),
        ("saved_model", "--output", "mine"),
        ("keras", "--output", "link.keras"),
    ):
        done = command("export", run, "--format", *arguments)
        assert done.code == 2
        assert "kerasdist overwrites nothing else" in done.err
    assert (folder / "model.tflite").read_text() == "all my work"
    assert (tmp_path / "mine.keras").read_text() == "all my work"
    assert not (tmp_path / "elsewhere.keras").exists()
    (folder / "model.tflite").unlink()


def test_an_export_that_was_changed_is_not_ours_any_more(tmp_path):
    target = export_target.target(tmp_path, "saved_model", None)
    for content in ("1", "2"):
        with target.draft() as draft:
            draft.mkdir()
            (draft / content).write_text(content)
            target.place(draft, {"which": "final"})
        assert export_target.target(tmp_path, "saved_model", None) == target
    folder = tmp_path / "export" / "saved_model"
    assert [p.name for p in folder.iterdir()] == ["2"]
    (folder / "b").write_text("mine")
    with pytest.raises(kerasdist.KerasdistError, match="it exists"):
        export_target.target(tmp_path, "saved_model", None)


def test_a_path_that_came_into_being_meanwhile_is_not_overwritten(tmp_path):
    target = export_target.target(tmp_path, "keras", str(tmp_path / "model.keras"))
    with target.draft() as draft:
        draft.write_text("ours")
        (tmp_path / "model.keras").write_text("mine")
        with pytest.raises(kerasdist.KerasdistError, match="kerasdist overwrites nothing else"):
            target.place(draft, {})
    assert (tmp_path / "model.keras").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]


def test_usage_errors(run, tmp_path, monkeypatch):
    with pytest.raises(kerasdist.KerasdistError, match=r"ends in \.tflite"):
        export_target.target(run, "litert", str(tmp_path / "model"))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tf2onnx" else object()
    )
    with pytest.raises(kerasdist.KerasdistError, match=r"missing: tf2onnx.*'kerasdist\[onnx\]'"):
        export_target.target(run, "onnx", None)
    (tmp_path / "file").write_text("")
    target = export_target.target(run, "keras", str(tmp_path / "file" / "model.keras"))
    with pytest.raises(kerasdist.KerasdistError, match="cannot be written"), target.draft():
        pass


# The check.


def test_a_file_that_computes_something_else_fails_and_is_not_kept(
    command, run, tmp_path, monkeypatch
):
    original = saved_model.opened

    def wrong(path, served):
        runtime = original(path, served)
        return lambda arrays: [output * (1 + 2e-4) for output in runtime(arrays)]

    monkeypatch.setattr(saved_model, "opened", wrong)
    done = command("export", run, "--format", "saved_model", "--output", "new/model")
    assert (done.code, done.out) == (1, "")
    assert "does not compute the same as the model" in done.err
    assert "0.0002 of the largest output" in done.err
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_that_its_runtime_refuses_fails_and_is_not_kept(command, run, tmp_path, monkeypatch):
    monkeypatch.setattr(keras_file, "opened", lambda path, served: 1 / 0)
    done = command("export", run, "--format", "keras", "--output", "new/model.keras")
    assert (done.code, done.out) == (1, "")
    assert "exported file cannot be run: ZeroDivisionError" in done.err
    assert list((tmp_path / "new").iterdir()) == []


def test_random_examples_serve_where_the_data_is_gone(command, run):
    gone = run.parent / "data-is-gone"
    gone.write_text("")
    try:
        done = command("export", run, "--format", "saved_model", "--output", "model", "--json")
    finally:
        gone.unlink()
    assert done.code == 0
    assert done.objects[0]["checked_on"] == "random examples (FileNotFoundError: the data is gone.)"
    assert done.objects[0]["examples"] == 256


def test_a_run_of_a_program_is_checked_on_random_examples(command, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    run = tmp_path / "program"
    kerasdist.fit(model, np.ones((8, 3)), np.ones((8, 1)), run_dir=run, verbose=0)
    done = command("export", run, "--format", "keras", "--output", "new/model.keras", "--json")
    assert done.code == 0
    told = "a Python program made this run, and only the program has its data"
    assert done.objects[0]["checked_on"] == f"random examples ({told})"


def served_of(model, **features):
    specs = {name: tf.TensorSpec((None, *s[1:]), d) for name, (s, d) in features.items()}
    data = specs if isinstance(model, kerasdist.Model) else next(iter(specs.values()))
    args = [np.zeros([size or 3 for size in s], d) for s, d in features.values()]
    model(*args)
    return formats.serve(model, data)


def test_the_difference_is_measured_against_the_scale_of_each_output():
    both = keras.Input((2,))
    model = keras.Model(both, {"small": keras.layers.Rescaling(1e-3)(both), "large": both * 1000.0})
    served = served_of(model, x=((1, 2), "float32"))
    assert served.output_names == ("large", "small")
    x = np.array([[1.0, -2.0], [0.0, 1.0]], "float32")

    def compare(large, small, batches=1):
        def run(arrays):
            return [1000 * arrays[0] + large, 1e-3 * arrays[0] + small]

        return formats.compare(served, run, [(x,)] * batches)

    same = compare(0, 0, batches=3)
    assert (same.examples, same.is_small) == (6, True)
    assert same.largest < 1e-9
    assert compare(0.1, 0).is_small
    assert not compare(0.3, 0).is_small
    found = compare(0.1, 1e-4)
    assert not found.is_small
    assert found.largest == pytest.approx(1e-4, rel=1e-3)
    assert found.scale == pytest.approx(2e-3)
    assert not compare(np.nan, 0).is_small
    other = formats.compare(served, lambda arrays: [arrays[0]], [(x,)])
    assert not other.is_small  # An output is missing.


# Models of other kinds.


class Clips(kerasdist.Model):
    """Two features, one of a free length, and a mask."""

    features = ("frames", "length")

    def __init__(self, symbolic=True, **kwargs):
        super().__init__(**kwargs)
        self.symbolic = symbolic
        self.rnn = keras.layers.Bidirectional(keras.layers.GRU(4))
        self.out = keras.layers.Dense(3)

    def call(self, frames, length, training=False):
        if self.symbolic:  # `arange` cannot count a length that is not known yet.
            places = keras.ops.cumsum(keras.ops.ones_like(frames[:, :, 0]), axis=1)
            mask = places <= keras.ops.cast(length, "float32")[:, None]
        else:
            mask = tf.sequence_mask(length, tf.shape(frames)[1])
        return self.out(self.rnn(frames, mask=mask))


@pytest.fixture(scope="module")
def clips():
    random = np.random.default_rng(0)
    return [
        (random.normal(size=(n, t, 5)).astype("float32"), random.integers(1, t + 1, n, "int32"))
        for n, t in ((4, 7), (2, 11))
    ]


@each_format
def test_several_features_of_a_free_length_keep_their_names(name, clips, tmp_path):
    served = served_of(Clips(), frames=((1, None, 5), "float32"), length=((1,), "int32"))
    assert [(s.name, s.shape.as_list()) for s in served.inputs] == [
        ("frames", [None, None, 5]),
        ("length", [None]),
    ]
    form, path = formats.FORMATS[name], tmp_path / export_target.NAMES[name]
    notes = form.write(served, path)
    # LiteRT cannot convert a recurrence over an unknown number of examples.
    assert notes == ([litert.ONE_AT_A_TIME] if name == "litert" else [])
    found = formats.compare(served, form.opened(path, served), clips)
    assert found.examples == 6
    assert found.relative < 1e-5
    if name == "keras":
        model = keras.models.load_model(path)
        assert set(model.input) == {"frames", "length"}


@keras.saving.register_keras_serializable("test_export")
class Backwards(kerasdist.Model):
    """Leaves Keras: symbolic tensors cannot go through `tf.reverse`."""

    features = "x"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(tf.reverse(x, [-1]))


def test_a_call_that_leaves_keras_needs_its_class_and_the_note_says_so(tmp_path):
    served = served_of(Backwards(), x=((1, 4), "float32"))
    path = tmp_path / "model.keras"
    (note,) = keras_file.write(served, path)
    assert "needs the code of Backwards" in note
    assert "A KerasTensor cannot be used as input to a TensorFlow function" in note
    inputs = [formats.random_inputs(served, 5)]
    assert formats.compare(served, keras_file.opened(path, served), inputs).is_small
    assert keras.layers.Layer.__call__.__name__ == "__call__"  # Put back.


@pytest.mark.filterwarnings("ignore:Model .* had a build config")
def test_a_file_that_loses_its_weights_is_found_out(clips, tmp_path):
    """Keras cannot build a class with two inputs when it loads it, and goes on without weights."""
    served = served_of(Clips(False), frames=((1, None, 5), "float32"), length=((1,), "int32"))
    path = tmp_path / "model.keras"
    (note,) = keras_file.write(served, path)
    assert "needs the code of Clips" in note
    assert not formats.compare(served, keras_file.opened(path, served), clips).is_small


def test_a_mask_that_reaches_a_layer_of_ones_own_is_not_lost(tmp_path):
    @keras.saving.register_keras_serializable("test_export")
    class Doubled(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.supports_masking = True

        def call(self, x):
            return x * 2

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(5, 4, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.GRU(3)(Doubled()(x)))
    served = served_of(model, x=((1, None), "int32"))
    assert served.inputs[0].name == "tokens"
    (note,) = keras_file.write(served, tmp_path / "model.keras")
    assert "a mask reaches the layer" in note
    runtime = keras_file.opened(tmp_path / "model.keras", served)
    batch = (np.array([[1, 2, 0, 0], [3, 4, 1, 0]], "int32"),)
    assert formats.compare(served, runtime, [batch]).is_small


def test_initializers_and_regularizers_of_ones_own_do_not_go_into_the_file(tmp_path):
    class Threes(keras.initializers.Initializer):
        def __call__(self, shape, dtype=None):
            return keras.ops.full(shape, 3.0, dtype)

    def small(kernel):
        return keras.ops.sum(kernel) * 1e-3

    dense = keras.layers.Dense(2, kernel_initializer=Threes(), bias_regularizer=small)
    served = served_of(keras.Sequential([keras.Input((4,)), dense]), x=((1, 4), "float32"))
    path = tmp_path / "model.keras"
    assert keras_file.write(served, path) == []
    outputs = keras.models.load_model(path, safe_mode=True)(np.ones((1, 4), "float32"))
    assert outputs.numpy().tolist() == [[12.0, 12.0]]


def test_a_class_that_keras_cannot_describe_names_another_format(tmp_path):
    class Odd(kerasdist.Model):
        features = "x"

        def __init__(self, thing):
            super().__init__()
            self.thing = thing

        def call(self, x):
            return tf.reverse(x, [-1])

    served = served_of(Odd(object()), x=((1, 2), "float32"))
    with pytest.raises(kerasdist.KerasdistError, match="--format saved_model") as found:
        keras_file.write(served, tmp_path / "model.keras")
    assert isinstance(found.value, RunFailedError)
    saved_model.write(served, tmp_path / "saved_model")
    runtime = saved_model.opened(tmp_path / "saved_model", served)
    assert formats.compare(served, runtime, [formats.random_inputs(served, 3)]).is_small


def mixed():
    policy = keras.DTypePolicy("mixed_bfloat16")
    layers = [keras.layers.Conv2D(4, 3, dtype=policy), keras.layers.Flatten(dtype=policy)]
    last = keras.layers.Dense(2, dtype="float32")
    return keras.Sequential([keras.Input((6, 6, 1), name="image"), *layers, last])


@pytest.mark.parametrize(
    "name", ["keras", "saved_model", "litert", pytest.param("onnx", marks=needs_onnx)]
)
def test_mixed_precision_is_exported_in_float32_but_for_keras(name, tmp_path):
    served = served_of(mixed(), x=((1, 6, 6, 1), "float32"))
    form, path = formats.FORMATS[name], tmp_path / export_target.NAMES[name]
    notes = form.write(served, path)
    assert ["float32" in note for note in notes] == ([] if name == "keras" else [True])
    inputs = [formats.random_inputs(served, 5)]
    assert formats.compare(served, form.opened(path, served), inputs).is_small


def test_a_lookup_table_goes_into_a_saved_model(tmp_path):
    layer = keras.layers.IntegerLookup(vocabulary=[7, 9], output_mode="one_hot")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(2)])
    served = served_of(model, x=((1, 1), "int64"))
    saved_model.write(served, tmp_path / "saved_model")
    runtime = saved_model.opened(tmp_path / "saved_model", served)
    batch = (np.array([[7], [9], [3]], "int64"),)
    assert formats.compare(served, runtime, [batch]).is_small


@needs_onnx
def test_onnx_has_the_exact_gelu_and_names_what_it_cannot_hold(tmp_path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Activation(keras.activations.gelu)(x * 1.0))
    served = served_of(model, x=((1, 4), "float32"))
    onnx_file.write(served, tmp_path / "model.onnx")
    runtime = onnx_file.opened(tmp_path / "model.onnx", served)
    batch = (np.linspace(-6, 6, 400, dtype="float32").reshape(100, 4),)
    assert formats.compare(served, runtime, [batch]).relative < 1e-6

    class Odd(kerasdist.Model):
        features = "x"

        def call(self, x):
            return tf.math.lgamma(x)

    served = served_of(Odd(), x=((1, 2), "float32"))
    with pytest.raises(kerasdist.KerasdistError, match=r"ONNX cannot represent.*Lgamma"):
        onnx_file.write(served, tmp_path / "odd.onnx")


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("format", ["keras", "saved_model"])
@pytest.mark.parametrize("moment", range(4))
def test_after_a_kill_the_same_export_works(tmp_path, monkeypatch, format, moment):
    def export(text, most_moves=99):
        moves = iter(range(99))

        def replace(source, target, real=os.replace):
            if next(moves) >= most_moves:
                raise Killed
            real(source, target)

        found = export_target.target(tmp_path, format, None)
        with found.draft() as draft, monkeypatch.context() as patch:
            if format == "saved_model":
                draft.mkdir()
            (draft / "model" if draft.is_dir() else draft).write_text(text)
            patch.setattr(os, "replace", replace)
            found.place(draft, {"format": format})
        return found.path

    export("one")
    with contextlib.suppress(Killed):
        export("two", most_moves=moment)
    path = export("three")
    assert (path / "model" if path.is_dir() else path).read_text() == "three"
    (path / "model" if path.is_dir() else path).write_text("somebody's own")
    with pytest.raises(KerasdistError, match="it exists"):
        export("four")
