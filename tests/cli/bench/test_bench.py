"""`kerasdist bench`: what measurements mean, and the command on a small recipe."""

import doctest
import json
import re
from xml.etree import ElementTree

import pytest

from kerasdist.cli.bench import picture, results
from kerasdist.cli.bench.command import show
from kerasdist.cli.bench.results import Bench, Measurement, verdict
from kerasdist.reports import plots
from tests import classifier_recipe

GOOD = {"input": 0.0, "compute": 0.98, "all_reduce": 0.01, "host": 0.01}


def measured(devices, rate, runner="kerasdist", batch_size=64, **split):
    parts = {**GOOD, **split} if split else dict(GOOD)
    rates = [0.9 * rate, rate, 1.1 * rate]
    return Measurement(runner, devices, batch_size, rates, 1.5, 2**30, parts)


def test_numbers_of_rounds():
    measurement = Measurement("kerasdist", 1, 8, [100.0, 80.0, 200.0])
    assert measurement.rate == 100
    assert measurement.spread == pytest.approx((200 - 80) / 2 / 100)
    assert Measurement("kerasdist", 1, 8, [7.0]).spread == 0


def test_shares_are_of_the_whole_step():
    measurement = measured(1, 10, input=1.0, compute=2.0, all_reduce=0.5, host=0.5)
    assert measurement.share("compute") == 0.5
    assert Measurement("kerasdist", 1, 8, [1.0]).share("host") == 0


def test_logical_cpus_are_the_same_hardware_and_gpus_are_more():
    strong = [measured(1, 100), measured(4, 90)]
    assert Bench("x", strong, [], [], True).efficiency(strong[1]) == pytest.approx(0.9)
    assert Bench("x", strong, [], [], False).efficiency(strong[1]) == pytest.approx(0.225)


def test_keras_is_compared_round_by_round():
    ours = Measurement("kerasdist", 2, 64, [10.0, 20.0, 40.0])
    keras = Measurement("keras", 2, 64, [5.0, 5.0, 40.0])
    other = Measurement("keras", 1, 64, [1.0, 1.0, 1.0])
    bench = Bench("x", [ours], [], [other, keras], True)
    assert bench.against(ours) == 2.0
    assert bench.against(Measurement("kerasdist", 2, 128, [1.0, 1.0, 1.0])) is None


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"input": 1.4}, "1 device: input-bound: 58% of each step waits for data."),
        ({"input": 0.4}, "1 device: 29% of each step waits for data. Use smaller inputs"),
        ({"all_reduce": 0.44}, "1 device: 31% of each step is all-reduce. Use a larger batch"),
        ({"host": 2.0}, "1 device: host-bound: 67% of each step leaves the devices idle."),
        ({"host": 0.5}, "1 device: 34% of each step leaves the devices idle."),
        (
            {"input": 0.092, "compute": 0.613, "all_reduce": 0.003, "host": 0.292},
            "1 device: 29% of each step leaves the devices idle. Steps are short",
        ),
        ({"input": 0.1, "host": 0.1}, "1 device: compute-bound: computing is 82%"),
        ({"host": 0.01}, "1 device: compute-bound: computing is 98% of each step."),
    ],
)
def test_the_verdict_names_what_holds_a_step_up(split, words):
    (line,) = verdict(Bench("x", [measured(1, 100, **split)], [], [], True))
    assert line.startswith(words)


def test_the_verdict_names_nothing_within_the_noise():
    measurement = measured(1, 100, host=0.25)
    measurement.rates = [60.0, 100.0, 140.0]
    (line,) = verdict(Bench("x", [measurement], [], [], True))
    assert line.startswith("1 device: compute-bound")


def test_the_verdict_on_scaling():
    one, four = measured(1, 100), measured(4, 60)
    larger = measured(4, 97, batch_size=256)
    line = verdict(Bench("x", [one, four], [larger], [], True))[-1]
    assert line == (
        "4 logical CPUs reach 0.60 of the speed of 1 device on the same cores, where 1 is the "
        "limit. With 256 examples per step it is 0.97: use a larger batch."
    )
    line = verdict(Bench("x", [one, four], [measured(4, 60, batch_size=256)], [], True))[-1]
    assert line.endswith("where 1 is the limit. A batch of 64 is small for this many devices.")
    line = verdict(Bench("x", [one, measured(4, 390)], [], [], False))[-1]
    assert line == "4 devices: 98% of a perfect speed-up."


def test_the_verdict_against_keras():
    bench = Bench("x", [measured(1, 100)], [], [measured(1, 50, "keras")], True)
    assert verdict(bench)[-1] == "1 device: 2.00 times the speed of Keras's fit."


def test_the_title_of_a_narrow_table_stays_in_one_line(capsys):
    name = "a recipe of [some] name"
    show(Bench(name, [measured(1, 100)], [], [], False))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"{name}: median of 3 rounds; scaling (1 is perfect)" in lines


def test_the_picture_is_xml_with_a_line_for_each_kind():
    bench = Bench(
        "a & b",
        [measured(1, 100), measured(2, 95)],
        [measured(2, 98, batch_size=128)],
        [measured(1, 50, "keras"), measured(2, 20, "keras")],
        True,
    )
    root = ElementTree.fromstring(picture.svg(bench))
    name = "{http://www.w3.org/2000/svg}"
    lines = [p for p in root.iter(f"{name}path") if p.get("class", "").startswith("line ")]
    assert len(lines) == 3
    words = {text.text for text in root.iter(f"{name}text")}
    assert {"a & b: examples per second", "the same batch", "Keras fit", "devices"} <= words


