"""`kerasdist doctor`: what it looks at, and what it says when something is wrong."""

import importlib

import pytest

# The package's own name for it is the function.
doctor = importlib.import_module("kerasdist.cli.commands.doctor")


def test_a_machine_on_which_training_works(command):
    done = command("doctor")
    assert (done.code, done.err) == (0, "")
    marks = {line[0] for line in done.lines if not line.startswith(" ")}
    assert marks <= {"✓", "-"}
    names = [line[2:].split(":")[0] for line in done.lines if line[0] == "✓"]
    assert names[:5] == ["versions", "devices", "one device", "two replicas", "writing here"]
    found = command("doctor", "--json").objects
    assert all(item["ok"] for item in found if item["is_needed"])
    assert command("doctor", "--quiet").out == ""


@pytest.mark.parametrize(
    ("function", "name"), [("check_replicas", "two replicas"), ("check_writing", "writing here")]
)
def test_what_does_not_work_is_told_with_a_fix_and_exits_1(command, monkeypatch, function, name):
    def broken(*_):
        raise OSError("it does not\nwork")

    monkeypatch.setattr(doctor, function, broken)
    done = command("doctor", "--quiet")
    assert done.code == 1
    assert f"✗ {name}: OSError: it does not\n  " in done.out


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_wrong_step_is_noticed(monkeypatch, num_replicas):
    doctor.check_replicas(num_replicas)
    fit = doctor.api.fit
    monkeypatch.setattr(
        doctor.api, "fit", lambda *args, **options: fit(*args, **{**options, "steps": 2})
    )
    with pytest.raises(ValueError, match="the weights are"):
        doctor.check_replicas(num_replicas)


def test_a_missing_package_is_no_failure_and_its_install_is_told(command, monkeypatch):
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    done = command("doctor")
    assert done.code == 0
    assert "- TensorBoard: not installed\n  To use it: pip install tensorboard" in done.out
    onnx = "- export to ONNX: not installed: tf2onnx, onnx, onnxruntime\n  To use it: pip install"
    assert onnx in done.out
    assert done.out.count("kerasdist[onnx]") == 1


def test_a_gpu_that_cannot_be_used_is_told_and_training_still_works(command, monkeypatch):
    monkeypatch.setattr(doctor.gpus, "unusable_gpus", lambda: "Update the driver.")
    done = command("doctor")
    assert done.code == 0
    assert "- GPU: TensorFlow does not see it\n  Update the driver." in done.out
