"""The comparison of two sessions of Keras's tests."""

import json

import pytest

from tests.keras_own import sessions, table


def session_of(**outcomes):
    endings = {}
    for name, outcome in outcomes.items():
        error = "" if outcome in ("passed", "skipped") else outcome
        outcome = outcome if not error else "failed"
        endings[f"a_test.py::{name}"] = sessions.Ending(name, outcome, engines=1, error=error)
    return sessions.Session(endings)


def test_only_what_keras_passes_counts():
    keras_session = session_of(one="passed", two="passed", three="skipped", four="ValueError: x")
    ours = session_of(one="passed", two="TypeError: y", three="passed", four="passed")
    comparison = table.compare(keras_session, ours)
    assert (comparison["passed_by_keras"], comparison["passed_with_kerasdist"]) == (2, 1)
    assert comparison["share"] == 0.5
    assert comparison["failed_or_skipped_by_keras"] == 2
    assert comparison["files"] == {"a_test.py": [2, 1]}


def test_a_test_that_did_not_run_is_a_failure():
    comparison = table.compare(session_of(one="passed"), session_of())
    assert comparison["causes"][0]["cause"] == "it did not run"


def test_failures_with_the_same_cause_are_one_group():
    ours = session_of(one="KeyError: 'a' at 17", two="KeyError: 'bc' at 3.5", three="TypeError: z")
    comparison = table.compare(session_of(one="passed", two="passed", three="passed"), ours)
    assert [len(group["failures"]) for group in comparison["causes"]] == [2, 1]


def test_a_test_that_killed_its_process_failed(tmp_path):
    results = tmp_path / "results.jsonl"
    records = [{"test": "a", "outcome": "started"}, {"test": "a", "outcome": "passed"}]
    records.append({"test": "b", "outcome": "started"})
    results.write_text("".join(json.dumps(record) + "\n" for record in records))
    endings = sessions.read_endings(results)
    assert endings["a"].outcome == "passed"
    assert (endings["b"].outcome, endings["b"].error) == ("failed", "the process died")


def test_a_folder_without_keras_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"trainer_test\.py.*copy of Keras's repository"):
        sessions.copy_tests(tmp_path, tmp_path)
