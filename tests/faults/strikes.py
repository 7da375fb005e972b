"""Starts real training processes and sends them a signal at a chosen moment."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES, BATCH_SIZE, EPOCHS = 331, 16, 4
STEPS_PER_EPOCH = -(-EXAMPLES // BATCH_SIZE)
STEPS = EPOCHS * STEPS_PER_EPOCH
SHARDS = 4
OPTIONS = [
    *("--deterministic", "--shards", str(SHARDS), "--ema", "0.9", "--clip-norm", "1.0"),
    *("--save-every", "3", "--log-every", "1", "--pause", "0.005"),
]
# Where a kill fell, by what it left behind.
START, STEP, EDGE = "start-up", "mid-epoch", "epoch edge or end"
CHECKPOINT, MODEL = "while saving a checkpoint", "while writing best or final.keras"
MOMENTS = (START, STEP, CHECKPOINT, MODEL, EDGE)
ANY = "any"  # a moment drawn from the whole time that the undisturbed process took
# A strike waits this long for its moment.
PATIENCE_SECONDS = 300.0
_STEP = re.compile(r"step (\d+), loss")
_RESUMED = re.compile(r"(?:continuing after|already finished at) step (\d+)(?: in epoch (\d+))?")


@dataclass(frozen=True)
class Place:
    """What belongs to one run of the harness: the run's folder and what is noted beside it."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def trained_on(self) -> Path:
        """The examples of every step, in the order in which they were trained on."""
        return self.folder / "trained-on.txt"


@dataclass(frozen=True)
class Subject:
    """What is put to the test: how it is started, and how it goes on."""

    name: str
    command: tuple[str, ...]
    notes_per_step: int
    restarts_epochs: bool  # It goes on at the beginning of the epoch that it was in.
    devices: tuple[int, ...] = ()

    @property
    def is_baseline(self) -> bool:
        return self.name != "kerasdist"

    def arguments(self, place: Place, *options: str) -> list[str]:
        own = ("--run-dir", str(place.run), "--trained-on", str(place.trained_on))
        return [sys.executable, *self.command, *own, *options]

    def begins_at(self, resumed: tuple[int, int | None]) -> tuple[int, int, int]:
        """Of a process: the steps done before, the epoch and the batch it goes on with."""
        step, epoch = resumed
        if self.restarts_epochs:
            return step, epoch or 0, 0
        return step, *divmod(step, STEPS_PER_EPOCH)


KERASDIST = Subject(
    "kerasdist",
    ("-m", "kerasdist", "fit", str(HERE / "recipe"), *OPTIONS),
    notes_per_step=SHARDS,
    restarts_epochs=False,
    devices=(1, 1, 1, 2, 2, 4),  # One is the quickest to start.
)


def keras_fit(save_freq: str) -> Subject:
    """Keras's own `fit` with BackupAndRestore, saving every so many batches or each epoch."""
    command = (str(HERE / "keras_baseline.py"), "--save-freq", save_freq)
    return Subject(f"keras, save_freq={save_freq}", command, 1, restarts_epochs=True)


