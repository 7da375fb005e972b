"""Unmodified Keras programs give Keras's own result through kerasdist, on several devices."""

import ast
import functools

import numpy as np
import pytest

import kerasdist
from tests.programs import compare, harness, outcome
from tests.programs.expectations import PROGRAMS, QUICK, Program
from tests.programs.harness import Result, Setup

SCRIPTS = {path.stem: path.read_text() for path in harness.SCRIPTS.glob("*.py")}
needs_enable = pytest.mark.skipif(
    not hasattr(kerasdist, "enable"), reason="needs kerasdist.enable, which is not there yet"
)


def test_every_script_has_its_expectations():
    assert set(SCRIPTS) == set(PROGRAMS)
    assert len(PROGRAMS) >= 44


def test_at_most_three_programs_may_be_refused():
    assert len([program for program in PROGRAMS.values() if program.refused]) <= 3


def test_what_depends_on_the_shards_or_has_a_tolerance_says_why():
    for program in PROGRAMS.values():
        is_exact = program.compares_with == "keras" and program.tolerance <= 1e-9
        assert bool(program.why) is not is_exact, program.name


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_is_plain_keras(name):
    text = SCRIPTS[name]
    assert "kerasdist" not in text
    assert "keras.utils.set_random_seed" in text
    assert ".fit(" in text or ".train_on_batch(" in text
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring
    assert "\n" not in docstring


@pytest.mark.parametrize("name", SCRIPTS)
def test_expectations_know_the_kind_of_program(name):
    program, text = PROGRAMS[name], SCRIPTS[name]
    assert program.own_step == ("def train_step" in text)
    assert program.keras_hub == ("import keras_hub" in text)
    assert program.torch == ("import torch" in text)


def test_the_values_of_a_program_are_its_models_histories_and_numbers():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    history = keras.callbacks.History()
    history.history = {"loss": [2.0, 1.0]}
    found = outcome.collect(
        {
            "model": model,
            "history": history,
            "scores": {"accuracy": 0.5},
            "losses": [3.0, 2.0],
            "both": [np.zeros(2), 1],
            "text": "no number",
            "words": np.array(["a"]),
            "_private": 1.0,
        }
    )
    names = ["both/0", "both/1", "history/history/loss", "losses", "scores/accuracy"]
    assert sorted(found) == [*names, "weights/model/000", "weights/model/001"]
    np.testing.assert_array_equal(found["losses"], [3.0, 2.0])


def test_a_difference_is_relative_to_large_values_only():
    reference = {"small": np.array([0.0, 0.5]), "large": np.array([1000.0])}
    changed = {"small": np.array([0.0, 0.5]), "large": np.array([1001.0])}
    assert outcome.largest_difference(changed, reference) == (pytest.approx(1e-3), "large")
    changed["small"] = np.array([0.25, 0.5])
    assert outcome.largest_difference(changed, reference) == (0.25, "small")


@pytest.mark.parametrize(
    "changed",
    [{}, {"a": np.zeros(2), "b": np.zeros(1)}, {"a": np.zeros(3)}, {"a": np.array([0, np.nan])}],
    ids=["missing", "more", "shape", "nan"],
)
def test_what_cannot_be_compared_differs_infinitely(changed):
    assert outcome.largest_difference(changed, {"a": np.zeros(2)})[0] == float("inf")
    assert not outcome.same_bits(changed, {"a": np.zeros(2)})


def test_one_bit_of_a_weight_changes_the_hash():
    weight = np.ones(3)
    other = weight.copy()
    other[1] = np.nextafter(1.0, 2.0)
    assert outcome.sha256_of_weights({"weights/model/000": weight, "loss": 1}) != (
        outcome.sha256_of_weights({"weights/model/000": other, "loss": 1})
    )
    assert not outcome.same_bits({"a": weight}, {"a": other})
    assert outcome.same_bits({"a": weight}, {"a": weight.copy()})


def result(value=1.0, **kwargs):
    return Result("p", 0.0, {"weights/model/000": np.array([value])}, **kwargs)


def test_a_verdict_on_a_difference_above_the_tolerance():
    verdict = compare.judge(Program("p"), result(), {2: result(1 + 1e-6)}, {})
    assert verdict.problems == ["2 devices: weights/model/000 differs by 1.0e-06"]
    assert not compare.judge(Program("p"), result(), {2: result(1 + 1e-12)}, {}).problems


def test_a_verdict_on_other_bits():
    exact = {1: result(), 2: result(1 + 1e-15)}
    verdict = compare.judge(Program("p"), result(), {}, exact)
    assert verdict.problems == ["deterministic runs differ in bits"]
    assert compare.judge(Program("p"), result(), {}, {1: result(), 2: result()}).bits


def test_a_program_may_be_refused_only_by_name():
    refused = result(error="KerasdistError: no stateful layers", refused=True)
    crashed = result(error="ValueError: stateful")
    allowed = Program("p", refused="stateful")
    assert compare.judge(allowed, result(), {2: refused}, {}).refused == refused.error
    assert compare.judge(allowed, result(), {2: crashed}, {}).problems == [crashed.error]
    assert compare.judge(Program("p"), result(), {2: refused}, {}).problems == [refused.error]
    other = Program("p", refused="accumulation")
    assert compare.judge(other, result(), {2: refused}, {}).problems == [refused.error]


def test_the_harness_runs_a_program_by_plain_keras_and_reports_errors():
    results = harness.run(["functional", "there_is_none"], Setup(floatx="float64"))
    values = results["functional"].values
    assert values["weights/model/000"].shape == (12, 16)
    assert values["weights/model/000"].dtype == "float64"
    assert values["history/history/val_loss"].shape == (3,)
    assert results["functional"].sha256 == outcome.sha256_of_weights(values)
    assert results["there_is_none"].error.startswith("FileNotFoundError")


@functools.cache
def verdicts(names, devices, deterministic):
    found = compare.compare(list(names), list(devices), deterministic)
    return {verdict.program.name: verdict for verdict in found}


def group_of(name, names):
    """The programs that one harness runs together with this one."""
    return next(tuple(group) for group in compare.groups(names, together=20) if name in group)


@needs_enable
@pytest.mark.parametrize("name", QUICK)
def test_a_program_gives_the_reference_on_two_devices(name):
    verdict = verdicts(group_of(name, QUICK), (2,), False)[name]
    assert not verdict.problems


@pytest.mark.slow
@needs_enable
@pytest.mark.parametrize("names", list(compare.groups(PROGRAMS)), ids=lambda names: names[0])
def test_all_programs_give_the_reference_and_the_same_bits(names):
    names = [name for name in names if not compare.lacking(PROGRAMS[name])]
    found = compare.compare(names, [1, 2, 4], deterministic=True)
    problems = {verdict.program.name: verdict.problems for verdict in found}
    assert not {name: what for name, what in problems.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize("names", list(compare.groups(PROGRAMS)), ids=lambda names: names[0])
def test_plain_keras_gives_the_same_bits_twice(names):
    names = [name for name in names if not compare.lacking(PROGRAMS[name])]
    assert not [line for line in compare.repeat(names) if line[2]]