def test_rates_are_drawn_from_zero():
    """A difference within the noise must not look like a collapse."""
    bench = Bench("a", [measured(1, 100), measured(2, 90)], [], [], True)
    svg = picture.svg(bench)
    heights = [
        float(y) for y in re.findall(r'<circle class="dot c0" cx="[\d.]+" cy="([\d.]+)"', svg)
    ]
    ground = plots.HEIGHT - plots.BOTTOM
    assert (ground - heights[1]) / (ground - heights[0]) == pytest.approx(0.9, abs=0.01)
    assert '<text x="44" y="200.0" class="end">0</text>' in svg


def test_names_of_lines_do_not_touch():
    strong = [measured(1, 100), measured(2, 95)]
    bench = Bench("a", strong, [measured(2, 98)], [measured(1, 50, "keras")], True)
    root = ElementTree.fromstring(picture.svg(bench))
    places = {
        text.text: float(text.get("y"))
        for text in root.iter("{http://www.w3.org/2000/svg}text")
        if text.get("x") == "35"
    }
    assert list(places) == ["the same batch", "the same batch per device", "Keras fit"]
    above, middle, below = places.values()
    assert (middle - above, below - middle) == (16, 16)


def test_ticks_are_whole_numbers_of_devices():
    bench = Bench("a", [measured(1, 100), measured(2, 95)], [], [], True)
    root = ElementTree.fromstring(picture.svg(bench))
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    assert [text.text for text in texts if text.get("class") == "middle"] == ["1", "2"]


SLOW_DATA = """
import time

import keras
import numpy as np

CLASS_NAMES = ("low", "middle", "high")


class Slow(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(0.05)
        return {"image": np.ones((16, 6, 6, 1), "uint8"), "label": np.zeros(16, "int64")}


def build_data(config, split):
    return Slow()
"""
RECIPES = {
    "input-bound": {
        "config": classifier_recipe.CONFIG.replace("int = 16", "int | None = None"),
        "data": SLOW_DATA,
    },
    "host-bound": {},  # Its operations take microseconds.
    "compute-bound": {
        "model": classifier_recipe.MODEL.replace(
            "keras.layers.Dense(3)",
            "keras.Sequential([keras.layers.Dense(n) for n in (3000, 3000, 3)])",
        )
    },
}


@pytest.mark.parametrize("bound", RECIPES)
def test_the_verdict_on_a_recipe_whose_bottleneck_is_known(bound, command, tmp_path):
    classifier_recipe.write(tmp_path / "small", **RECIPES[bound])
    options = ("--counts", "1", "--rounds", 2, "--seconds", 0.2, "--json")
    outcome = command("bench", "small", *options)
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["verdict"][0].startswith(f"1 device: {bound}: "), content["strong"]
    (measured,) = content["strong"]
    # The trace spans no wait for a round. Tracing itself takes part of a millisecond.
    traced = sum(measured["seconds_per_step"].values())
    assert traced < 3 * 16 / measured["examples_per_second"] + 2e-3


def test_examples_of_docstrings_run():
    assert doctest.testmod(results).failed == 0


def test_the_command(command, tmp_path):
    classifier_recipe.write(tmp_path / "small")
    outcome = command(
        *("bench", "small", "--counts", "1,2", "--against", "keras"),
        *("--rounds", 2, "--seconds", 0.05),
    )
    assert outcome.code == 0, outcome.err
    content = json.loads((tmp_path / "bench/small/bench.json").read_text())
    assert [m["devices"] for m in content["strong"]] == [1, 2]
    assert [(m["devices"], m["batch_size"]) for m in content["weak"]] == [(2, 32)]
    assert [m["devices"] for m in content["keras"]] == [1, 2]
    for each in (*content["strong"], *content["weak"]):
        assert len(each["rounds"]) == 2
        assert each["examples_per_second"] > 0
        assert sum(each["seconds_per_step"].values()) > 0
        assert each["peak_memory"] > 50e6
        assert each["seconds_to_first_step"] > 0
    assert content["strong"][0]["efficiency"] == 1
    assert content["strong"][1]["seconds_per_step"]["all_reduce"] > 0
    assert content["strong"][0]["seconds_per_step"]["all_reduce"] == 0
    assert content["strong"][0]["against_keras"] > 0
    assert "times the speed of Keras's fit." in outcome.out
    assert max(map(len, outcome.lines[:12])) <= 80
    ElementTree.fromstring((tmp_path / "bench/small/bench.svg").read_text())


def test_a_training_that_fails_is_said(command, tmp_path):
    classifier_recipe.write(tmp_path / "small")
    with (tmp_path / "small/model.py").open("a") as file:
        file.write("\n\ndef build_model(config):\n    raise ZeroDivisionError('none')\n")
    outcome = command("bench", "small", "--counts", "1")
    assert outcome.code == 2
    assert "while measuring kerasdist on 1 devices: ZeroDivisionError: none" in outcome.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--counts 1,x", "Received `--counts 1,x`. Expected numbers of devices"),
        ("--against kers", "Did you mean 'keras'?"),
        ("--rounds 0", "Expected a whole number of at least 1."),
        ("--seconds 0", "Expected a number above 0."),
        ("--batch-size 3 --counts 1,4", "Expected at least one example per device."),
    ],
)
def test_wrong_options(command, tmp_path, argv, message):
    classifier_recipe.write(tmp_path / "small")
    outcome = command("bench", "small", *argv.split())
    assert outcome.code == 2
    assert message in outcome.err
