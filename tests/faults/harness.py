"""Starts real training processes, kills them, resumes them, and compares how they end.

python -m tests.faults.harness --runs 200                    # SIGKILL at random moments
python -m tests.faults.harness --runs 20 --signal TERM       # asked to stop: nothing is done again
python -m tests.faults.harness --runs 20 --baseline keras    # Keras's fit and BackupAndRestore
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import evidence
from tests.faults.strikes import (
    ANY,
    CHECKPOINT,
    EDGE,
    KERASDIST,
    MODEL,
    START,
    STEP,
    Aim,
    Place,
    Strike,
    Subject,
    Training,
    keras_fit,
    strike,
)
from tests.faults.totals import OTHER, SAME, Outcome, Totals

# What the first strike of each run aims at, in turn.
AIMS = (STEP, CHECKPOINT, EDGE, CHECKPOINT, ANY, STEP, MODEL, CHECKPOINT)
# A run that ended before its strike is begun anew, with an earlier one.
MOST_TRIES = 6


@dataclass(frozen=True)
class Undisturbed:
    """The run that the others are compared with."""

    place: Place
    seconds: float
    trained: evidence.Trained
    result: dict[str, Any]


def finish(subject: Subject, place: Place, *options: str) -> Training:
    """Runs to the end."""
    training = Training(subject, place, *options)
    code = training.end()
    if code != 0:
        raise AssertionError(f"exit {code}:\n{training.text}")
    return training


def run_undisturbed(place: Place, subject: Subject = KERASDIST) -> Undisturbed:
    training = finish(subject, place)
    seconds = time.monotonic() - training.began
    trained = evidence.trained(subject, place, [(training.pid, (0, None))])
    if problems := trained.problems():
        raise AssertionError(f"the undisturbed run is wrong: {problems}")
    return Undisturbed(place, seconds, trained, evidence.result(place))


def draw_aims(index: int, chance: random.Random, subject: Subject = KERASDIST) -> list[Aim]:
    """One strike, or sometimes two. Keras's `fit` writes no files of models."""
    moments = [moment for moment in AIMS if moment != MODEL or not subject.is_baseline]
    drawn = [moments[index % len(moments)]]
    if chance.random() < 0.25:
        drawn.append(chance.choice(moments))
    return [Aim.draw(moment, chance) for moment in drawn]


def disturb(
    place: Place,
    undisturbed: Undisturbed,
    aims: Sequence[Aim],
    number: int = signal.SIGKILL,
    *,
    chance: random.Random | None = None,
    subject: Subject = KERASDIST,
) -> Outcome:
    """One run: struck at each of the aims, then resumed to its end and compared.

    Every process takes one of the subject's numbers of devices, drawn by `chance`.
    """
    chance = chance or random.Random(0)
    outcome = Outcome(place)
    try:
        for aim in aims:
            _strike_until_it_arrives(outcome, undisturbed, aim, number, chance, subject)
        if not outcome.kills:
            outcome.problems.append(f"no signal arrived in {outcome.misses} tries")
        training = finish(subject, place, *_devices(subject, chance))
        _write_output(place, len(outcome.strikes), training.text)
        _compare(outcome, undisturbed, training, number, subject)
    except Exception as error:  # noqa: BLE001 - whatever it is, this run has failed, not the others
        outcome.problems.append(f"{type(error).__name__}: {error}")
    return outcome


def _strike_until_it_arrives(
    outcome: Outcome,
    undisturbed: Undisturbed,
    aim: Aim,
    number: int,
    chance: random.Random,
    subject: Subject,
) -> None:
    for _ in range(MOST_TRIES):
        options = _devices(subject, chance)
        struck = strike(subject, outcome.place, aim, number, undisturbed.seconds, *options)
        outcome.strikes.append(struck)
        _write_output(outcome.place, len(outcome.strikes) - 1, struck.text)
        if struck.arrived:
            if number != signal.SIGKILL:
                outcome.problems += _problems_of_a_stop(outcome.place, struck, number)
            return
        if struck.code != 0:
            raise AssertionError(f"exit {struck.code} by itself:\n{struck.text}")
        outcome.misses += 1
        if outcome.kills:
            return  # The run has ended, and was struck before.
        shutil.rmtree(outcome.place.folder)
        outcome.strikes.clear()
        aim = aim.earlier()


def _devices(subject: Subject, chance: random.Random) -> tuple[str, ...]:
    return ("--devices", str(chance.choice(subject.devices))) if subject.devices else ()


