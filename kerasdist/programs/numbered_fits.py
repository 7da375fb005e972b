"""The fits of a script, numbered in its order: each has its folder in `run_dir`.

A fit that was finished is not trained again. Its folder's newest checkpoint has everything, so it
is loaded by the same code that resumes an unfinished one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from kerasdist import __version__
from kerasdist.devices.placement import Placement
from kerasdist.errors import KerasdistError, OtherRunError
from kerasdist.programs import fit_record
from kerasdist.programs.fit_record import Record
from kerasdist.programs.notes import tell
from kerasdist.programs.random_state import RandomState
from kerasdist.runs.atomic import write_json
from kerasdist.runs.catalog import is_run, read_object, status
from kerasdist.runs.file_names import CONFIG, LOCK
from kerasdist.runs.lock import RunLock

SCRIPT = "script.json"
# What a process leaves that is killed before it writes the first record.
_BEFORE = {LOCK, f".{SCRIPT}.tmp"}

# By folder: a script may enable kerasdist several times, and the numbers go on.
_known: dict[Path, NumberedFits] = {}


def of(run_dir: Path | None) -> NumberedFits | None:
    """The fits of this process in a folder; None without one."""
    return None if run_dir is None else _known.setdefault(run_dir, NumberedFits(run_dir))


def with_callback(callbacks: Any, last: keras.callbacks.Callback) -> Any:
    """The callbacks of a `fit`, and one of kerasdist's."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return [*(() if callbacks is None else keras.tree.flatten(callbacks)), last]


class NumberedFits:
    """Counts the fits of this process, and compares them with those that the folder holds."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._count = 0
        self._lock: RunLock | None = None
        self._has_warned = False
        self.is_training = False

    @contextlib.contextmanager
    def next(
        self, model: keras.Model, given: dict[str, Any], placement: Placement
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The folder of the next fit, and the arguments to train it with."""
        self._count += 1
        folder = self._run_dir / f"fit-{self._count:02d}"
        told: list[str] = []
        with placement.together():
            if placement.is_chief:
                told = self._open(Record.of(model, given), folder)
            placement.wait()

        def tell_all() -> None:
            for text in told:
                tell(text)

        state = RandomState(model, tell_all)
        callbacks = with_callback(given["callbacks"], state)
        self.is_training = True
        try:
            yield folder, {**given, "callbacks": callbacks}
        except OtherRunError as error:
            raise self._refused(error.differences) from None
        except BaseException:
            if not is_run(folder):
                self._count -= 1  # It was refused. The next fit takes its place.
            raise
        finally:
            self.is_training = False

    def _open(self, record: Record, folder: Path) -> list[str]:
        """Compares the fit with the one that was here, and notes it.

        Returns:
            What to tell once its checkpoint is loaded: data may differ, too.
        """
        told = []
        if self._lock is None:
            self._lock = _locked(self._run_dir)
        records = [Record.from_json(r) for r in read_object(self._run_dir / SCRIPT).get("fits", [])]
        place = self._count - 1
        with contextlib.suppress(OSError):  # A process was killed while it wrote this.
            (folder / f".{CONFIG}.tmp").unlink()
        if place < len(records) and is_run(folder):
            told += self._check(record, records[place], is_last=place == len(records) - 1)
            is_finished = status(folder) == "finished"
            how = "is finished, and loaded from" if is_finished else "continues in"
            told.insert(0, f"fit {self._count} {how} {folder}")
        records[place : place + 1] = [record]
        content = {"kerasdist": __version__, "fits": [r.to_json() for r in records]}
        write_json(self._run_dir / SCRIPT, content, sync=True)
        return told

    def _check(self, record: Record, earlier: Record, *, is_last: bool) -> list[str]:
        different = fit_record.differences(earlier, record, may_add_epochs=is_last)
        if different:
            raise self._refused(different)
        is_other = record.start != earlier.start and None not in (record.start, earlier.start)
        return [self._other_start()] if is_other and not self._has_warned else []

    def _refused(self, different: Sequence[str]) -> KerasdistError:
        return KerasdistError(
            f"Fit {self._count} of this script is another one than in "
            f"{str(self._run_dir)!r}: {'; '.join(different)}. Expected the script that began "
            "there. Restore it, choose another `run_dir` (`--run-dir`), or delete that folder."
        )

    def _other_start(self) -> str:
        self._has_warned = True
        return (
            f"fit {self._count} starts from other weights than before the restart: the script "
            "is not seeded, or it has changed. What was trained is kept, but the result may "
            "not be that of an undisturbed run. `keras.utils.set_random_seed` seeds a script."
        )


def _locked(run_dir: Path) -> RunLock:
    """Makes the folder if necessary, and locks it for this process."""
    if is_run(run_dir):
        raise KerasdistError(
            f"Received `run_dir={str(run_dir)!r}`, which holds one run, and not the fits of a "
            "script. Expected a new folder, or one that this script began. Choose another name."
        )
    is_known = bool(read_object(run_dir / SCRIPT))
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in run_dir.iterdir()} - _BEFORE
    except OSError as error:
        raise KerasdistError(
            f"Received `run_dir={str(run_dir)!r}`, which cannot be used: {error.strerror}. "
            "Expected a folder that can be written to. Choose another one."
        ) from None
    if others and not is_known:
        raise KerasdistError(
            f"Received `run_dir={str(run_dir)!r}`, which is not empty. Expected a new folder, or "
            "one that this script began: kerasdist overwrites nothing else. Choose another name."
        )
    lock = RunLock(run_dir)
    lock.acquire()
    return lock
