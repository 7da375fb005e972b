"""Measures the cost of saving recipes/cifar10, and the time that a long run needs to resume.

python benchmarks/saving.py                   # both tables, about five minutes on two cores
python benchmarks/saving.py --only saving     # or: --only resuming
python benchmarks/saving.py --json saving.json

A few saves per minute are too few to measure: the noise of the machine hides them. So the run saves
much more often, and the cost of one save is compared with 30 seconds of training. Resuming is timed
from the start of a process to its first new step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from facts import about, as_line

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RECIPE = Path(__file__).parent.parent / "recipes" / "cifar10"
EVERY_SECONDS = 30
# For resuming: with this much data, 5,000 steps are less than an epoch.
NUM_EXAMPLES, NUM_FEATURES, BATCH_SIZE = 128_000, 64, 16
NEAR, FAR = 5, 5000
# The stream cannot be opened in the middle: resuming reads it again up to its position.
SOURCES = ("arrays", "file by index", "tf.data stream")


def measure_saving(pairs: int, seconds: float) -> dict[str, Any]:
    """Trains alternately with and without saving, and times each save."""
    import tensorflow as tf

    import kerasdist
    from kerasdist.runs.checkpoints import Store
    from kerasdist.runs.checkpoints.recovery import Recovery

    recipe = kerasdist.load_recipe(RECIPE, source="synthetic", num_train=20_000)
    # Repeated without end: otherwise each pass over the data would end an epoch.
    data = tf.data.Dataset.from_tensor_slices(recipe.build_data("train")).repeat()

    def train(save_every: str, steps: int) -> tuple[float, int]:
        """Seconds of training without compiling, and bytes of the largest checkpoint."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            kerasdist.fit(
                recipe.build_model,
                data,
                batch_size=recipe.config.batch_size,
                shuffle=False,
                steps=steps,
                steps_per_epoch=steps,  # A single epoch: the work at its end is not saving.
                run_dir=folder,
                save_every=save_every,
                progress=False,
            )
            result = json.loads((folder / "result.json").read_text())
            size = max(_bytes(path) for path in folder.glob("checkpoints/*"))
        return result["examples_seen"] / result["examples_per_second"], size

    never, often = "100000s", "1s"
    tried_steps = 40
    tried_seconds, size = train(never, tried_steps)
    steps = max(20, int(tried_steps * seconds / tried_seconds))
    on_path: list[Timing] = []
    in_background: list[Timing] = []
    plain, extra = [], []
    for _ in range(pairs):
        plain.append(train(never, steps)[0])
        before = len(in_background)
        with timed(Recovery, "save", on_path), timed(Store, "save", in_background):
            with_saving = train(often, steps)[0]
        # The last save happens after training ends.
        num_saves = len(in_background) - before - 1
        extra.append((with_saving - plain[-1]) / max(1, num_saves))
    snapshot = statistics.median(t.seconds for t in on_path)
    cpu = statistics.median(t.cpu_seconds for t in in_background)
    slower = statistics.median(extra)
    return {
        "steps": steps,
        "training_seconds": round(statistics.median(plain), 2),
        "saves": len(in_background),
        "checkpoint_megabytes": round(size / 1e6, 1),
        "snapshot_milliseconds": round(snapshot * 1e3, 2),
        "background_milliseconds": round(
            statistics.median(t.seconds for t in in_background) * 1e3, 1
        ),
        "background_cpu_milliseconds": round(cpu * 1e3, 1),
        "slower_milliseconds_a_save": round(slower * 1e3, 1),
        "percent_measured": round(100 * slower / EVERY_SECONDS, 3),
        # The worst case: training loses all the CPU time of the writing thread.
        "percent_at_most": round(100 * (snapshot + cpu) / EVERY_SECONDS, 3),
    }


class Timing(NamedTuple):
    """The time of one call: elapsed, and CPU time of its thread."""

    seconds: float
    cpu_seconds: float


