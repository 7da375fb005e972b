"""Finds GPUs that have stopped, and ends the process.

A call of TensorFlow on a GPU that has stopped never returns, and Python cannot interrupt it. So a
thread watches the calls. If none returns for a while, it asks each GPU to copy one number there and
back. A GPU that only has much to do answers when it comes to that.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from kerasdist.errors import KerasdistError

TIMEOUT = "KERASDIST_DEVICE_TIMEOUT"
# Half of it may pass without a call that returns. Then the devices have the other half to answer.
DEFAULT_TIMEOUT = 45.0
# Nobody knows how long the steps of the first call take: a device may be busy for long.
_FIRST_CALL = 5
# A device gets as much time as this many steps take.
_STEPS = 3
# How long the end of the process waits for a checkpoint that is being written, and for messages.
_LAST_SECONDS = 8.0
_HOST = "CPU:0"

# Called with the message, before the process ends.
Tell = Callable[[str], object]


class Calls:
    """The calls of compiled functions: when they return, and how long their steps take."""

    def __init__(self) -> None:
        self.num_returned = 0
        self._kind: str | None = None
        self._began = 0.0
        self._seconds: dict[str, float] = {}

    def begin(self, kind: str) -> None:
        """Just before a call. Calls of one kind have steps that take about the same time."""
        self._kind, self._began = kind, time.monotonic()

    def end(self, num_steps: int) -> None:
        """Just after it."""
        if self._kind is not None:
            seconds = (time.monotonic() - self._began) / max(num_steps, 1)
            # The first call also compiles. That is forgotten after a few calls.
            self._seconds[self._kind] = max(seconds, self._seconds.get(self._kind, 0.0) / 2)
        self._kind = None
        self.num_returned += 1

    def patience(self, least: float) -> float:
        """For how many seconds a device may be busy with what it was asked before."""
        if self._kind is None:
            known = max(self._seconds.values(), default=None)
        else:
            known = self._seconds.get(self._kind)
        return _FIRST_CALL * least if known is None else max(least, _STEPS * known)


def timeout_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """The value of KERASDIST_DEVICE_TIMEOUT; 0 turns the watch off.

    Example:
        >>> timeout_seconds({}), timeout_seconds({"KERASDIST_DEVICE_TIMEOUT": "600"})
        (45.0, 600.0)
    """
    text = environ.get(TIMEOUT, "").strip()
    try:
        seconds = float(text or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise KerasdistError(
            f"Received {TIMEOUT}={text!r}. Expected seconds, or 0 to never look for stopped "
            f"devices. Set for example {TIMEOUT}=600, or unset it."
        )
    return seconds


class Watch:
    """A thread that watches the calls on some GPUs, until `close`.

    Args:
        calls: What the compiled functions do.
        devices: The user's name of each device, by its name for `tf.device`.
        tell: Called with the message when a device has stopped. More can be appended.
        timeout: See `DEFAULT_TIMEOUT`.
        ask: Returns when a device has answered.
    """

    def __init__(
        self,
        calls: Calls,
        devices: Mapping[str, str],
        tell: list[Tell],
        timeout: float,
        ask: Callable[[str], object] | None = None,
    ):
        self.tell = tell
        self._calls, self._devices, self._half = calls, devices, timeout / 2
        self._ask = ask or _copy_there_and_back
        self._asked: dict[str, threading.Event] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kerasdist-stall", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        tick = self._half / 20
        returned, quiet = -1, 0.0
        before = time.monotonic()
        while not self._closed.wait(tick):
            # If this process was stopped, or other code kept Python for itself, the devices had no
            # chance to answer: such a time counts as one short tick.
            now = time.monotonic()
            passed, before = min(now - before, 2 * tick), now
            if self._calls.num_returned != returned:
                returned, quiet = self._calls.num_returned, 0.0
                continue
            quiet += passed
            if quiet < self._half:
                continue
            if not self._asked:
                self._ask_all()
            elif not (silent := self._silent()):
                self._asked, quiet = {}, 0.0
            elif quiet > self._half + self._calls.patience(self._half):
                end(message([self._devices[d] for d in silent], quiet - self._half), self.tell)
                return

    def _ask_all(self) -> None:
        for device in self._devices:
            answered = self._asked[device] = threading.Event()
            threading.Thread(target=self._answer, args=(device, answered), daemon=True).start()

    def _answer(self, device: str, answered: threading.Event) -> None:
        # A device that is out of memory, for example, has answered, too.
        with contextlib.suppress(Exception):
            self._ask(device)
        answered.set()

    def _silent(self) -> list[str]:
        return [device for device, answered in self._asked.items() if not answered.is_set()]


@contextlib.contextmanager
def watching(calls: Calls, devices: Mapping[str, str], tell: list[Tell]) -> Iterator[list[Tell]]:
    """Watches GPUs in this block. What is appended to the list is told of a stopped device."""
    timeout = timeout_seconds()
    watch = Watch(calls, devices, tell, timeout) if timeout > 0 else None
    try:
        yield tell
    finally:
        if watch is not None:
            watch.close()


def message(titles: list[str], seconds: float) -> str:
    """Says which devices have stopped, and what to do."""
    names, have = ", ".join(titles), "has" if len(titles) == 1 else "have"
    return (
        f"{names} {have} stopped: no answer for {seconds:.0f} s. Expected every device to answer "
        "when its work is done. Look for errors in `nvidia-smi` and `dmesg` (lines with Xid), then "
        "reset the GPU, restart the machine, or use the other devices (`devices`, `--devices`). "
        "The same command resumes from the last checkpoint. If steps really take so long, set "
        f"{TIMEOUT} to more seconds."
    )


def end(text: str, tell: list[Tell]) -> None:
    """Tells what happened and ends the process with exit code 1; in a notebook it stays alive."""
    is_interactive = hasattr(sys, "ps1")
    if is_interactive:
        text += " This session cannot continue: restart the kernel."
    # In threads: a file system or network that hangs does not keep the process alive.
    deadline = time.monotonic() + _LAST_SECONDS
    tellers = [threading.Thread(target=_tell, args=(t, text), daemon=True) for t in tell]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join(max(0.0, deadline - time.monotonic()))
    if is_interactive:
        return
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)


def _tell(tell: Tell, text: str) -> None:
    with contextlib.suppress(Exception):
        tell(text)


def print_message(text: str) -> None:
    sys.stdout.flush()
    print(f"\nkerasdist: {text}", file=sys.stderr, flush=True)


def _copy_there_and_back(device: str) -> None:
    # Not `numpy()` or `tf.constant` on the device: while they wait, they let no other thread of
    # Python run (TF 2.21).
    with tf.device(_HOST):
        number = tf.constant([0.0])
    with tf.device(device):
        there = tf.raw_ops.Identity(input=number)
    with tf.device(_HOST):
        tf.raw_ops.Identity(input=there)