class Training:
    """A training process. Its lines are read as they come."""

    def __init__(self, subject: Subject, place: Place, *options: str):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment.pop("KERASDIST_LOGICAL_CPUS", None)
        place.folder.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        self.began_at = time.time()
        self.process = subprocess.Popen(
            subject.arguments(place, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def resumed(self) -> tuple[int, int | None]:
        """After which step it went on, and in which epoch where it says so; (0, None) if new."""
        found = _RESUMED.search(self.text)
        return (int(found[1]), int(found[2]) if found[2] else None) if found else (0, None)

    @property
    def steps(self) -> list[int]:
        """The steps that it has told of."""
        return [int(found[1]) for found in map(_STEP.search, list(self.lines)) if found]

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, is_reached: Callable[[], bool]) -> bool:
        """Waits for a line that makes `is_reached` true; False if the process ended before."""
        with self._changed:
            self._changed.wait_for(
                lambda: is_reached() or not self._reader.is_alive() or not self.is_running,
                PATIENCE_SECONDS,
            )
            return is_reached()

    def end(self) -> int:
        """Waits for its end; returns the exit code."""
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._reader.join()
            raise AssertionError(f"a process did not end:\n{self.text}") from None
        self._reader.join()
        return code


@dataclass(frozen=True)
class Aim:
    """When to strike: what the process should be doing, and how far into its work."""

    moment: str
    fraction: float
    delay: float = 0.0

    @classmethod
    def draw(cls, moment: str, chance: random.Random) -> Aim:
        most = {STEP: 0.02, CHECKPOINT: 0.003, MODEL: 0.02, EDGE: 0.06}.get(moment, 0.0)
        # Some at once: the first moment of a save is as good as any.
        return cls(moment, chance.random(), chance.choice([0.0, 1.0, 1.0]) * chance.random() * most)

    def earlier(self) -> Aim:
        return Aim(self.moment, self.fraction / 2, self.delay / 2)


@dataclass(frozen=True)
class Strike:
    """How one process ended that was sent a signal."""

    aim: Aim
    code: int
    moment: str | None  # None: it ended by itself before
    pid: int
    resumed: tuple[int, int | None]
    last_step: int
    text: str

    @property
    def arrived(self) -> bool:
        return self.moment is not None


def strike(
    subject: Subject, place: Place, aim: Aim, number: int, seconds: float, *options: str
) -> Strike:
    """Starts or continues a run and sends it the signal `number` at the aim.

    Args:
        subject: What to start.
        place: The run.
        aim: The moment.
        number: The signal.
        seconds: How long an undisturbed process takes, for moments by the clock.
        options: More options of the command.
    """
    training = Training(subject, place, *options)
    _wait(training, subject, place, aim, seconds)
    seen = _drafts(training, place)
    if training.is_running:
        training.process.send_signal(number)
    code = training.end()
    moment = None
    if code in (-number, 128 + number):
        # A killed process cannot clean up: what it was writing is still there.
        drafts = _drafts(training, place) if number == signal.SIGKILL else seen
        moment = _moment(training, subject, drafts)
    steps = training.steps
    last = steps[-1] if steps else training.resumed[0]
    return Strike(aim, code, moment, training.pid, training.resumed, last, training.text)


def _wait(training: Training, subject: Subject, place: Place, aim: Aim, seconds: float) -> None:
    if aim.moment == ANY:
        _sleep(training, aim.fraction * seconds)
        return
    if not training.wait_for(lambda: bool(training.steps)):
        return
    before, epoch, batch = subject.begins_at(training.resumed)
    left = (EPOCHS - epoch) * STEPS_PER_EPOCH - batch
    wanted = 1 + int(aim.fraction * (left - 1))
    if aim.moment == EDGE:
        wanted += -(batch + wanted) % STEPS_PER_EPOCH
    training.wait_for(lambda: training.steps[-1] >= before + wanted)
    if aim.moment in (CHECKPOINT, MODEL):
        until = time.monotonic() + PATIENCE_SECONDS
        while training.is_running and time.monotonic() < until:
            if _drafts(training, place)[aim.moment == MODEL]:
                break
    _sleep(training, aim.delay)


def _sleep(training: Training, seconds: float) -> None:
    try:
        training.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _drafts(training: Training, place: Place) -> tuple[bool, bool]:
    """Whether this process has unfinished drafts: of a checkpoint, of a model's file."""
    checkpoints = [
        path
        for path in (place.run / "checkpoints").glob("tmp-*")
        if str(training.pid) in path.name.split("-")
    ]
    models = [
        path for path in place.run.glob("tmp-*.keras") if _modified(path) >= training.began_at
    ]
    return bool(checkpoints), bool(models)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # It was renamed just now.
        return 0.0


def _moment(training: Training, subject: Subject, drafts: tuple[bool, bool]) -> str:
    in_checkpoint, in_model = drafts
    if in_checkpoint:
        return CHECKPOINT
    if in_model:
        return MODEL
    steps = training.steps
    if not steps:
        return START
    before, _, batch = subject.begins_at(training.resumed)
    return EDGE if (batch + steps[-1] - before) % STEPS_PER_EPOCH == 0 else STEP
