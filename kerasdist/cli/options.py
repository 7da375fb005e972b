"""The options of the commands that train: `fit`, `verify` and `bench`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from kerasdist.cli.parser import Option, Options, parse
from kerasdist.errors import KerasdistError, closest

# The texts that `--devices` accepts. Whether such a device exists, only TensorFlow knows.
_DEVICE = r"/?(device:)?(cpu|gpu)"
_ITEM = rf"(\d+|{_DEVICE}:\d+)"
_DEVICES = re.compile(rf"auto|[1-9]\d*|{_DEVICE}(:\d+)?|{_ITEM}(\s*,\s*{_ITEM})+", re.I)
_COUNTS = re.compile(r"[1-9]\d*(\s*,\s*[1-9]\d*)*")
_INTERVAL = r"([1-9]\d*|\d+(\.\d+)?s|epoch)"
_SAVE_EVERY = re.compile(rf"{_INTERVAL}(,{_INTERVAL})*")
# Steps between two lines, if `--log-every` is not given.
LOG_EVERY = 10


def count_option(
    default: int | None, meaning: str, example: str = "10", *, least: int = 1
) -> Option:
    """An option for a whole number of at least `least`."""
    return Option(
        int if default is not None else int | None,
        default,
        meaning,
        expected=f"a whole number of at least {least}",
        example=example,
        valid=lambda value: value >= least,
    )


def positive_option(default: float | None, meaning: str, example: str) -> Option:
    """An option for a number above 0."""
    return Option(
        float if default is not None else float | None,
        default,
        meaning,
        expected="a number above 0",
        example=example,
        valid=lambda value: value > 0,
    )


def _guess_device(text: str) -> str:
    """Suggests the device that a mistyped text means: cpu:2 for cpy:2."""
    numbered = [
        f"{kind}{number}" for kind in ("cpu", "gpu") for number in re.findall(r":\d+", text)
    ]
    return closest(text.lower(), ["auto", "cpu", "gpu", *numbered])


RUN_OPTIONS: Options = {
    "devices": Option(
        str,
        "auto",
        "auto (all GPUs, or the CPU if there is none), a number of devices, indices such as 0,2, "
        "a name such as GPU:0, or cpu:4 for four logical CPUs",
        expected="auto, a number, indices such as 0,2, a name such as GPU:0, cpu or cpu:4",
        example="2",
        valid=lambda value: _DEVICES.fullmatch(value.strip()) is not None,
        guess=_guess_device,
    ),
    "batch_size": count_option(None, "examples per step, over all devices", "128"),
    "epochs": count_option(1, "passes over the training data"),
    "steps": count_option(None, "train this many steps instead of epochs", "1000"),
    "shards": count_option(
        None,
        "equal parts that each batch is cut into: a multiple of the number of devices; more "
        "shards need less memory",
    ),
    "deterministic": Option(bool, False, "bitwise the same result on any number of devices"),
    "jit": Option(
        Literal["auto", "on", "off"],
        "auto",
        "compile the forward pass and the gradients with XLA: on, off, or auto (on GPUs, if the "
        "model allows it)",
    ),
    "precision": Option(
        Literal[
            "mixed_bfloat16", "mixed_float16", "float32", "float64", "bfloat16", "float16", None
        ],
        None,
        "mixed_bfloat16, mixed_float16 or another Keras dtype policy",
    ),
    "clip_norm": positive_option(None, "clip the gradients to this global norm", "1.0"),
    "ema": Option(
        float | None,
        None,
        "decay of an exponential moving average of the weights, which is evaluated and saved",
        expected="a decay between 0 and 1",
        example="0.999",
        valid=lambda value: 0 < value < 1,
    ),
    "seed": Option(
        int,
        0,
        "seed for initial weights, shuffling, dropout and augmentation",
        expected="a whole number of at least 0",
        example="1",
        valid=lambda value: 0 <= value < 2**63,
    ),
    "run_dir": Option(
        str | None,
        None,
        "folder of the run; a run that is already there is resumed",
        hint="(default: the newest unfinished runs/NAME/NNNN of this command, or a new one)",
    ),
    "resume": Option(
        bool, True, "resume an unfinished run of this command; --no-resume starts a new one"
    ),
    "init_from": Option(
        str | None,
        None,
        "start from the weights of a run, a .keras or .h5 file, or a TensorFlow checkpoint",
    ),
    "init_map": Option(
        str | None,
        None,
        "JSON file with the names in the checkpoint of weights that are called differently",
    ),
    "init_averages": Option(
        bool, False, "start from the moving averages in the checkpoint, not from its raw weights"
    ),
    "save_every": Option(
        str | None,
        None,
        "how often to save a checkpoint: in steps (500), in seconds (30s), epoch, or several: "
        "500,30s (default: every 1,000 steps, and every 30 seconds or less often for large models)",
        expected="a number of steps, seconds such as 30s, or epoch",
        example="30s",
        valid=lambda value: _SAVE_EVERY.fullmatch(value) is not None,
        names=("epoch", "30s", "1000"),
    ),
    "keep": count_option(2, "how many checkpoints to keep", "2", least=2),
    "monitor": Option(
        str | None, None, "logged value that decides which epoch is saved as best.keras"
    ),
    "keep_best": count_option(
        1, "how many of the best models to keep; from 2 on, all of them are in best/", "3"
    ),
    "patience": count_option(
        None, "stop after this many epochs without a better value of --monitor", "5"
    ),
    "on_nan": Option(
        Literal["stop", "skip"], "stop", "what to do if a step is NaN or infinite: stop or skip it"
    ),
    "allow_nan": Option(
        bool, False, "allow NaN and infinity in the data, for a model that masks them"
    ),
    "sync_batch_norm": Option(
        bool, False, "take BatchNormalization's statistics over the whole batch, as on one device"
    ),
    "log_every": dataclasses.replace(
        count_option(None, "steps between two log lines"),
        hint=f"(default: {LOG_EVERY}, but at most one line per second)",
    ),
    "summary_every": count_option(
        100, "steps between two summaries for TensorBoard; 0 writes none", "100", least=0
    ),
    "profile": Option(
        bool, False, "trace a few steps for TensorBoard, and print where their time goes"
    ),
    "log_placement": Option(
        bool,
        False,
        "print how many operations run on each device, and list them in placement.txt",
    ),
    "data_dir": Option(str | None, None, "folder with the data"),
    "source": Option(str, "auto", "where the data comes from: auto, files, tfds or synthetic"),
    "dry_run": Option(bool, False, "try two steps and one evaluation, and keep nothing"),
    "find_batch_size": Option(
        bool, False, "find the largest batch that fits and the fastest one, and keep nothing"
    ),
    "find_lr": Option(
        bool, False, "find a learning rate by a range test, plot it, and keep nothing"
    ),
    "soft_placement": Option(
        bool, False, "use the nearest device if the one you name does not exist"
    ),
    "memory_growth": Option(bool, False, "reserve GPU memory only as it is needed"),
    "memory_limit": Option(
        str | None, None, "use at most this much memory of each GPU: a size (4GB) or a part (0.4)"
    ),
}
OUTPUT_OPTIONS: Options = {
    "json": Option(bool, False, "print one JSON object per line"),
    "quiet": Option(bool, False, "print warnings and errors only"),
    "verbose": Option(bool, False, "show TensorFlow's messages", aliases=("-v",)),
    "debug": Option(bool, False, "show the traceback of an error"),
}
# The options that say where to compute.
PLACEMENT = ("devices", "soft_placement", "memory_growth", "memory_limit")
# `verify` and `bench` choose the devices themselves, and keep no run.
_ONLY_FIT = {
    *PLACEMENT,
    "epochs",
    "run_dir",
    "resume",
    "init_from",
    "init_map",
    "init_averages",
    "save_every",
    "keep",
    "monitor",
    "keep_best",
    "patience",
    "on_nan",
    "log_every",
    "summary_every",
    "profile",
    "log_placement",
    "dry_run",
    "find_batch_size",
    "find_lr",
}
_COMPARED: Options = {k: v for k, v in RUN_OPTIONS.items() if k not in _ONLY_FIT}
_VERIFY_ONLY: Options = {
    "counts": Option(
        str,
        "1,2,4",
        "numbers of devices to compare",
        expected="numbers of devices, separated by commas",
        example="1,2,4",
        valid=lambda value: _COUNTS.fullmatch(value.strip()) is not None,
    ),
    "steps": count_option(5, "steps to train on each number of devices"),
}
VERIFY_OPTIONS: Options = {
    **_VERIFY_ONLY,
    **{k: v for k, v in _COMPARED.items() if k not in _VERIFY_ONLY},
}
_BENCH_ONLY: Options = {
    "counts": dataclasses.replace(
        _VERIFY_ONLY["counts"], default="1,2", meaning="numbers of devices to measure"
    ),
    "against": Option(
        Literal["keras", None], None, "also measure Keras's fit on the same model and data"
    ),
    "rounds": count_option(5, "measurements per number of devices, taken in turn"),
    "seconds": positive_option(3.0, "about how many seconds a measurement takes", "3"),
    "output": Option(str | None, None, "folder for bench.json and bench.svg", hint="(bench/NAME)"),
}
BENCH_OPTIONS: Options = {
    **_BENCH_ONLY,
    **{k: v for k, v in _COMPARED.items() if k != "ema"},
}
DOCTOR_OPTIONS: Options = {
    "gpu": Option(bool, False, "check the GPUs instead, in about a minute, and print a report"),
    "output": Option(str | None, None, "also write the report to this file, as JSON lines"),
}


def parse_options(options: Options, argv: list[str], prog: str) -> dict[str, Any]:
    """Parses the options of a command, with those that every command has."""
    values = parse({"run": options, "output": OUTPUT_OPTIONS}, argv, prog, "")
    return {**values["run"], **values["output"]}


def parse_devices(argv: list[str]) -> tuple[dict[str, Any]]:
    """`kerasdist devices [options]`."""
    return (parse_options({}, argv, "kerasdist devices"),)


def parse_doctor(argv: list[str]) -> tuple[dict[str, Any]]:
    """`kerasdist doctor [options]`."""
    options = parse_options(DOCTOR_OPTIONS, argv, "kerasdist doctor")
    if options["output"] is not None and not options["gpu"]:
        raise KerasdistError(
            f"Received `--output {options['output']}` without `--gpu`. Expected both, because the "
            "file holds the report on the GPUs. Add `--gpu`, or remove `--output`."
        )
    return (options,)
