"""A run's folder."""

import hashlib
import json
import os
import threading

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.runs import catalog
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.trained_model import save_model, weights_sha256


def small_model():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def test_fit_writes_configuration_metrics_model_and_result(tmp_path, regression):
    model = small_model()
    history = kerasdist.fit(
        model, regression, batch_size=8, epochs=2, run_dir=tmp_path / "run", progress=False
    )
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "finished"
    assert (result["steps"], result["epochs"], result["examples_seen"]) == (10, 2, 74)
    assert result["loss"] == history.history["loss"][-1]
    assert result["mae"] == history.history["mae"][-1]
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    assert result["weights_sha256"] == digest
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [5, 10]
    loaded = keras.models.load_model(tmp_path / "run/final.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_the_final_model_has_the_averaged_weights_and_the_caller_the_raw_ones(tmp_path, regression):
    model = small_model()
    history = kerasdist.fit(
        model, regression, batch_size=8, ema=0.9, run_dir=tmp_path / "run", progress=False
    )
    loaded = keras.models.load_model(tmp_path / "run/final.keras")
    average, raw = history.ema_weights[0], model.get_weights()[0]
    assert np.abs(average - raw).max() > 1e-3
    np.testing.assert_array_equal(loaded.get_weights()[0], average)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["weights_sha256"] == weights_sha256(model)


def test_folders_are_numbered_after_the_highest(tmp_path):
    folders = [RunFolder.numbered(tmp_path / "new", {}).path.name for _ in range(3)]
    assert folders == ["0001", "0002", "0003"]
    (tmp_path / "new/0041").mkdir()
    (tmp_path / "new/notes").mkdir()
    assert RunFolder.numbered(tmp_path / "new", {}).path.name == "0042"


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path):
    found = []
    barrier = threading.Barrier(8)

    def claim():
        barrier.wait()
        found.append(RunFolder.numbered(tmp_path, {}).path.name)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"000{i}" for i in range(1, 9)]


def test_a_used_folder_and_a_file_are_refused(tmp_path):
    used = RunFolder(tmp_path / "used", {"a": 1})
    with pytest.raises(KerasdistError, match="not empty"):
        RunFolder(used.path, {"a": 2})
    assert json.loads((used.path / "config.json").read_text()) == {"a": 1}
    (tmp_path / "file").write_text("x")
    with pytest.raises(KerasdistError, match="is a file"):
        RunFolder(tmp_path / "file", {})
    with pytest.raises(KerasdistError, match="cannot be written: Not a directory"):
        RunFolder(tmp_path / "file/run", {})


def test_a_start_that_was_killed_before_it_had_a_configuration_can_be_repeated(tmp_path):
    (tmp_path / ".config.json.tmp").write_text('{"keras')
    RunFolder(tmp_path, {"kerasdist": "0.1.0"}, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(KerasdistError, match="cannot be written"):
        RunFolder(tmp_path / "run", {})


def test_discard_takes_back_only_what_it_made(tmp_path):
    RunFolder(tmp_path / "a/b", {}).discard()
    assert not (tmp_path / "a").exists()
    (tmp_path / "mine").mkdir()
    RunFolder(tmp_path / "mine", {}).discard()
    assert list((tmp_path / "mine").iterdir()) == []
    begun = RunFolder(tmp_path / "begun", {})
    begun.log(step=1)
    begun.discard()
    assert (begun.path / "metrics.jsonl").exists()


def test_stop_says_why_and_how_far(tmp_path):
    folder = RunFolder(tmp_path / "run", {}, "synthetic")
    folder.log(kind="step", step=10, loss=float("nan"))
    folder.stop("failed", "ValueError: x")
    assert json.loads((folder.path / "result.json").read_text()) == {
        "status": "failed",
        "steps": 10,
        "error": "ValueError: x",
        "dataset": "synthetic",
    }
    assert json.loads((folder.path / "metrics.jsonl").read_text())["loss"] is None


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_a_run_that_continues_forgets_how_it_ended(status, tmp_path):
    folder = RunFolder(tmp_path / "run", {"kerasdist": "0.1.0"})
    (folder.path / "result.json").write_text(json.dumps({"status": status}))
    folder.rewind(10, 1, is_done=True)
    assert catalog.status(folder.path) == status
    folder.rewind(10, 1)
    assert catalog.status(folder.path) == "unfinished"


class Opaque(keras.Model):
    """Keras cannot describe it: its constructor takes an object."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.other = keras.layers.Dense(2)

    def call(self, x):
        return self.other(self.layer(x))

    def get_config(self):
        raise NotImplementedError("no plain values")


def test_the_weights_of_a_model_that_cannot_be_described_are_saved(tmp_path):
    models = [Opaque(keras.layers.Dense(3)) for _ in range(2)]
    outputs = [model(np.ones((1, 4))) for model in models]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    assert save_model(models[0], tmp_path / "final.keras") == "weights"
    assert [p.name for p in tmp_path.iterdir()] == ["final.keras"]
    models[1].load_weights(tmp_path / "final.keras")
    np.testing.assert_array_equal(outputs[0], models[1](np.ones((1, 4))))
    assert save_model(small_model(), tmp_path / "whole.keras") == "model"


def test_a_full_disk_is_no_reason_to_save_less(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    model = small_model()
    monkeypatch.setattr(model, "save", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(model, tmp_path / "final.keras")
    assert list(tmp_path.iterdir()) == []


def test_each_start_says_what_data_it_trains_on(tmp_path):
    for dataset in ("synthetic", "files"):
        RunFolder(tmp_path / "run", {"kerasdist": "1"}, dataset, resume=True).describe({}, {"n": 1})
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment == {
        "n": 1, "dataset": "files", "earlier": [{"n": 1, "dataset": "synthetic"}]
    }  # fmt: skip
