"""Which folders are runs, and how they stand."""

import json

import pytest

from kerasdist import KerasdistError
from kerasdist.runs import catalog
from kerasdist.runs.lock import RunLock


def make_run(path, **result):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"kerasdist": "0.1.0"}))
    if result:
        (path / "result.json").write_text(json.dumps(result))
    return path


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"other": 1}', "\x00"])
def test_a_folder_without_kerasdists_configuration_is_not_a_run(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert not catalog.is_run(tmp_path)
    assert catalog.read_config(tmp_path) is None


def test_runs_are_found_by_number(tmp_path):
    for name in ("0002", "0010", "0001"):
        make_run(tmp_path / name)
    (tmp_path / "0011").mkdir()  # Not a run, but its number is taken.
    make_run(tmp_path / "12a")
    assert [path.name for path in catalog.newest_first(tmp_path)] == ["0010", "0002", "0001"]
    assert catalog.next_run_folder(tmp_path).name == "0012"
    assert catalog.next_run_folder(tmp_path / "new").name == "0001"


def test_a_run_is_running_while_it_is_locked(tmp_path):
    run = make_run(tmp_path / "run", status="interrupted")
    assert catalog.current_status(run) == "interrupted"
    with RunLock(run):
        assert catalog.current_status(run) == "running"
        assert catalog.status(run) == "interrupted"
    assert catalog.current_status(make_run(tmp_path / "killed")) == "unfinished"


def test_the_error_about_a_wrong_folder_suggests_a_run(tmp_path):
    make_run(tmp_path / "cifar10" / "0001")
    with pytest.raises(KerasdistError, match=r"does not exist.*Did you mean '.*cifar10/0001'"):
        catalog.check_run(tmp_path / "cifar10" / "0002")
    with pytest.raises(KerasdistError, match=r"is not a run.*Did you mean '.*cifar10/0001'"):
        catalog.check_run(tmp_path / "cifar10")


def test_the_error_about_a_models_file_says_what_loads_it(tmp_path):
    (tmp_path / "m.keras").touch()
    with pytest.raises(KerasdistError, match=r"m.keras' is a file\..*`keras.saving.load_model`"):
        catalog.check_run(tmp_path / "m.keras")
    with pytest.raises(KerasdistError) as caught:
        catalog.check_run(tmp_path / "nope.keras")
    assert "nope.keras' does not exist" in str(caught.value)
    assert "`keras.saving.load_model` loads a model's file" in str(caught.value)
    assert "folder '" not in str(caught.value)
    with pytest.raises(KerasdistError) as caught:
        catalog.check_run(tmp_path / "runs")
    assert "load_model" not in str(caught.value)


def test_a_run_without_a_final_model_has_not_finished(tmp_path):
    run = make_run(tmp_path / "run")
    catalog.check_run(run)
    told = r'has not finished.*`which="last"` \(`--which last`\)'
    with pytest.raises(KerasdistError, match=told):
        catalog.check_finished(run)
    (run / "final.keras").touch()
    catalog.check_finished(run)
