"""The study of `kerasdist tune`: a folder that several processes share, kept by Optuna.

It is safe against `kill -9`: whoever dies, its locks end with it, a line of the journal that it
could not finish is removed, and its trials are continued by the next process that looks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from kerasdist.cli.tune.space import Space, Value
from kerasdist.errors import KerasdistError
from kerasdist.runs.atomic import write_json
from kerasdist.runs.catalog import read_object
from kerasdist.runs.lock import RunLock, RunLockedError
from kerasdist.runs.metrics_log import best_epoch
from kerasdist.runs.results.direction import is_higher_better, of_run

FOLDER = Path("tune")
_STUDY, _JOURNAL, _LOCK = "study.json", "study.journal", "study.lock"
# What counts if no metric is chosen, as far as nothing is known of the data.
_LOSS = "val_loss"
# Trials before the sampler learns from the others, and before the median counts.
_RANDOM_TRIALS = 8
_FEWEST_TO_COMPARE = 4

# What became of a trial, among Optuna's attributes of a user.
SETTINGS, OUTCOME, PRUNED_AT = "settings", "outcome", "pruned_at"


def optuna() -> Any:
    """The package, which is an extra."""
    try:
        found = import_module("optuna")
    except ImportError:
        raise KerasdistError(
            "`kerasdist tune` needs Optuna, which is not installed. Expected the extra `tune`. "
            "Install it: `pip install 'kerasdist[tune]'`."
        ) from None
    found.logging.set_verbosity(found.logging.ERROR)
    warnings.filterwarnings("ignore", category=found.exceptions.ExperimentalWarning)
    return found


class _FileLock:
    """The kernel's lock of a file, which ends with its process. Optuna's own would stay."""

    def __init__(self, path: Path, journal: Path):
        self._path, self._journal = path, journal
        self._file: int | None = None

    def acquire(self) -> bool:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):  # A file system without locks: one process only.
            fcntl.flock(file, fcntl.LOCK_EX)
        self._file = file
        _mend(self._journal)
        return True

    def release(self) -> None:
        # In this order: once it is closed, another thread may have set its own.
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _mend(journal: Path) -> None:
    """Removes half a line at the end, which a killed process left."""
    with contextlib.suppress(FileNotFoundError), open(journal, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


class Study:
    """The study in a folder. Several threads and processes may use it at the same time."""

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        *,
        monitor: str | None,
        prune: str,
        seed: int,
    ):
        self.folder, self._monitor = folder, monitor
        self._known: dict[str, bool] = {}
        self._optuna = package = optuna()
        _check_same(folder, identity)
        journal = folder / _JOURNAL
        lock: Any = _FileLock(folder / "journal.lock", journal)
        backends = import_module("optuna.storages.journal")
        backend = backends.JournalFileBackend(str(journal), lock_obj=lock)
        self._storage = package.storages.JournalStorage(backend)
        with self._alone():
            self._study = package.create_study(
                study_name="tune",
                storage=self._storage,
                sampler=_sampler(package, seed),
                pruner=_pruner(package, prune),
                direction="maximize" if is_higher_better(monitor or _LOSS) else "minimize",
                load_if_exists=True,
            )

    @property
    def monitor(self) -> str:
        """The chosen metric; else the validation loss, or the training loss without validation."""
        if self._monitor is None:
            runs = (self.run_of(trial.number) for trial in self.trials())
            found = (best_epoch(run) for run in runs)
            self._monitor = next((best[0] for best in found if best is not None), None)
        return self._monitor or _LOSS

    @property
    def is_higher_better(self) -> bool:
        """By the metric's object, as soon as a trial has begun to train; before, by its name."""
        if not self._known:
            runs = (self.run_of(trial.number) for trial in self.trials())
            self._known = next((known for run in runs if (known := of_run(run))), {})
        return is_higher_better(self.monitor, self._known)

    def _for_optuna(self, value: float) -> float:
        """Optuna is told a direction before the first trial: by the name, which can be wrong."""
        is_maximized = self._study.direction.name == "MAXIMIZE"
        return value if self.is_higher_better == is_maximized else -value

    def trials(self) -> list[Any]:
        """All trials so far, by number, as Optuna's `FrozenTrial`."""
        found: list[Any] = self._study.get_trials(deepcopy=True)
        return sorted(found, key=lambda trial: trial.number)

    def run_of(self, number: int) -> Path:
        """The run of a trial. Optuna counts trials from 0, people from 1."""
        return self.folder / f"{number + 1:04d}"

    @contextlib.contextmanager
    def next(self, most: int, space: Space) -> Iterator[tuple[Any, dict[str, Value]] | None]:
        """A trial for this process, and its settings: an abandoned one, or a new one.

        None if there are `most` trials, and all that are not finished have their process.
        """
        with contextlib.ExitStack() as stack:
            with self._alone():
                found = self._taken(stack, most)
                # Before anybody else may look: a trial without settings cannot be continued.
                settings = None if found is None else self._settings(found, space)
            yield None if found is None or settings is None else (found, settings)

    def _taken(self, stack: contextlib.ExitStack, most: int) -> Any:
        trials = self.trials()
        for trial in trials:
            if not trial.state.is_finished() and self._lock(stack, trial.number):
                trial_id = self._storage.get_trial_id_from_study_id_trial_number(
                    self._storage.get_study_id_from_name("tune"), trial.number
                )
                return self._optuna.trial.Trial(self._study, trial_id)
        if len(trials) >= most:
            return None
        new = self._study.ask()
        self._lock(stack, new.number)
        return new

    def _settings(self, trial: Any, space: Space) -> dict[str, Value]:
        known = trial.user_attrs.get(SETTINGS)
        if known is not None:
            return dict(known)
        settings = space.suggest(trial)
        trial.set_user_attr(SETTINGS, settings)
        return settings

    def _lock(self, stack: contextlib.ExitStack, number: int) -> bool:
        path = self.folder / "locks" / f"{number + 1:04d}"
        path.mkdir(parents=True, exist_ok=True)
        try:
            stack.enter_context(RunLock(path))
        except RunLockedError:
            return False
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """In this block, no other thread or process takes a trial."""
        file = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def report(self, trial: Any, epoch: int, value: float) -> bool:
        """Notes the value of an epoch, counted from 1. Returns whether to stop the trial."""
        if trial.user_attrs.get(PRUNED_AT) is not None:
            return True
        frozen = self.trials()[trial.number]
        if epoch - 1 not in frozen.intermediate_values:
            trial.report(self._for_optuna(value), epoch - 1)
        if not trial.should_prune():
            return False
        trial.set_user_attr(PRUNED_AT, epoch)
        return True

    def finish(self, trial: Any, outcome: str, value: float | None) -> None:
        """Notes how a trial ended: "finished", "pruned", or why it failed."""
        states = self._optuna.trial.TrialState
        trial.set_user_attr(OUTCOME, outcome)
        if outcome == "finished" and value is not None:
            self._study.tell(trial, self._for_optuna(value))
        elif outcome.startswith("failed"):
            self._study.tell(trial, state=states.FAIL)
        else:  # What diverges or does not fit is as bad as what was pruned: do not go there again.
            self._study.tell(trial, state=states.PRUNED)


