"""Traces of a run: where the time of a step goes, and which operation ran where."""

import doctest
import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import kerasdist
from kerasdist.training.progress import profile as profiling
from kerasdist.training.progress.placement_log import PLACEMENT
from tests import classifier_recipe

CALL = (profiling.CALL, "python", 100, 900)
OPERATION = "while/body/MatMul:MatMul"
REDUCTION = "while/body/all_reduce/AddN:AddN"
INPUT = "IteratorGetNextAsOptionalOp::DoCompute"


def space_of(*events, plane="/host:CPU", space=None):
    """A trace with events `(name, thread, first, end)` in microseconds."""
    space = space or xplane_pb2.XSpace()
    added = space.planes.add(name=plane)
    for number, (name, thread, first, end) in enumerate(events, 1):
        added.event_metadata[number].name = name
        # Each line has its own zero.
        line = added.lines.add(name=thread, timestamp_ns=first * 1000 - 7000)
        line.events.add(
            metadata_id=number, offset_ps=7_000_000, duration_ps=(end - first) * 1_000_000
        )
    return space


def microseconds(space, num_steps=1):
    found = profiling.split(space, num_steps)
    parts = (found.input, found.compute, found.all_reduce, found.host)
    return tuple(round(1e6 * part, 6) for part in parts)


def test_each_moment_belongs_to_one_thing():
    space = space_of(
        CALL,
        (INPUT, "tf_data_iterator_get_next", 100, 150),
        (OPERATION, "tf_Compute/1", 200, 500),
        (OPERATION, "tf_Compute/2", 400, 600),  # at the same time on another thread
        (REDUCTION, "tf_Compute/1", 550, 700),  # partly behind compute
        (INPUT, "tf_data_iterator_get_next", 650, 720),  # partly behind the reduction
    )
    assert microseconds(space) == (50 + 20, 400, 100, 800 - 70 - 400 - 100)


def test_times_are_of_one_step():
    space = space_of(CALL, (OPERATION, "tf_Compute/1", 200, 500))
    assert microseconds(space, 10) == (0, 30, 0, 50)


def test_what_lies_between_two_calls_is_the_hosts():
    space = space_of(
        (profiling.CALL, "python", 0, 100),
        (OPERATION, "tf_Compute/1", 0, 100),
        (profiling.CALL, "python", 300, 400),
        (OPERATION, "tf_Compute/1", 300, 400),
    )
    assert microseconds(space) == (0, 200, 0, 200)


def test_what_is_no_part_of_a_step_is_left_out():
    space = space_of(
        CALL,
        (OPERATION, "tf_Compute/1", 0, 100),  # before
        (OPERATION, "tf_data_private_threadpool/1", 200, 300),  # reads the next batch
        ("ExecutorState::Process", "tf_Compute/1", 200, 300),
        ("EagerLocalExecute: ReadVariableOp", "python", 200, 300),
    )
    assert microseconds(space) == (0, 0, 0, 800)


def test_what_xla_compiled_is_computed():
    run = ("CpuExecutable::ExecuteAsyncOnStream", "tf_Compute/1", 200, 600)
    assert microseconds(space_of(CALL, run)) == (0, 400, 0, 400)


def test_with_gpus_their_kernels_count_and_not_what_starts_them():
    space = space_of(CALL, (OPERATION, "tf_Compute/1", 100, 900))
    kernels = (
        ("sgemm", "Stream #13", 200, 500),
        ("ncclDevKernel_AllReduce", "Stream #14", 400, 600),
    )
    space_of(*kernels, plane="/device:GPU:0", space=space)
    assert microseconds(space) == (0, 300, 100, 400)


def test_a_trace_without_steps_is_an_error():
    with pytest.raises(ValueError, match="has no steps"):
        profiling.split(space_of((OPERATION, "tf_Compute/1", 0, 9)), 1)


def test_examples_of_docstrings_run():
    assert doctest.testmod(profiling).failed == 0
    assert doctest.testmod(profiling).attempted == 2


@pytest.fixture
def small(tmp_path):
    classifier_recipe.write(tmp_path / "small")


