"""The study's folder: the same suggestions everywhere, and nothing lost by a kill."""

import sys

import pytest

from kerasdist.cli.tune import study as studies
from kerasdist.cli.tune.space import Choice, Range, Space
from kerasdist.cli.tune.study import PRUNED_AT, Study
from kerasdist.errors import KerasdistError
from tests import run_folders

pytest.importorskip("optuna")
SPACE = Space({"rate": Range(1e-4, 1.0, is_log=True), "kind": Choice(("a", "b", "c"))})


def made(folder, *, monitor="val_loss", prune="median", seed=0, **identity):
    return Study(folder, {"recipe": "x", **identity}, monitor=monitor, prune=prune, seed=seed)


def loss(settings):
    return abs(settings["rate"] - 0.01) + "abc".index(settings["kind"])


def run(study, count, most=99):
    found = []
    for _ in range(count):
        with study.next(most, SPACE) as taken:
            if taken is None:
                break
            trial, settings = taken
            found.append(settings)
            study.finish(trial, "finished", loss(settings))
    return found


def test_suggestions_are_the_same_however_often_the_process_is_new(tmp_path):
    together = run(made(tmp_path / "one"), 20)
    apart = [run(made(tmp_path / "other"), 1)[0] for _ in range(20)]
    assert together == apart
    assert len({str(settings) for settings in together}) == 20
    assert together != run(made(tmp_path / "seed", seed=1), 20)
    # It learns: after the random ones, it tries what was good.
    assert sum(map(loss, together[12:])) < sum(map(loss, together[:8]))


def test_a_study_ends_with_its_number_of_trials(tmp_path):
    study = made(tmp_path / "study")
    assert len(run(study, 9, most=4)) == 4
    assert len(run(made(tmp_path / "study"), 9, most=6)) == 2


def test_two_processes_do_not_get_the_same_trial(tmp_path):
    one, other = made(tmp_path / "study"), made(tmp_path / "study")
    with one.next(9, SPACE) as first, other.next(9, SPACE) as second:
        assert (first[0].number, second[0].number) == (0, 1)
        with one.next(2, SPACE) as third:
            assert third is None


def test_an_abandoned_trial_is_continued_with_its_settings(tmp_path):
    study = made(tmp_path / "study")
    with study.next(9, SPACE) as (trial, settings):
        study.report(trial, 1, 0.5)
    again = made(tmp_path / "study")
    with again.next(9, SPACE) as (trial, found):
        assert (trial.number, found) == (0, settings)
        assert again.report(trial, 1, 0.7) is False  # It stays what it was.
        assert again.trials()[0].intermediate_values == {0: 0.5}
        again.finish(trial, "finished", 0.5)
    assert again.trials()[0].state.name == "COMPLETE"


def test_half_a_line_of_a_killed_process_is_removed(tmp_path):
    run(made(tmp_path / "study"), 2)
    journal = tmp_path / "study/study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker_')
    again = made(tmp_path / "study")
    assert run(again, 1)
    assert len(made(tmp_path / "study").trials()) == 3
    assert journal.read_bytes().startswith(whole)


def test_a_bad_trial_is_stopped_by_the_median(tmp_path):
    study = made(tmp_path / "study")
    for _ in range(5):
        with study.next(99, SPACE) as (trial, _):
            assert not any(study.report(trial, epoch, 1.0 / epoch) for epoch in (1, 2, 3))
            study.finish(trial, "finished", 0.3)
    with study.next(99, SPACE) as (trial, _):
        assert study.report(trial, 1, 9.0) is False  # Not after its first epoch.
        assert study.report(trial, 2, 9.0) is True
        assert trial.user_attrs[PRUNED_AT] == 2
        study.finish(trial, "pruned", 9.0)
    assert study.trials()[-1].state.name == "PRUNED"


def test_higher_accuracy_is_better(tmp_path):
    study = made(tmp_path / "study", monitor="val_accuracy", prune="none")
    for _ in range(6):
        with study.next(99, SPACE) as (trial, _):
            assert study.report(trial, 2, 0.1) is False
            study.finish(trial, "finished", 0.1)
    assert study.is_higher_better


def test_a_metric_whose_name_says_nothing_says_itself_that_higher_is_better(tmp_path):
    study = made(tmp_path / "study", monitor="val_quality", prune="median")
    assert not study.is_higher_better
    for number in range(7):
        with study.next(99, SPACE) as (trial, _):
            run = study.run_of(trial.number)
            run.mkdir()
            (run / "environment.json").write_text('{"better": {"quality": "higher"}}')
            value = 0.1 if number == 6 else 0.9
            assert not study.report(trial, 1, value)
            assert study.report(trial, 2, value) == (number == 6)  # The lowest is the worst.
            study.finish(trial, "finished", value)
    assert study.is_higher_better
    assert made(tmp_path / "study", monitor="val_quality").is_higher_better


@pytest.mark.parametrize("has_validation", [True, False])
def test_without_a_validation_the_training_loss_is_called_so(tmp_path, has_validation):
    study = made(tmp_path / "study", monitor=None)
    assert study.monitor == "val_loss"  # Nobody knows yet.
    with study.next(99, SPACE) as (trial, _):
        logged = run_folders.lines(2, validation=has_validation)
        run_folders.write(study.run_of(trial.number), logged=logged)
        study.finish(trial, "finished", 0.1)
    assert study.monitor == ("val_loss" if has_validation else "loss")


@pytest.mark.parametrize("outcome", ["diverged", "out of memory", "failed: for a reason"])
def test_other_outcomes_count_as_trials(tmp_path, outcome):
    study = made(tmp_path / "study")
    with study.next(1, SPACE) as (trial, _):
        study.finish(trial, outcome, None)
    assert study.trials()[0].state.name == ("FAIL" if "failed" in outcome else "PRUNED")
    assert run(study, 1, most=1) == []


def test_another_study_is_refused_with_the_differences(tmp_path):
    made(tmp_path / "study", epochs=3)
    with pytest.raises(KerasdistError, match="is another one: epochs was 3 and is 4"):
        made(tmp_path / "study", epochs=4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(KerasdistError, match="is not empty, and is not a study"):
        made(tmp_path / "other")


def test_without_optuna_there_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(KerasdistError, match=r"needs Optuna.*pip install 'kerasdist\[tune\]'"):
        studies.optuna()
