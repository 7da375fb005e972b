"""What runs left behind: which examples they were trained on, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasdist.runs.checkpoints import Store
from tests.faults.strikes import EPOCHS, EXAMPLES, STEPS_PER_EPOCH, Place, Subject

# What training decides; the rest (rates, devices) may differ between two runs.
_METRICS = ("loss", "accuracy", "val_loss", "val_accuracy")
_IN_RESULT = ("status", "steps", "epochs", "examples_seen", "weights_sha256", *_METRICS)
_IN_LOG = ("kind", "step", "epoch", *_METRICS)


@dataclass(frozen=True)
class Step:
    """One step that counts: its epoch, and the examples of each of its shards."""

    epoch: int
    shards: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Trained:
    """The steps that led to the final weights, and those that were lost and done again."""

    steps: tuple[Step, ...]
    num_again: int

    def times_seen(self) -> Counter[tuple[int, int]]:
        """How often each (epoch, example) was trained on."""
        return Counter((s.epoch, i) for s in self.steps for shard in s.shards for i in shard)

    @property
    def num_twice(self) -> int:
        """How many (epoch, example) pairs were trained on more than once."""
        return sum(count > 1 for count in self.times_seen().values())

    def problems(self) -> list[str]:
        """Examples that were not seen exactly once an epoch."""
        seen = self.times_seen()
        everything = {(epoch, i) for epoch in range(EPOCHS) for i in range(EXAMPLES)}
        missed = len(everything - seen.keys())
        foreign = len(seen.keys() - everything)
        found = (
            (missed, "were missed"),
            (self.num_twice, "were seen more than once"),
            (foreign, "do not belong to the data"),
        )
        return [f"{n} (epoch, example) pairs {what}" for n, what in found if n]


def trained(
    subject: Subject, place: Place, processes: Sequence[tuple[int, tuple[int, int | None]]]
) -> Trained:
    """Follows the processes of a run, given as (process id, what it resumed from).

    A process that goes on after step 39 takes back what those before it did from step 40 on.
    """
    notes = _notes(place.trained_on)
    steps: list[Step] = []
    done = 0
    for pid, resumed in processes:
        lines = notes.pop(pid, [])
        if not lines:
            continue
        before, epoch, batch = subject.begins_at(resumed)
        if before > len(steps):
            raise AssertionError(f"a process went on after step {before} of {len(steps)}")
        del steps[before:]
        num_steps = len(lines) // subject.notes_per_step  # A kill may leave part of a step.
        done += num_steps
        for i in range(num_steps):
            shards = lines[i * subject.notes_per_step : (i + 1) * subject.notes_per_step]
            in_epoch = epoch + (batch + i) // STEPS_PER_EPOCH
            # Devices take their shards at the same time, in any order.
            steps.append(Step(in_epoch, tuple(sorted(shards))))
    if notes:
        raise AssertionError(f"processes {sorted(notes)} trained on examples and nobody knows them")
    return Trained(tuple(steps), done - len(steps))


def _notes(path: Path) -> dict[int, list[tuple[int, ...]]]:
    """The examples of each shard, by process."""
    notes: dict[int, list[tuple[int, ...]]] = {}
    for line in path.read_text().splitlines():
        pid, *indices = map(int, line.split())
        notes.setdefault(pid, []).append(tuple(indices))
    return notes


def result(place: Place) -> dict[str, Any]:
    return json.loads((place.run / "result.json").read_text())


def logged(place: Place) -> list[dict[str, Any]]:
    """metrics.jsonl without rates."""
    lines = (place.run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k in _IN_LOG} for line in lines]


def newest_checkpoint(place: Place) -> int:
    """The step of the newest checkpoint that verifies; 0 if there is none."""
    found = Store(place.run / "checkpoints").newest()
    return 0 if found is None else found.step


def state(place: Place) -> dict[str, str]:
    """A hash of each part of the last checkpoint: weights, BatchNorm, optimizer, averages.

    Not of the metrics: it may be from before or after the last epoch's validation, which uses them.
    """
    found = Store(place.run / "checkpoints").newest()
    assert found is not None
    parts: dict[str, Any] = {}
    for name in sorted(found.arrays):
        part = name.split("/")[0]
        if part != "metrics":
            digest = parts.setdefault(part, hashlib.sha256())
            digest.update(np.ascontiguousarray(found.arrays[name]).tobytes())
    return {part: digest.hexdigest() for part, digest in parts.items()}


def saved_weights(path: Path) -> str:
    """A hash of the arrays in a .keras file, whose other bytes hold dates."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            weights = archive.extract("model.weights.h5", folder)
        with h5py.File(weights, "r") as file:
            for name, array in _arrays(file):
                digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def _arrays(group: Any) -> Iterator[tuple[str, np.ndarray]]:
    for name in sorted(group):
        item = group[name]
        if isinstance(item, h5py.Dataset):
            yield item.name, item[()]
        else:
            yield from _arrays(item)


def differences(place: Place, other: Place) -> list[str]:
    """In which respects a finished run is not what the undisturbed one is."""
    mine, theirs = result(place), result(other)
    found = [
        f"{name} is {mine.get(name)!r}, undisturbed {theirs[name]!r}"
        for name in _IN_RESULT
        if mine.get(name) != theirs[name]
    ]
    found += _unequal("the last checkpoint's", state(place), state(other))
    models = ("best.keras", "final.keras")
    weights = [{name: saved_weights(p.run / name) for name in models} for p in (place, other)]
    found += _unequal("the arrays in", *weights)
    found += _unequal_lines(logged(place), logged(other))
    left = [p.name for p in (*place.run.glob("tmp-*"), *place.run.glob("checkpoints/tmp-*"))]
    if left:
        found.append(f"drafts were left behind: {', '.join(left)}")
    return found


def _unequal(what: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    names = sorted({*mine, *theirs})
    return [f"{what} {name} differ" for name in names if mine.get(name) != theirs.get(name)]


def _unequal_lines(mine: list[dict], theirs: list[dict]) -> list[str]:
    for number, (one, two) in enumerate(zip(mine, theirs, strict=False), start=1):
        if one != two:
            return [f"line {number} of metrics.jsonl is {one}, undisturbed {two}"]
    if len(mine) != len(theirs):
        return [f"metrics.jsonl has {len(mine)} lines, undisturbed {len(theirs)}"]
    return []
