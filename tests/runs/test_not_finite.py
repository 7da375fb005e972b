"""A step that is not finite stops a run, or is left out; nothing of it reaches a file."""

import io
import json
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.runs.catalog import status
from kerasdist.runs.checkpoints import Store
from tests.runs.small_runs import STEPS, digest


def all_arrays(run):
    """Every array of every file and checkpoint of a run."""
    store = Store(run / "checkpoints")
    for step in store.steps():
        path = run / "checkpoints" / f"step-{step:08d}"
        only = path.parent.parent / "only" / "checkpoints"
        only.mkdir(parents=True)
        shutil.copytree(path, only / path.name)
        yield from Store(only).newest().arrays.items()
        shutil.rmtree(only.parent)
    for name in ("best.keras", "final.keras"):
        if (run / name).exists():
            yield from arrays_of_model(run / name)


def arrays_of_model(path):
    with zipfile.ZipFile(path) as archive:
        file = h5py.File(io.BytesIO(archive.read("model.weights.h5")))
    found = []
    file.visititems(lambda key, item: found.append((key, item)))
    return [(key, item[()]) for key, item in found if isinstance(item, h5py.Dataset)]


def where_huge(run):
    """The step and the replica of two that the huge example comes to, in the first epoch."""
    note = json.loads((run / "nan.json").read_text())
    place = note["examples"].index(25)
    return note["step"], 0 if place < len(note["examples"]) // 2 else 1


def test_not_finite_on_one_replica_of_two_stops_the_command_with_3(tmp_path, fit_command):
    run = tmp_path / "run"
    code, _, err = fit_command("run", "--huge", "25", "--devices", "2")
    assert code == 3
    note = json.loads((run / "nan.json").read_text())
    step, replica = where_huge(run)
    assert step > 2  # Else nothing was saved before.
    assert (note["step"], note["replica"]) == (step, replica)
    assert f"Step {step} is not finite: its loss is inf" in err
    assert f"on replica {replica}" in err
    assert status(run) == "diverged"
    assert Store(run / "checkpoints").newest().step == (step - 1) // 2 * 2
    arrays = list(all_arrays(run))
    assert len(arrays) > 5
    assert all(np.isfinite(array).all() for _, array in arrays)


def test_not_finite_on_one_replica_of_two_is_left_out_on_both(tmp_path, fit_command):
    fit_command("stopped", "--huge", "25", "--devices", "2")
    step, replica = where_huge(tmp_path / "stopped")
    code, out, _ = fit_command("run", "--huge", "25", "--devices", "2", "--on-nan", "skip")
    assert code == 0
    assert replica in (0, 1)
    assert out.count("left out a step that is not finite") == 4  # once an epoch
    assert f"after step {step - 1}\n" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("finished", STEPS - 4)
    arrays = list(all_arrays(tmp_path / "run"))
    assert len(arrays) > 10
    assert all(np.isfinite(array).all() for _, array in arrays)
    assert fit_command("one", "--huge", "25", "--on-nan", "skip", "--devices", "1")[0] == 0
    assert digest(tmp_path / "one") == digest(tmp_path / "run")


def test_a_training_in_python_that_diverged_is_listed_as_that(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.full((16, 2), 1e30, "float32")
    with pytest.raises(kerasdist.DivergedError):
        kerasdist.fit(model, (x, x[:, :1]), batch_size=8, run_dir=tmp_path / "run", progress=False)
    assert status(tmp_path / "run") == "diverged"