def _sampler(package: Any, seed: int) -> Any:
    class Numbered(package.samplers.BaseSampler):  # type: ignore[name-defined, misc, unused-ignore]
        """Suggests by the seed, the number of the trial and the name of the setting.

        Optuna's samplers draw from one sequence, which would begin again in each process.
        """

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(
            self, study: Any, trial: Any, param_name: str, param_distribution: Any
        ) -> Any:
            text = f"{seed} {trial.number} {param_name}".encode()
            own = int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
            sampler = package.samplers.TPESampler(
                seed=own,
                n_startup_trials=_RANDOM_TRIALS,
                multivariate=False,
                constant_liar=True,
            )
            return sampler.sample_independent(study, trial, param_name, param_distribution)

    return Numbered()


def _pruner(package: Any, name: str) -> Any:
    if name == "median":
        return package.pruners.MedianPruner(_FEWEST_TO_COMPARE, n_warmup_steps=1)
    if name == "halving":
        return package.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return package.pruners.NopPruner()


def _check_same(folder: Path, identity: dict[str, Any]) -> None:
    """Writes what the study is about, or refuses a folder that is about something else."""
    path = folder / _STUDY
    wanted = json.loads(json.dumps(identity, default=str))
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise KerasdistError(
                f"The folder {str(folder)!r} is not empty, and is not a study. Expected a new "
                "folder, or the study of this command. Choose another one with `--name`."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, wanted)
        return
    saved = read_object(path)
    names = [n for n in {**saved, **wanted} if saved.get(n) != wanted.get(n)]
    if names:
        differ = ", ".join(f"{n} was {saved.get(n)!r} and is {wanted.get(n)!r}" for n in names)
        raise KerasdistError(
            f"The study {str(folder)!r} is another one: {differ}. Expected the same command, with "
            "more `--trials` if you like. Start a new study with `--name`."
        )
