"""`keep_best`: which models are kept, under which names, and after a run was killed."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.errors import KerasdistError
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.results import kept_models
from kerasdist.runs.results.kept_models import KeptModel
from kerasdist.training.best.best_model import BestModel
from kerasdist.training.best.best_models import BestModels
from tests.cli.conftest import start, tiny  # noqa: F401 - a fixture


def build():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.6), "mse")  # Too fast: the loss goes up and down.
    return model


def data(seed=0):
    x = np.random.default_rng(seed).normal(size=(24, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that keeps three models, and its history."""
    path = tmp_path_factory.mktemp("kept") / "run"
    history = kerasdist.fit(
        build,
        data(),
        batch_size=4,
        epochs=6,
        seed=3,
        validation_data=data(1),
        run_dir=path,
        keep_best=3,
        progress=False,
    )
    return path, history.history["val_loss"]


def test_the_models_of_the_best_epochs_are_kept_and_loaded_by_rank(run):
    path, losses = run
    assert losses != sorted(losses, reverse=True)  # Or the test would show little.
    best = sorted(range(6), key=losses.__getitem__)[:3]
    index = json.loads((path / "best/index.json").read_text())
    assert index["monitor"] == "val_loss"
    assert [model["epoch"] for model in index["models"]] == [i + 1 for i in best]
    names = {f"epoch-{i + 1:04d}.keras" for i in best}
    assert {file.name for file in (path / "best").iterdir()} == {*names, "index.json"}
    assert (path / "best.keras").samefile(path / f"best/epoch-{best[0] + 1:04d}.keras")
    for which, epoch in (("best", best[0]), ("best-1", best[0]), ("best-2", best[1])):
        model = kerasdist.load(path, which)
        x, y = data(1)
        assert np.mean((model(x) - y) ** 2) == pytest.approx(losses[epoch], rel=1e-5)


def test_a_rank_that_was_not_kept_is_refused(run):
    path, _ = run
    told = "'best-4'.* has only best, best-2, best-3, final and last.* `keep_best=4` .* keeps"
    with pytest.raises(kerasdist.KerasdistError, match=told) as error:
        kerasdist.load(path, "best-4")
    assert "Load `which='best-3'` (`--which best-3`)." in str(error.value)
    assert "to its end" not in str(error.value)  # It is there.
    with pytest.raises(KerasdistError, match=r"or 'best-2' and so on\. Did you mean 'best'"):
        kerasdist.load(path, "bset")


def test_without_keep_best_there_is_one_file(tmp_path):
    kerasdist.fit(build, data(), batch_size=8, epochs=2, run_dir=tmp_path / "run", progress=False)
    assert (tmp_path / "run/best.keras").exists()
    assert not (tmp_path / "run/best").exists()


@pytest.mark.parametrize("wrong", [0, None, 1.5])
def test_a_wrong_number_is_refused(wrong, not_compiled):
    with pytest.raises(KerasdistError, match=rf"`keep_best={wrong}`"):
        kerasdist.fit(build, data(), batch_size=8, keep_best=wrong, progress=False)


class Folder(RunFolder):
    """Saves an epoch's name in the place of a model."""

    def save(self, name, model, weights):
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(model)


def attempt(what, write):
    write()


class Training:
    """Epochs with given losses, whose models are texts."""

    def __init__(self, path, count=2):
        self.folder = Folder(path, {"kerasdist": "0"}, resume=True)
        self.saved, self.best = 0, np.inf
        self.models = BestModels(self.folder, count, attempt, lambda: self.saved)

    def epoch(self, number, loss, *, text=None):
        engine = self.engine(text or f"epoch {number}")
        is_best = loss < self.best
        if is_best:
            self.best = loss
            Path(self.folder.path / "best.keras").unlink(missing_ok=True)
            Path(self.folder.path / "best.keras").write_text(engine.model)
        self.models.keep(engine, "loss", loss, epoch=number, step=number, is_best=is_best)

    def engine(self, text):
        state = SimpleNamespace(write_back=lambda *roles: None)
        settings = SimpleNamespace(ema=None)
        return SimpleNamespace(state=state, settings=settings, model=text)

    def files(self):
        return sorted(int(file.stem[-4:]) for file in self.folder.path.glob("best/*.keras"))

    def kept(self):
        return [model.epoch for model in kept_models.kept(self.folder.path)]


