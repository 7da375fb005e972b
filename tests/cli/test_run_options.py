"""The arguments of commands on a run."""

from pathlib import Path

import pytest

from kerasdist import KerasdistError
from kerasdist.cli.run_options import parse_evaluate, parse_export
from tests import run_folders


def test_evaluate_names_a_run_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_folders.finished(tmp_path / "runs/x/0001")
    (tmp_path / "runs/x/0001/final.keras").write_text("")
    run, parsed = parse_evaluate(["runs/x/0001", "--split", "train"])
    assert run == Path("runs/x/0001")
    assert parsed["split"] == "train"
    for argv in ([], ["--split", "train"]):
        with pytest.raises(KerasdistError, match="The run is missing"):
            parse_evaluate(argv)


@pytest.mark.parametrize(
    ("name", "format"),
    [("tflite", "litert"), ("TFLite", "litert"), ("savedmodel", "saved_model"), ("keras", "keras")],
)
def test_a_format_by_another_name(tmp_path, name, format):
    run_folders.finished(tmp_path / "run")
    (tmp_path / "run/final.keras").write_text("")
    _, target, options = parse_export([str(tmp_path / "run"), "--format", name])
    assert target.format == options["format"] == format
