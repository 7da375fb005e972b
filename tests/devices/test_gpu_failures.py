"""The messages about GPUs that fail, and the watch for stopped ones, without any GPU."""

import sys
import threading
import time

import pytest
import tensorflow as tf

from kerasdist.devices import visible_gpus
from kerasdist.devices.gpu_failures import out_of_memory, stall
from kerasdist.errors import KerasdistError, RunFailedError

PLACE = "/job:localhost/replica:0/task:0/device:"
TWO = {"GPU:0": "GPU:0", "GPU:1": "GPU:1"}
FULL = tf.errors.ResourceExhaustedError


def exhausted(message, kind=FULL):
    return kind(None, None, message)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            exhausted(
                "Graph execution error:\n\nOOM when allocating tensor with shape[64,10] and type "
                f"float on {PLACE}GPU:1 by allocator GPU_1_bfc\n\t [[{{{{node a}}}}]]"
            ),
            "GPU:1 is out of memory: a tensor of shape [64, 10] and type float did not fit.",
        ),
        (
            exhausted(
                "SameWorkerRecvDone unable to allocate output tensor. Key: "
                f"{PLACE}CPU:0;a0b6;{PLACE}GPU:0;edge_308_while;63:0"
            ),
            "GPU:0 is out of memory: a tensor did not fit.",
        ),
        (
            exhausted(
                f"Failed copying input tensor from {PLACE}CPU:0 to {PLACE}GPU:1 in order to run "
                "_EagerConst: Dst tensor is not initialized.",
                tf.errors.InternalError,
            ),
            "GPU:1 is out of memory: a tensor did not fit.",
        ),
        (
            exhausted("Failed to allocate request for 4.0MiB (4194304B) on device ordinal 1"),
            "GPU:1 is out of memory: a piece of 4.0MiB did not fit.",
        ),
        (
            exhausted("Out of memory while trying to allocate 123456 bytes."),
            "One of GPU:0, GPU:1 is out of memory: a piece of 123456 bytes did not fit.",
        ),
        (
            exhausted(
                "OOM when allocating tensor with shape[9] and type float on "
                "/job:worker/replica:0/task:2/device:GPU:0 by allocator GPU_0_bfc"
            ),
            "worker 2 GPU:0 is out of memory",
        ),
    ],
)
def test_the_error_names_the_device_and_what_did_not_fit(error, expected):
    told = out_of_memory.found(error, TWO)
    assert isinstance(told, RunFailedError)
    assert str(told).startswith(expected)
    for word in ("Expected", "`--batch-size`", "`--shards`", "`--precision`", "nvidia-smi"):
        assert word in str(told)
    assert "\n" not in str(told)


def test_the_number_of_a_gpu_is_the_users(monkeypatch):
    monkeypatch.setattr(visible_gpus, "_kept", (3, 5))
    error = exhausted(f"OOM when allocating tensor on {PLACE}GPU:1 by allocator GPU_1_bfc")
    assert str(out_of_memory.found(error, TWO)).startswith("GPU:5 is out of memory")


def test_errors_may_be_the_cause_of_each_other():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert out_of_memory.found(one, {"/device:CPU:0": "CPU:0"}) is None


def test_a_cpu_is_not_looked_up_in_nvidia_smi():
    error = exhausted(f"OOM when allocating tensor with shape[9] and type float on {PLACE}CPU:0 b")
    assert "nvidia-smi" not in str(out_of_memory.found(error, {"CPU:0": "CPU:0"}))


def test_the_cause_of_another_error_counts_but_not_what_the_caller_was_handling():
    cause = exhausted(f"OOM when allocating tensor on {PLACE}GPU:1 by allocator GPU_1_bfc")
    error = KerasdistError("cannot be built")
    error.__context__ = cause
    assert out_of_memory.found(error, TWO) is None
    error.__cause__ = cause
    assert out_of_memory.found(error, TWO) is not None


