"""`kerasdist.load`, and evaluation and prediction of a run's folder."""

import json
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.runs.file_names import BEST, FINAL
from tests import classifier_recipe

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


@keras.saving.register_keras_serializable(package="tests")
class Registered(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


class Unregistered(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(2)

    def call(self, inputs):
        return self.out(inputs)


def compiled(model):
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def sequential():
    layers = [keras.layers.Dense(5, activation="relu"), keras.layers.BatchNormalization()]
    return compiled(keras.Sequential([*layers, keras.layers.Dense(2)]))


def functional():
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(2)(Registered()(keras.layers.Dense(3)(inputs)))
    return compiled(keras.Model(inputs, outputs))


def train(build, folder, **options):
    options = {"batch_size": 16, "epochs": 3, "progress": False, **options}
    return kerasdist.fit(build, (X, Y), run_dir=folder, **options)


@pytest.mark.parametrize("build", [sequential, functional])
def test_a_model_of_keras_is_rebuilt_without_its_code(build, tmp_path):
    trained = train(build, tmp_path / "run").model
    loaded = kerasdist.load(tmp_path / "run", which="final")
    assert loaded is not trained
    np.testing.assert_array_equal(loaded(X), trained(X))
    assert loaded.compiled


def test_a_model_with_an_optimizer_of_ours_is_loaded_by_another_process(tmp_path):
    def build():
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile(
            kerasdist.optimizer("adamw", weight_decay=0.1, schedule="poly", total_steps=9), "mse"
        )
        return model

    kerasdist.fit(build, (X, X[:, :2]), batch_size=20, run_dir=tmp_path / "run", progress=False)
    code = (
        "import kerasdist\n"
        f"print(type(kerasdist.load({str(tmp_path / 'run')!r}).optimizer).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "kerasdist.models.optimizers.chosen_weights\n", done.stderr


def test_each_of_the_three_is_what_its_name_says(tmp_path):
    """The best by the validation loss is of the first epoch: later ones are spoiled on purpose."""
    seen = []
    folder = tmp_path / "run"

    class Spoil(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([np.array(w) for w in self.model.get_weights()])
            self.model.optimizer.learning_rate = 0.5

    history = train(
        sequential, folder, validation_data=(X, 1 - Y), save_every=1, callbacks=[Spoil()]
    )
    best = int(np.argmin(history.history["val_loss"]))
    assert best == 0
    for name, expected in (("best", seen[0]), ("final", seen[-1]), ("last", seen[-1])):
        for ours, theirs in zip(kerasdist.load(folder, name).get_weights(), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_best_file_has_the_optimizer_of_its_step(devices, tmp_path):
    """Plain Keras goes on training from it."""
    train(sequential, tmp_path / "run", epochs=2, devices=devices)
    plain = keras.models.load_model(tmp_path / "run" / BEST)
    assert int(plain.optimizer.iterations) == 8
    assert np.abs(plain.optimizer.variables[2]).max() > 0


def test_the_final_model_of_an_earlier_end_is_said_to_be_that(tmp_path):
    train(sequential, tmp_path / "run", epochs=1)
    expected = kerasdist.load(tmp_path / "run", "final").get_weights()

    def stop(epoch, logs):
        raise ValueError("stopped")

    callback = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    with pytest.raises(ValueError, match="stopped"):
        train(sequential, tmp_path / "run", epochs=2, callbacks=[callback])
    with pytest.warns(UserWarning, match="that of its earlier end.*`--which last`"):
        model = kerasdist.load(tmp_path / "run", "final")
    for mine, earlier in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(mine, earlier)


def test_averaged_weights_are_loaded_where_there_are_any(tmp_path):
    history = train(sequential, tmp_path / "run", ema=0.9)
    raw = history.model.get_weights()
    for which in ("last", "final"):
        loaded = kerasdist.load(tmp_path / "run", which).get_weights()
        for ours, average in zip(loaded, history.ema_weights, strict=True):
            np.testing.assert_array_equal(ours, average, err_msg=which)
        assert not np.array_equal(loaded[0], raw[0])


def test_a_stopped_run_has_its_last_checkpoint(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        train(sequential, tmp_path / "run", save_every=1, callbacks=[Stop()])
    with pytest.raises(kerasdist.KerasdistError, match="has only last") as error:
        kerasdist.load(tmp_path / "run")
    assert "which='last'" in str(error.value)
    loaded = kerasdist.load(tmp_path / "run", which="last")
    assert kerasdist.predict(loaded, X).shape == (60, 2)


def test_a_run_is_evaluated_and_predicted_by_its_folder(tmp_path):
    trained = train(sequential, tmp_path / "run").model
    for run in (tmp_path / "run", str(tmp_path / "run")):
        assert kerasdist.evaluate(run, (X, Y)) == kerasdist.evaluate(trained, (X, Y))
        np.testing.assert_array_equal(kerasdist.predict(run, X), kerasdist.predict(trained, X))
    with pytest.raises(kerasdist.KerasdistError, match=r"Expected a `keras\.Model`, or the folder"):
        kerasdist.evaluate(3, (X, Y))


def test_a_recipe_s_model_needs_no_data_to_be_loaded(tmp_path):
    """The recipe's code builds it; what it reads is in the run's folder."""
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "config.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Config:\n"
        "    batch_size: int = 8\n    epochs: int = 1\n    width: int = 3\n"
    )
    (recipe / "data.py").write_text(
        "from pathlib import Path\nimport numpy as np\n\n\ndef build_data(config, split):\n"
        "    x = np.load(Path(__file__).with_name('x.npy'))\n"
        "    return {'x': x, 'y': x.sum(axis=1, keepdims=True)}\n"
    )
    (recipe / "model.py").write_text(
        "import keras\nimport kerasdist\n\n\ndef build_model(config):\n    return Net(config)\n\n\n"
        "class Net(kerasdist.Model):\n    features, targets = 'x', 'y'\n\n"
        "    def __init__(self, config):\n        super().__init__()\n"
        "        self.hidden = keras.layers.Dense(config.width)\n"
        "        self.out = keras.layers.Dense(1)\n\n"
        "    def call(self, x):\n        return self.out(self.hidden(x))\n\n"
        "    def defaults(self):\n        return dict(optimizer='sgd', loss='mse')\n"
    )
    np.save(recipe / "x.npy", X)
    command = [sys.executable, "-m", "kerasdist", "fit", str(recipe), "--width", "5", "--quiet"]
    subprocess.run([*command, "--run-dir", str(tmp_path / "run")], check=True)
    expected = kerasdist.evaluate(tmp_path / "run", {"x": X, "y": X.sum(axis=1, keepdims=True)})
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert expected["loss"] == pytest.approx(result["val_loss"], rel=1e-5)
    (recipe / "x.npy").unlink()
    for which in ("best", "last", "final"):
        assert kerasdist.load(tmp_path / "run", which).hidden.units == 5


DEEPER = classifier_recipe.MODEL.replace(
    "keras.layers.Dense(3)",
    'keras.Sequential([keras.layers.Dense(9, "relu"), keras.layers.Dropout(0.1), '
    "keras.layers.Dense(3)])",
)
# The same layers, without a class of the recipe's own.
OF_KERAS = """
import keras


def build_model(config):
    image = keras.Input((6, 6, 1), name="image")
    x = keras.layers.Flatten()(keras.layers.Rescaling(0.01)(image))
    model = keras.Model(image, keras.layers.Dense(3)(keras.layers.Dense(9, "relu")(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model
"""


def test_a_recipe_that_was_edited_since_is_refused(command, tmp_path):
    """Another activation has weights of the same shapes: the run was evaluated without a word."""
    classifier_recipe.write(tmp_path / "small", model=DEEPER)
    assert command("fit", "small", "--epochs", 1, "--quiet").code == 0
    expected = command("evaluate", "runs/small/0001", "--json").out
    module = tmp_path / "small/model.py"
    module.write_text(DEEPER.replace("Dropout(0.1)", "Dropout(0.3)"))  # Predictions use none.
    assert command("evaluate", "runs/small/0001", "--json").out == expected
    module.write_text(DEEPER.replace('"relu"', '"tanh"'))
    np.savetxt(tmp_path / "image.txt", np.zeros((6, 6)))
    for argv in (("evaluate",), ("export", "--format", "keras"), ("predict", "image.txt")):
        done = command(argv[0], "runs/small/0001", *argv[1:])
        assert done.code == 2
        assert "the layer Dense differs: activation was 'relu' and is 'tanh'" in done.err
        assert "Change the code back, or train a new run." in done.err


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"relu"', '"tanh"'),
        ("Dense(9", "Dense(5"),
        ("0.01", "0.02"),
        ("Dense(3)(", "Dense(3)(0.2 * "),
        ("(x)))", "(x)) * 0.5)"),
    ],
)
def test_a_model_of_keras_is_that_which_was_trained_after_an_edit(before, after, command, tmp_path):
    """To edit and compare: the run's description of its model is enough."""
    data = classifier_recipe.DATA.replace(
        'return {"image": image.astype("uint8"), "label": label}', "return image, label"
    )
    classifier_recipe.write(tmp_path / "small", model=OF_KERAS, data=data)
    assert command("fit", "small", "--epochs", 1, "--quiet").code == 0
    expected = command("evaluate", "runs/small/0001", "--json").out
    module = tmp_path / "small/model.py"
    module.write_text(OF_KERAS.replace(before, after))
    done = command("evaluate", "runs/small/0001", "--json")
    assert done.out == expected
    assert "careful: the code of the run 'runs/small/0001' makes another model" in done.err
    assert command("export", "runs/small/0001", "--format", "keras").code == 0


def test_a_class_that_keras_cannot_make_is_named_with_what_to_do(tmp_path):
    history = train(lambda: compiled(Unregistered()), tmp_path / "run")
    with pytest.raises(kerasdist.KerasdistError, match="'Unregistered'") as error:
        kerasdist.load(tmp_path / "run")
    assert "register_keras_serializable" in str(error.value)
    other = compiled(Unregistered())
    other(X)
    kerasdist.fit(other, (X, Y), steps=1, batch_size=60, init_from=tmp_path / "run", progress=False)
    assert len(history.model.weights) == len(other.weights)


def squared(y, p):
    return keras.ops.mean(100 * keras.ops.square(y - p), -1)


def huber(y, p):
    """Not Keras's loss of this name."""
    return keras.ops.mean(100 * keras.ops.abs(y - p), -1)


class OwnLoss(keras.losses.Loss):
    def call(self, y, p):
        return squared(y, p)


LINE = X.sum(axis=1, keepdims=True)


def train_line(folder, loss, metrics=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), loss, metrics=metrics)
    kerasdist.fit(model, X, LINE, run_dir=folder, verbose=0)
    return model


@pytest.mark.parametrize(
    ("loss", "metrics", "missing"),
    [
        (squared, None, "'squared'"),
        (huber, None, "'huber'"),
        ([huber], [[squared]], "'huber' and the function 'squared'"),
        ("mse", [keras.metrics.MeanMetricWrapper(huber, name="own")], "'huber'"),
        (OwnLoss(), None, "'OwnLoss'"),
        (lambda y, p: (y - p) ** 2, None, "the code of a function"),
    ],
)
@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_a_run_predicts_without_its_loss(loss, metrics, missing, tmp_path):
    """Nor is a loss taken for Keras's loss of the same name."""
    folder = tmp_path / "run"
    model = train_line(folder, loss, metrics)
    np.testing.assert_array_equal(kerasdist.predict(folder, X), model(X))
    with pytest.warns(UserWarning, match="is not compiled") as warned:
        loaded = kerasdist.load(folder)
    (told,) = [w for w in warned if w.category is UserWarning]
    assert missing in str(told.message)
    assert "register_keras_serializable" in str(told.message)
    assert told.filename == __file__
    assert not loaded.compiled
    with pytest.raises(kerasdist.KerasdistError, match="cannot be evaluated") as error:
        kerasdist.evaluate(folder, X, LINE)
    assert missing in str(error.value)
    assert "custom_object_scope" in str(error.value)


HUBER = keras.losses.Huber(delta=0.01)


@pytest.mark.parametrize("loss", [HUBER, [HUBER], {"line": HUBER}])
def test_settings_of_a_loss_that_keras_does_not_save_are_kept(loss, tmp_path):
    """Keras 3.15 saves a `Huber` without its `delta`."""
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1, name="line")(inputs)
    model = keras.Model(inputs, {"line": outputs} if isinstance(loss, dict) else outputs)
    cosine = keras.metrics.CosineSimilarity(axis=0)
    model.compile("sgd", loss, metrics=[cosine])
    targets = {"line": LINE} if isinstance(loss, dict) else LINE
    kerasdist.fit(model, X, targets, verbose=0, run_dir=tmp_path / "run")
    expected = model.evaluate(X, targets, return_dict=True, verbose=0)
    found = kerasdist.evaluate(tmp_path / "run", X, targets)
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected["loss"] < 0.1


@pytest.mark.parametrize("loss", [squared, huber, OwnLoss()])
def test_a_loss_that_is_known_is_used(loss, tmp_path):
    model = train_line(tmp_path / "run", loss)
    expected = model.evaluate(X, LINE, verbose=0)
    name = getattr(loss, "__name__", "OwnLoss")
    known = loss if loss in (squared, huber) else OwnLoss
    with keras.saving.custom_object_scope({name: known}):
        found = kerasdist.evaluate(tmp_path / "run", X, LINE)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_loss_may_be_registered_after_the_training(tmp_path):
    model = train_line(tmp_path / "run", huber)
    expected = model.evaluate(X, LINE, verbose=0)
    objects = keras.saving.get_custom_objects()
    objects["tests>huber"] = huber
    try:
        found = kerasdist.evaluate(tmp_path / "run", X, LINE)
    finally:
        del objects["tests>huber"]
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", ["huber", keras.losses.huber, keras.losses.LogCosh()])
def test_a_loss_of_keras_is_found_by_its_name(loss, tmp_path):
    model = train_line(tmp_path / "run", loss, [keras.metrics.mean_absolute_error])
    found = kerasdist.evaluate(tmp_path / "run", X, LINE)
    assert found["loss"] == pytest.approx(model.evaluate(X, LINE, verbose=0)[0], rel=1e-5)


def test_a_model_that_the_user_calls_a_run_is_not_one(tmp_path):
    with pytest.raises(kerasdist.KerasdistError, match="is not a run"):
        kerasdist.load(tmp_path)
    with pytest.raises(kerasdist.KerasdistError, match="Did you mean 'best'"):
        kerasdist.load(tmp_path, which="bset")


def foreign_module(marker):
    return {
        "module": "subprocess",
        "class_name": "run",
        "config": {"args": ["touch", str(marker)]},
        "registered_name": "run",
    }


def test_no_code_comes_from_a_run_s_folder(tmp_path):
    """model.json that names another module, or holds a function's code, is refused."""
    marker, folder = tmp_path / "marker", tmp_path / "run"
    train(sequential, folder)
    described = json.loads((folder / "model.json").read_text())
    touch = eval(f"lambda x: (open({str(marker)!r}, 'w').close(), x)[1]")
    with_lambda = compiled(keras.Sequential([keras.Input((4,)), keras.layers.Lambda(touch)]))
    marker.unlink()  # Building it ran the function.
    for model in (foreign_module(marker), json.loads(with_lambda.to_json())):
        (folder / "model.json").write_text(json.dumps({**described, "model": model}))
        with pytest.raises(kerasdist.KerasdistError, match="kerasdist runs no code from a run"):
            kerasdist.load(folder)
        assert not marker.exists()


def test_a_checkpoint_file_that_names_code_is_refused(tmp_path):
    """best.keras with the right arrays, whose configuration names another module."""
    marker, folder = tmp_path / "marker", tmp_path / "run"
    train(sequential, folder)
    with zipfile.ZipFile(folder / "best.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["config.json"] = json.dumps(foreign_module(marker)).encode()
    with zipfile.ZipFile(folder / "best.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(kerasdist.KerasdistError, match="the module 'subprocess'"):
        kerasdist.load(folder)
    with pytest.raises(kerasdist.KerasdistError, match="the module 'subprocess'"):
        train(sequential, tmp_path / "other", init_from=folder)
    assert not marker.exists()
    assert not (tmp_path / "other").exists()


def test_plain_keras_reads_best_and_final_with_safe_mode(tmp_path):
    trained = train(sequential, tmp_path / "run").model
    for name in (BEST, FINAL):
        plain = keras.models.load_model(tmp_path / "run" / name, safe_mode=True)
        np.testing.assert_array_equal(plain(X), trained(X), err_msg=name)


def test_the_environment_of_every_start_is_kept(tmp_path):
    folder = tmp_path / "run"
    train(sequential, folder, epochs=1)
    train(sequential, folder, epochs=2, devices=1)
    found = json.loads((folder / "environment.json").read_text())
    assert found["packages"]["keras"] == keras.__version__
    assert found["devices"] == ["CPU:0"]
    assert len(found["earlier"]) == 1
    assert found["earlier"][0]["time"] <= found["time"]
    assert "earlier" not in found["earlier"][0]


def test_no_variable_of_the_environment_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret-4711")
    train(sequential, tmp_path / "run", epochs=1)
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert b"secret-4711" not in path.read_bytes(), path


def test_the_commit_is_that_of_the_repository(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    from kerasdist.runs import provenance

    assert provenance.describe([], tmp_path)["git"] is None
    for words in (
        ["init", "-q"],
        ["-c", "user.name=t", "-c", "user.email=t", "commit", "-qm", "x", "--allow-empty"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = provenance.describe([], tmp_path)["git"]
    assert len(found["commit"]) == 40
    assert found["changed"] is False


def relu(x):
    """Not Keras's."""
    return keras.ops.maximum(x, -100.0)


def test_an_activation_with_the_name_of_keras_s_is_not_taken_for_it(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation=relu)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, X, LINE, verbose=0, run_dir=tmp_path / "run")
    with pytest.raises(kerasdist.KerasdistError, match="function 'relu', which has the name of"):
        kerasdist.predict(tmp_path / "run", X)


def test_a_registered_activation_is_found(tmp_path):
    own = keras.saving.register_keras_serializable("tests")(relu)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation=own)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, X, LINE, verbose=0, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(kerasdist.predict(tmp_path / "run", X), model(X))


def test_a_class_of_a_script_that_is_not_registered_is_named(tmp_path):
    # Keras writes no module for it: as if the class were Keras's own.
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, (X, X[:, :1]), batch_size=5, run_dir=tmp_path / "run", progress=False)
    file = tmp_path / "run/model.json"
    content = json.loads(file.read_text())
    content["model"] |= {"class_name": "Sub", "registered_name": "Sub", "module": None}
    file.write_text(json.dumps(content))
    with pytest.raises(kerasdist.KerasdistError, match=r"needs the class 'Sub'.*load_weights"):
        kerasdist.load(tmp_path / "run")
