"""The options that commands share, and the page about them."""

import re
from pathlib import Path

import pytest

from kerasdist import KerasdistError
from kerasdist.cli import main, options
from kerasdist.cli.parser import Option, parse
from kerasdist.devices import names

DEVICES = "auto|1|6|0,2|0, 1|CPU:0|cpu|cpu:4|gpu|GPU:3|/gpu:1|/device:CPU:0|CPU:0,CPU:1|cpu:0, 1"


@pytest.mark.parametrize("text", DEVICES.split("|"))
def test_the_syntax_of_devices_is_that_of_fit(text):
    assert options.RUN_OPTIONS["devices"].valid(text)
    assert names.resolve_names(text, soft=True)


@pytest.mark.parametrize("text", ["", "0", "two", "cpu;1", "CPU:0,gpus", "cpu,gpu", "tpu:0", "-1"])
def test_what_devices_cannot_read_is_refused_before_tensorflow_is_imported(text):
    assert not options.RUN_OPTIONS["devices"].valid(text)
    with pytest.raises(KerasdistError):
        names.resolve_names(text, soft=True)


COMMANDS = (
    "fit",
    "tune",
    "launch",
    "evaluate",
    "predict",
    "export",
    "new",
    "runs",
    "board",
    "bench",
    "doctor",
)


def test_every_option_of_the_page_exists(capsys):
    page = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
    for command in COMMANDS:
        assert main.main([command, "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    named = set(re.findall(r"--[a-z][a-z-]*", page.read_text()))
    assert named - known - {"--model", "--data"} == set()
    assert len(named) > 10


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        ([], None),
        (["--freeze"], "all"),
        (["--freeze", "--flag"], "all"),
        (["--freeze", "3"], 3),
        (["--freeze=3"], 3),
    ],
)
def test_an_option_may_go_without_a_value(argv, value):
    known = {
        "freeze": Option(int | str | None, None, "a number", without_value="all"),
        "flag": Option(bool, False, "a flag"),
    }
    assert parse({"run": known}, argv, "kerasdist", "")["run"]["freeze"] == value


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        ([], None),
        (["--with-header"], True),
        (["--no-with-header"], False),
        (["--no-with-header", "--no-flag"], False),
        (["--with-header", "false"], False),
    ],
)
def test_yes_no_or_neither(argv, value):
    known = {
        "with_header": Option(bool | None, None, "a header", without_value="true"),
        "flag": Option(bool, True, "a flag"),
    }
    assert parse({"run": known}, argv, "kerasdist", "")["run"]["with_header"] is value