@pytest.mark.parametrize(
    "error",
    [
        exhausted("Received message larger than max (5 vs. 4)"),
        exhausted("no such file", tf.errors.NotFoundError),
        ValueError("Out of memory"),
    ],
)
def test_other_errors_are_left_alone(error):
    assert out_of_memory.found(error, TWO) is None


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (
            {"GPU:0": 20, "GPU:1": 31},
            "GPU:1 is out of memory: probably a tensor did not fit. TensorFlow cancelled the step "
            "without saying why, and up to 31 of 32 MB were in use there. Expected",
        ),
        ({"GPU:0": 2, "GPU:1": 3}, None),
    ],
)
def test_of_a_call_that_was_cancelled_the_fullest_device_is_named(used, expected):
    error = exhausted("RecvAsync is cancelled.", tf.errors.CancelledError)
    told = out_of_memory.found(error, TWO, lambda name: (used[name] * 2**20, 32 * 2**20))
    assert told is None if expected is None else str(told).startswith(expected)


@pytest.fixture
def ended(monkeypatch):
    """What `stall` would have told at the end of the process."""
    found = []
    monkeypatch.setattr(stall, "end", lambda text, tell: found.append(text))
    return found


def wait_for(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def known_calls():
    calls = stall.Calls()
    calls.begin("train")
    calls.end(1)
    return calls


def test_a_device_that_does_not_answer_has_stopped(ended):
    forever = threading.Event()
    calls = known_calls()
    calls.begin("train")
    watch = stall.Watch(
        calls, TWO, [], 0.4, ask=lambda device: forever.wait() if device == "GPU:1" else None
    )
    assert wait_for(lambda: ended)
    watch.close()
    forever.set()
    assert ended[0].startswith("GPU:1 has stopped: no answer for")
    for word in ("Expected", "nvidia-smi", "Xid", "--devices", "KERASDIST_DEVICE_TIMEOUT"):
        assert word in ended[0]


def test_a_long_call_on_devices_that_answer_is_left_alone(ended):
    asked = []
    calls = known_calls()
    calls.begin("train")
    watch = stall.Watch(calls, TWO, [], 0.2, ask=asked.append)
    assert wait_for(lambda: len(asked) >= 6)  # Again and again.
    watch.close()
    assert not ended


def test_a_device_without_an_answer_is_left_alone_while_calls_return(ended):
    forever = threading.Event()
    calls = known_calls()
    watch = stall.Watch(calls, TWO, [], 0.4, ask=lambda device: forever.wait())
    for _ in range(100):
        calls.end(1)
        time.sleep(0.01)
    watch.close()
    forever.set()
    assert not ended


def test_an_error_is_an_answer(ended):
    asked = []

    def ask(device):
        asked.append(device)
        raise exhausted("OOM")

    watch = stall.Watch(known_calls(), TWO, [], 0.2, ask=ask)
    assert wait_for(lambda: len(asked) >= 4)
    watch.close()
    assert not ended


def test_devices_get_more_time_in_a_first_call_and_in_long_steps():
    calls = stall.Calls()
    calls.begin("train")
    assert calls.patience(20) == 100
    calls.end(1)
    assert calls.patience(20) == 20
    calls.begin("test")
    assert calls.patience(20) == 100
    calls._began -= 60
    calls.end(2)
    calls.begin("test")
    assert 90 <= calls.patience(20) < 91


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_wrong_timeout_is_an_error(text):
    with pytest.raises(KerasdistError, match=f"Received KERASDIST_DEVICE_TIMEOUT='{text}'"):
        stall.timeout_seconds({"KERASDIST_DEVICE_TIMEOUT": text})


def test_the_watch_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("KERASDIST_DEVICE_TIMEOUT", "0")
    before = threading.active_count()
    with stall.watching(stall.Calls(), TWO, []):
        assert threading.active_count() == before


def test_a_notebook_stays_alive(monkeypatch):
    told = []

    def fails(text):
        raise OSError(text)

    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    stall.end("GPU:1 has stopped.", [fails, told.append])
    assert told == ["GPU:1 has stopped. This session cannot continue: restart the kernel."]


def test_the_copy_there_and_back_answers():
    stall._copy_there_and_back("CPU:0")