def profile_lines(lines):
    first = next(i for i, line in enumerate(lines) if line.startswith("profile of"))
    return lines[first : first + 6]


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_the_command_says_where_the_time_goes(command, small, tmp_path, devices):
    plain = command("fit", "small", "--steps", 30, "--devices", devices, "--no-resume")
    assert "profile" not in plain.out
    traced = command(
        "fit", "small", "--steps", 30, "--devices", devices, "--profile", "--no-resume"
    )
    head, *parts, where = profile_lines(traced.lines)
    assert head.endswith("ms each, slower while traced):")
    names = [line.split()[0] for line in parts]
    shares = dict(zip(names, (float(line.split()[-1].rstrip("%")) for line in parts), strict=True))
    assert list(shares) == ["input", "compute", "all-reduce", "host"]
    assert sum(shares.values()) == pytest.approx(100, abs=0.2)
    assert shares["compute"] > 0
    assert "runs/small/0002/tensorboard/plugins/profile/" in where
    assert len(list((tmp_path / "runs/small/0002").rglob("*.xplane.pb"))) == 1
    results = [
        json.loads((tmp_path / f"runs/small/000{i}/result.json").read_text()) for i in (1, 2)
    ]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_the_profile_as_json(command, small, devices):
    lines = command(
        "fit", "small", "--steps", 30, "--profile", "--json", "--devices", devices
    ).lines
    (event,) = (e for e in map(json.loads, lines) if e["event"] == "profile")
    assert event["steps"] >= 5  # What is left of an epoch of seven steps.
    assert event["compute"] > 0
    assert (event["all_reduce"] > 0) == (devices == "cpu:2")


def test_a_run_that_is_too_short_for_a_profile_says_so(command, small):
    outcome = command("fit", "small", "--steps", 1, "--profile")
    assert outcome.code == 0
    assert "no profile: the run ended before a step could be timed." in outcome.out


def test_a_profiler_that_does_not_start_stops_nothing(command, small, tmp_path):
    tf.profiler.experimental.start(str(tmp_path / "others"))
    try:
        outcome = command("fit", "small", "--steps", 30, "--profile")
    finally:
        tf.profiler.experimental.stop()
    assert outcome.code == 0
    assert "no profile: " in outcome.out
    assert "finished  30 steps" in outcome.out


class Pause(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        time.sleep(1.5)


def test_what_comes_between_two_epochs_is_no_part_of_a_step(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = kerasdist.fit(
        model,
        (np.ones((12, 2)), np.ones((12, 1))),
        batch_size=2,
        epochs=3,
        steps_per_epoch=4,
        callbacks=[Pause()],
        run_dir=tmp_path,
        profile=True,
        progress=False,
    )
    assert history.profile.steps <= 4
    assert history.profile.total < 0.2


def test_a_profile_needs_a_folder():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(kerasdist.KerasdistError, match="`profile=True` without `run_dir`"):
        kerasdist.fit(model, (np.ones((4, 2)), np.ones((4, 1))), batch_size=2, profile=True)


class Split(kerasdist.Model):
    """One part on a device of its own, as TF1's models had it."""

    features = "x"
    targets = "y"

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        with tf.device("CPU:3"):
            waves = tf.sin(x)
        return self.out(waves)

    def defaults(self):
        return {"optimizer": "sgd", "loss": "mse"}


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_a_model_that_places_its_operations_keeps_their_places(tmp_path, capfd, devices):
    x = np.linspace(0, 1, 32, dtype="float32")[:, None]
    kerasdist.fit(
        Split(),
        {"x": x, "y": np.sin(x)},
        batch_size=8,
        devices=devices,
        run_dir=tmp_path / "run",
        log_placement=True,
        progress="lines",
    )
    lines = (tmp_path / "run" / PLACEMENT).read_text().splitlines()
    placed = [line.split("\t") for line in lines]
    assert {device for device, kind, _ in placed if kind == "Sin"} == {"CPU:3"}
    replicas = {"CPU:0"} if devices == "cpu:1" else {"CPU:0", "CPU:1"}
    # oneDNN's operations have names like `_MklMatMul`.
    assert {device for device, kind, _ in placed if kind.endswith("MatMul")} == replicas
    said = capfd.readouterr().out
    assert f"placement, all in {tmp_path / 'run' / PLACEMENT}:" in said
    assert "CPU:3" in said


def test_the_command_lists_placements(command, small, tmp_path):
    outcome = command("fit", "small", "--devices", "cpu:2", "--log-placement")
    assert outcome.code == 0
    first = outcome.lines.index("placement, all in runs/small/0001/placement.txt:")
    assert [line.split()[0] for line in outcome.lines[first + 1 : first + 3]] == ["CPU:0", "CPU:1"]


def test_old_names_of_these_options_are_guessed(command, small):
    outcome = command("fit", "small", "--log_device_placement")
    assert outcome.code == 2
    assert "Did you mean '--log-placement'?" in outcome.err