@contextlib.contextmanager
def timed(kind: type, name: str, timings: list[Timing]) -> Iterator[None]:
    """Records how long each call of a method takes."""
    method = getattr(kind, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        began, began_cpu = time.perf_counter(), time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            timings.append(Timing(time.perf_counter() - began, time.thread_time() - began_cpu))

    setattr(kind, name, call)
    try:
        yield
    finally:
        setattr(kind, name, method)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def measure_resuming(repeats: int) -> dict[str, dict[str, Timing]]:
    """Time from the start of a process to its first new step: a new run and two resumed runs."""
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write_records(folder / "records.bin")
        for source in SOURCES:
            begun: dict[int, Path | None] = {0: None}
            for steps in (NEAR, FAR):
                begun[steps] = folder / f"{source}-{steps}"
                process = _start(source, folder, begun[steps], steps, log_every=1000)
                _, errors = process.communicate()
                if process.returncode:
                    raise RuntimeError(errors)
            timings: dict[int, list[Timing]] = {steps: [] for steps in begun}
            for _ in range(repeats):
                for steps, run in begun.items():
                    copy = folder / "run"
                    if run is not None:
                        shutil.copytree(run, copy)
                    timings[steps].append(_first_step(source, folder, copy, steps + 1))
                    shutil.rmtree(copy)
            results[source] = {
                f"after {steps}": Timing(
                    round(statistics.median(t.seconds for t in found), 2),
                    round(statistics.median(t.cpu_seconds for t in found), 2),
                )
                for steps, found in timings.items()
            }
    return results


def _start(source: str, folder: Path, run: Path, steps: int, log_every: int) -> subprocess.Popen:
    command = [sys.executable, __file__, "--train", source, "--records", folder / "records.bin"]
    options = ["--run-dir", run, "--steps", steps, "--log-every", log_every]
    return subprocess.Popen(
        [str(part) for part in (*command, *options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _first_step(source: str, folder: Path, run: Path, step: int) -> Timing:
    began = time.perf_counter()
    process = _start(source, folder, run, FAR + 1000, log_every=1)
    assert process.stdout is not None
    for line in process.stdout:
        if f"step {step}, loss" in line:
            timing = Timing(time.perf_counter() - began, _cpu_seconds(process.pid))
            process.kill()
            process.communicate()
            return timing
    raise RuntimeError(f"a run of {source!r} has no step {step}: {process.communicate()[1]}")


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; on a busy machine this is steadier than elapsed time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write_records(path: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    path.write_bytes(random.integers(0, 256, (NUM_EXAMPLES, NUM_FEATURES + 1), np.uint8).tobytes())


def train(source: str, records: Path, run: Path, steps: int, log_every: int) -> None:
    """The training that the measured processes run."""
    import keras
    import numpy as np
    import tensorflow as tf

    import kerasdist

    class Rows:
        def __init__(self) -> None:
            self._rows = np.memmap(records, np.uint8, "r").reshape(-1, NUM_FEATURES + 1)

        def arrays(self) -> tuple[np.ndarray, np.ndarray]:
            return self._rows[:, :-1].astype("float32"), self._rows[:, -1] % 10

        def __len__(self) -> int:
            return len(self._rows)

        def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
            return self._rows[i, :-1].astype("float32"), self._rows[i, -1] % 10

    def stream() -> tf.data.Dataset:
        def parse(record):
            row = tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [NUM_FEATURES + 1])
            return tf.cast(row[:-1], tf.float32), row[-1] % 10

        return tf.data.FixedLengthRecordDataset(str(records), NUM_FEATURES + 1).map(parse)

    makers = dict(zip(SOURCES, (lambda: Rows().arrays(), Rows, stream), strict=True))
    data = makers[source]()

    def build() -> keras.Model:
        layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((NUM_FEATURES,)), keras.layers.Rescaling(1 / 255)])
        for layer in layers:
            model.add(layer)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    kerasdist.fit(build, data, batch_size=BATCH_SIZE, steps=steps, run_dir=run, log_every=log_every)


def _print(results: dict[str, Any]) -> None:
    facts = results["about"]
    print(f"{as_line(facts)}\n")
    if facts["load"][0] > 1:
        print("The machine was busy: differences in elapsed time are noise, even negative ones.\n")
    if "saving" in results:
        saving = results["saving"]
        print(f"| one save of recipes/cifar10 ({saving['checkpoint_megabytes']} MB) | |\n|---|---|")
        print(f"| snapshot, while training waits | {saving['snapshot_milliseconds']} ms |")
        wall, cpu = saving["background_milliseconds"], saving["background_cpu_milliseconds"]
        print(f"| write in the background | {wall} ms, {cpu} ms of CPU |")
        print(f"| extra training time | {saving['slower_milliseconds_a_save']} ms |")
        print(f"| extra time with `--save-every 30s` | {saving['percent_measured']}% |")
        print(f"| the same if training loses all that CPU time | {saving['percent_at_most']}% |\n")
    if "resuming" in results:
        cases = f"new run | after step {NEAR} | after step {FAR:,}"
        print(f"| seconds (of CPU) to the first step | {cases} |\n|---|---|---|---|")
        for source, row in results["resuming"].items():
            cells = [f"{t.seconds:.1f} ({t.cpu_seconds:.1f})" for t in row.values()]
            print(f"| {source} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["saving", "resuming"])
    parser.add_argument(
        "--pairs", type=int, default=4, help="pairs of trainings, with and without saving"
    )
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="approximate length of each training"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each kind of start")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    inner = parser.add_argument_group("used by the benchmark itself")
    inner.add_argument("--train", choices=SOURCES)
    inner.add_argument("--records", type=Path)
    inner.add_argument("--run-dir", type=Path)
    inner.add_argument("--steps", type=int)
    inner.add_argument("--log-every", type=int)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.records, given.run_dir, given.steps, given.log_every)
        return
    results: dict[str, Any] = {"about": about()}
    if given.only != "resuming":
        results["saving"] = measure_saving(given.pairs, given.seconds)
    if given.only != "saving":
        results["resuming"] = measure_resuming(given.repeats)
    _print(results)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