def _problems_of_a_stop(place: Place, struck: Strike, number: int) -> list[str]:
    """SIGTERM and Ctrl-C: saved, told, and no step lost. Before training there is nothing to."""
    if struck.moment == START:
        return []
    found = []
    if struck.code != 128 + number:
        found.append(f"exit {struck.code} and not {128 + number}: {struck.moment}")
    status = evidence.result(place).get("status") if (place.run / "result.json").exists() else None
    if status != "interrupted":
        found.append(f"result.json has the status {status!r} and not 'interrupted'")
    if "the same command continues" not in struck.text:
        found.append("it does not say how to go on")
    last = max((line["step"] for line in evidence.logged(place)), default=0)
    saved = evidence.newest_checkpoint(place)
    if saved < last:
        found.append(f"step {last} was logged, and the newest checkpoint is of step {saved}")
    return found


def _compare(
    outcome: Outcome, undisturbed: Undisturbed, last: Training, number: int, subject: Subject
) -> None:
    place = outcome.place
    digest = evidence.result(place)["weights_sha256"]
    outcome.ending = SAME if digest == undisturbed.result["weights_sha256"] else OTHER
    processes = [(s.pid, s.resumed) for s in outcome.strikes]
    trained = evidence.trained(subject, place, [*processes, (last.pid, last.resumed)])
    outcome.num_again, outcome.num_twice = trained.num_again, trained.num_twice
    problems = trained.problems()
    outcome.each_once = not problems
    outcome.problems += problems
    if not subject.is_baseline:
        outcome.problems += evidence.differences(place, undisturbed.place)
        if trained.steps != undisturbed.trained.steps:
            outcome.problems.append("steps were trained on other examples than undisturbed")
        if trained.num_again and number != signal.SIGKILL:
            outcome.problems.append(f"{trained.num_again} steps were done again")
    elif outcome.ending != SAME:
        outcome.problems.append("the weights are not those of the undisturbed run")


def _write_output(place: Place, number: int, text: str) -> None:
    (place.folder / f"output-{number}.txt").write_text(text)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--signal", default="KILL", choices=["KILL", "TERM", "INT"])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments and devices")
    parser.add_argument("--json", type=Path, help="a file for the totals, written after each run")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--baseline", choices=["keras"], help="another trainer, for comparison")
    parser.add_argument(
        "--save-freq", default="3", help="the baseline's: a number of batches, or epoch"
    )
    return parser.parse_args()


def main() -> int:
    arguments = _parse()
    number = getattr(signal, f"SIG{arguments.signal}")
    subject = keras_fit(arguments.save_freq) if arguments.baseline else KERASDIST
    folder = Path(tempfile.mkdtemp(prefix="kerasdist-faults-"))
    print(f"{subject.name}: {arguments.runs} runs in {folder}", flush=True)
    undisturbed = run_undisturbed(Place(folder / "undisturbed"), subject)
    again = run_undisturbed(Place(folder / "again"), subject)
    if again.result["weights_sha256"] != undisturbed.result["weights_sha256"]:
        print("two undisturbed runs do not end with the same weights: nothing can be compared")
        return 1
    print(f"two undisturbed runs agree; one takes {undisturbed.seconds:.1f} s", flush=True)
    totals = Totals(subject, number, arguments.seed, arguments.runs)
    is_failure = threading.Event()

    def one(index: int) -> Outcome | None:
        if is_failure.is_set() and not arguments.keep_going:
            return None
        chance = random.Random(f"{arguments.seed}-{index}")
        aims = draw_aims(index, chance, subject)
        place = Place(folder / f"{index:04d}")
        return disturb(place, undisturbed, aims, number, chance=chance, subject=subject)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for future in as_completed([pool.submit(one, index) for index in range(arguments.runs)]):
            outcome = future.result()
            if outcome is None:
                continue
            totals.outcomes.append(outcome)
            _tell(outcome, totals, arguments.json)
            if outcome.problems and not arguments.baseline:
                is_failure.set()
                print(f"  kept in {outcome.place.folder}", flush=True)
            else:
                shutil.rmtree(outcome.place.folder, ignore_errors=True)
    print(totals.table())
    if not is_failure.is_set():
        shutil.rmtree(folder)
    return int(is_failure.is_set())


def _tell(outcome: Outcome, totals: Totals, path: Path | None) -> None:
    moments = ", ".join(f"{kill.moment} (after step {kill.last_step})" for kill in outcome.kills)
    print(f"run {outcome.place.folder.name}: killed {moments}; {outcome.ending}")
    for problem in outcome.problems:
        print(f"  {problem}")
    print(totals.line(), flush=True)
    if path is not None:
        draft = path.with_name(f".{path.name}")
        draft.write_text(json.dumps(totals.as_dict(), indent=2) + "\n")
        draft.rename(path)


if __name__ == "__main__":
    sys.exit(main())