def test_what_was_pushed_out_stays_until_a_checkpoint_knows_of_it(tmp_path):
    training = Training(tmp_path / "run")
    for number, loss in enumerate([5.0, 4.0, 3.0], start=1):
        training.epoch(number, loss)
    assert (training.kept(), training.files()) == ([3, 2], [1, 2, 3])
    training.saved = 3
    training.models.clean()
    assert (training.kept(), training.files()) == ([3, 2], [2, 3])


def test_a_run_that_repeats_an_epoch_with_another_result_keeps_the_right_models(tmp_path):
    """As on GPUs without `deterministic`. The checkpoint is that of epoch 2."""
    training = Training(tmp_path / "run")
    for number, loss in enumerate([5.0, 4.0, 1.0], start=1):
        training.epoch(number, loss)
    (tmp_path / "run/metrics.jsonl").write_text(
        "".join(
            json.dumps({"kind": "epoch", "step": i, "epoch": i, "loss": loss}) + "\n"
            for i, loss in ((1, 5.0), (2, 4.0))
        )
    )
    again = Training(tmp_path / "run")
    again.best = 4.0
    again.models.rewind(2, None)
    assert (tmp_path / "run/best.keras").read_text() == "epoch 2"
    again.epoch(3, 9.0, text="repeated")
    assert again.kept() == [2, 1]
    assert (tmp_path / "run/best/epoch-0001.keras").read_text() == "epoch 1"


def test_a_value_that_is_not_finite_has_no_rank(tmp_path):
    training = Training(tmp_path / "run")
    training.epoch(1, 2.0)
    training.epoch(2, float("nan"))
    assert training.kept() == [1]


def test_accuracy_is_ranked_the_other_way_round():
    models = [KeptModel(1, 0.5), KeptModel(2, 0.9), KeptModel(3, 0.5)]
    assert [m.epoch for m in kept_models.ranked(models, "val_accuracy")] == [2, 1, 3]


KILLER = """
import os
import signal
from pathlib import Path

import keras


class Killer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def build_callbacks(config):
    return Killer()
"""


@pytest.mark.slow
def test_a_killed_run_keeps_the_models_of_an_undisturbed_one(tmp_path, command, tiny):  # noqa: F811
    asked = ["fit", "tiny", "--epochs", 6, "--keep-best", 2, "--save-every", 7, "--deterministic"]
    assert command(*asked, "--learning-rate", 0.1).code == 0
    (tiny / "callbacks.py").write_text(KILLER)
    with start(*asked, "--learning-rate", 0.1, "--run-dir", "killed-run", cwd=tmp_path) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = command(*asked, "--learning-rate", 0.1, "--run-dir", "killed-run")
    assert done.code == 0
    assert "best/ (the 2 best)" in done.out
    one, other = (
        json.loads(Path(run, "best/index.json").read_text())["models"]
        for run in ("runs/tiny/0001", "killed-run")
    )
    assert one == other
    assert len(list(Path("killed-run/best").glob("*.keras"))) == 2
    found = command("evaluate", "killed-run", "--which", "best-2", "--json")
    assert found.objects[0]["loss"] == pytest.approx(other[1]["value"], rel=1e-5)
    wrong = command("evaluate", "killed-run", "--which", "bset")
    assert wrong.code == 2
    assert "Expected best, best-2 and so on" in wrong.err
    assert "Did you mean 'best'" in wrong.err


def test_a_first_value_that_is_not_finite_does_not_stay_the_best(tmp_path):
    """No value is less than NaN."""
    training = Training(tmp_path / "run", count=1)
    best = BestModel(training.folder, None, attempt, training.models)
    path = training.folder.path / "best.keras"
    for number, value in enumerate([np.nan, 0.3, np.nan, 0.5], start=1):
        logs = {"loss": 0.1, "val_loss": float(value)}
        best.keep(training.engine(f"epoch {number}"), logs, epoch=number, step=number)
        assert path.exists() == (number > 1)
    assert path.read_text() == "epoch 2"
    assert best.value == 0.3
