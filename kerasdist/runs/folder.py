"""A run's folder: configuration, metrics, the trained model and the result."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.runs import ownership
from kerasdist.runs.atomic import as_json, write_json, write_text

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
MODEL, ENVIRONMENT = "model.json", "environment.json"
BEST, FINAL = "best.keras", "final.keras"
REPORT = "report.html"
# What a run that has not trained a step may hold.
_BEFORE_TRAINING = {CONFIG, MODEL, ENVIRONMENT, "lock", "checkpoints"}


def weights_sha256(model) -> str:
    """Of the bytes of the arrays of `model.get_weights()`, in order."""
    digest = hashlib.sha256()
    for array in model.get_weights():
        digest.update(array.tobytes())
    return digest.hexdigest()


class RunFolder:
    """Writes the files of one run. Refuses a folder that holds another one."""

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        dataset: str = "caller",
        *,
        resume: bool = False,
    ):
        self.path = Path(path).expanduser()
        self.dataset = dataset
        self._made: list[Path] = []
        self._is_new = False
        check_usable(path, resume=resume)
        if resume and is_run(self.path):
            return  # Its configuration stays; checkpoints know what must not differ.
        self._is_new = True
        # Made here, so removed here if the run does not begin.
        self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        with _writing(path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / CONFIG, dict(config))

    @classmethod
    def numbered(
        cls, parent: str | os.PathLike, config: Mapping[str, Any], dataset: str = "caller"
    ) -> RunFolder:
        """In `parent/0001`, or the next number: also when several runs start at once."""
        while True:
            path = next_run_folder(parent)
            with _writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
            folder = cls(path, config, dataset)
            folder._made = [path]
            return folder

    def discard(self) -> None:
        """Takes back a folder whose run did not begin, so that the corrected command may use it."""
        with contextlib.suppress(OSError):
            if self._is_new and {p.name for p in self.path.iterdir()} <= _BEFORE_TRAINING:
                for name in (CONFIG, MODEL, ENVIRONMENT, "lock"):
                    (self.path / name).unlink(missing_ok=True)
                if (self.path / "checkpoints").is_dir():
                    (self.path / "checkpoints").rmdir()
                for path in self._made:
                    path.rmdir()

    def describe(self, model: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Writes model.json, if it is not there, and adds this start to environment.json."""
        with _writing(self.path):
            if not (self.path / MODEL).exists():
                write_json(self.path / MODEL, model)
            earlier = _starts(self.path / ENVIRONMENT)
            write_json(self.path / ENVIRONMENT, {**environment, "earlier": earlier})

    def log(self, **fields: Any) -> None:
        """Appends one object to metrics.jsonl: the whole line, or nothing of it."""
        ownership.ensure(self.path)
        line = (as_json(fields) + "\n").encode()
        with open(self.path / METRICS, "ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise

    def rewind(self, step: int, epoch: int) -> None:
        """Leaves out of metrics.jsonl what a resumed run will log again."""
        path = self.path / METRICS
        if not path.is_file():
            return
        kept, content = "", path.read_text()
        for line in content.splitlines():
            with contextlib.suppress(ValueError):  # the last line of a run that was killed
                fields = json.loads(line)
                done = (
                    fields["step"] <= step if fields["kind"] == "step" else fields["epoch"] <= epoch
                )
                if done:
                    kept += f"{line}\n"
        if content.startswith(kept):  # As a rule: this needs no room on a full disk.
            os.truncate(path, len(kept.encode()))
            return
        write_text(path, kept)

    def note_not_finite(self, **fields: Any) -> None:
        """Writes nan.json: the step, the replica, and the batch to look at."""
        ownership.ensure(self.path)
        write_json(self.path / "nan.json", fields)

    def save(self, name: str, model, ema_weights: list | None) -> str:
        """Saves the model (its averaged weights where there are) as `name`."""
        ownership.ensure(self.path)
        raw = model.get_weights()
        draft = self.path / f"tmp-{name}"
        try:
            if ema_weights is not None:
                model.set_weights(ema_weights)
            saved = save_model(model, draft)
            os.replace(draft, self.path / name)
        except BaseException:
            # Half a file takes room that others need.
            with contextlib.suppress(OSError, KerasdistError):
                ownership.ensure(self.path)
                draft.unlink(missing_ok=True)
                (self.path / "tmp.weights.h5").unlink(missing_ok=True)
            raise
        finally:
            if ema_weights is not None:
                model.set_weights(raw)
        return saved

    def finish(self, model, result: Mapping[str, Any], ema_weights: list | None) -> None:
        """Saves the trained model and result.json."""
        try:
            saved = self.save(FINAL, model, ema_weights)
            digest = result.get("weights_sha256") or weights_sha256(model)
            content = {**result, "dataset": self.dataset, "weights_sha256": digest, "saved": saved}
            write_json(self.path / RESULT, content)
        except (OSError, RuntimeError, KerasdistError) as error:  # h5py has RuntimeErrors, too.
            reason = str(error).split("\n")[0]
            failure = KerasdistError(
                f"Received an error while saving the trained model: {reason}. Expected a folder "
                "one can write to. Make room and start the same command again; the last "
                "checkpoint has everything."
            )
            failure.during_run = True  # type: ignore[attr-defined]
            raise failure from error

    def stop(self, status: str, error: str) -> None:
        """Says why there is no trained model: "diverged", "failed" or "interrupted"."""
        steps = 0
        # Whatever fails here, the error that is about to be told matters more.
        with contextlib.suppress(OSError, KerasdistError):
            ownership.ensure(self.path)
            lines = self.path / METRICS
            for line in lines.read_text().splitlines() if lines.is_file() else ():
                with contextlib.suppress(ValueError):  # half a line
                    steps = max(steps, json.loads(line)["step"])
            write_json(
                self.path / RESULT,
                {"status": status, "steps": steps, "error": error, "dataset": self.dataset},
            )


def _starts(path: Path) -> list[dict[str, Any]]:
    """What environment.json says about the starts so far."""
    try:
        newest = json.loads(path.read_text())
        return [*newest.pop("earlier", []), newest]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def save_model(model, path: Path) -> str:
    """Saves a .keras file and returns "model"; or "weights" if Keras cannot describe the model.

    Keras cannot save a class whose constructor takes more than plain values and that has no
    `get_config`. The trained weights must not be lost with that: they go into a file of the same
    form, which `load_weights` reads.
    """
    try:
        model.save(path)
    except OSError:
        raise  # A full disk says nothing about the model.
    except Exception as error:  # noqa: BLE001 - whatever it is, the weights come first
        weights = path.with_name("tmp.weights.h5")
        model.save_weights(weights)
        about = {"class_name": type(model).__name__, "weights_only": str(error).split("\n")[0]}
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", json.dumps({"saved_by": "kerasdist"}))
            archive.writestr("config.json", json.dumps(about))
            archive.write(weights, "model.weights.h5")
        weights.unlink()
        return "weights"
    return "model"


def read_config(path: Path) -> dict[str, Any] | None:
    """A run's configuration; None if the folder is no run of ours."""
    try:
        config = json.loads((path / CONFIG).read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and "kerasdist" in config else None


def is_run(path: Path) -> bool:
    """Whether a folder is a run of ours: nothing else is ever continued."""
    return read_config(path) is not None


def newest_first(parent: Path) -> list[Path]:
    """The numbered runs in a folder, the highest number first."""
    found = [p for p in parent.glob("[0-9]*") if p.name.isdigit() and is_run(p)]
    return sorted(found, key=lambda p: int(p.name), reverse=True)


def status(path: Path) -> str:
    """How a run stands: result.json's status, or "unfinished"."""
    try:
        return str(json.loads((path / RESULT).read_text())["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unfinished"


def check_usable(path: str | os.PathLike, *, resume: bool) -> None:
    """A run needs a folder of its own: nothing of another one is overwritten."""
    folder = Path(path).expanduser()
    if folder.is_symlink():
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which is a link. Expected a folder itself: a link "
            "may lead to something else tomorrow. Give the folder it leads to."
        )
    if resume and is_run(folder):
        return
    if folder.exists() and not folder.is_dir():
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which is a file. Expected a folder. Choose another "
            "name."
        )
    with _writing(path):
        if folder.exists() and any(folder.iterdir()):
            raise KerasdistError(
                f"Received `run_dir={str(path)!r}`, which is not empty. Expected a new folder, or "
                "one with a run to continue: nothing else is overwritten. Choose another name."
            )


def check_run(path: Path) -> None:
    """A folder must be a run of ours; else the nearest is named, if there is one."""
    if is_run(path):
        return
    there = [p for p in path.parent.parent.glob(f"*/*/{CONFIG}") if is_run(p.parent)]
    inside = newest_first(path)
    guess = closest(str(path), [str(inside[0])] if inside else sorted(str(p.parent) for p in there))
    raise KerasdistError(
        f"Received {str(path)!r}, which is no run: it has no {CONFIG} of ours. Expected a run's "
        f"folder.{guess} `kerasdist runs` lists them."
    )


def check_finished(path: Path) -> None:
    """An evaluation needs what a finished run leaves."""
    check_run(path)
    if not (path / FINAL).is_file():
        raise KerasdistError(
            f"Received the run {str(path)!r}, which has no {FINAL}: it did not finish. Expected a "
            "finished run. Train it to its end."
        )


@contextlib.contextmanager
def _writing(path: str | os.PathLike):
    try:
        yield
    except OSError as error:
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which cannot be written: {error.strerror}. "
            "Expected a folder one can write to. Choose another."
        ) from None


def next_run_folder(parent: str | os.PathLike) -> Path:
    """`parent/0001`, or the number after the highest there is."""
    parent = Path(parent)
    numbers = [int(p.name) for p in parent.glob("[0-9]*") if p.name.isdigit()]
    return parent / f"{max(numbers, default=0) + 1:04d}"
