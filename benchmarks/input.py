"""Measures the input speed of recipes/cifar10, and how long training waits for batches.

python benchmarks/input.py                                 # 50,000 synthetic images
python benchmarks/input.py --data-dir FOLDER               # the real files
python benchmarks/input.py --preset tutorial --steps 60

Each round measures the input alone, then training with that input. Training runs the step of the
recipe on one device, with its shuffling and augmentation, and times the wait for each batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from facts import about, as_line

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RECIPE = Path(__file__).parent.parent / "recipes" / "cifar10"
NUM_IMAGES = 50_000


class Bench:
    """The input pipeline and the training step of the recipe."""

    def __init__(self, **settings: Any):
        import kerasdist
        from kerasdist.data.feed import Feed
        from kerasdist.data.preparation import preparation
        from kerasdist.data.streams import open_stream
        from kerasdist.devices.placement import place
        from kerasdist.engine.engine import Engine
        from kerasdist.engine.settings import Settings

        recipe = kerasdist.load_recipe(RECIPE, **settings)
        self.batch_size = recipe.config.batch_size
        model = recipe.build_model()
        data = recipe.build_data("train")
        model(data["image"][:1])
        model.optimizer.build(model.trainable_variables)
        stream = open_stream(data, batch_size=self.batch_size, shuffle=True, seed=0)
        augment = recipe.build_augment()
        prepare = preparation(model, stream, labels=(), name="data", augment=augment, seed=0)
        self._feed = Feed(stream, prepare=prepare)
        self._engine = Engine(model, place(1), Settings(shards=1, ema=recipe.config.ema))
        self._epoch = 0
        self.train(2)  # Compiles.

    def read(self) -> float:
        """Examples per second of one pass over the input, without training."""
        iterator, began, num_examples = self._open(), time.perf_counter(), 0
        for batch in iterator:
            num_examples += len(next(iter(batch.values())))
        return num_examples / (time.perf_counter() - began)

    def train(self, num_steps: int) -> tuple[float, float]:
        """`(examples per second, share of the time that steps wait for their batch)`."""
        import tensorflow as tf

        iterator, waited, began = self._open(), 0.0, 0.0
        next(iterator)  # Not timed: the first batch of an epoch fills the buffer.
        began = time.perf_counter()
        for _ in range(num_steps):
            asked = time.perf_counter()
            batch = next(iterator)
            waited += time.perf_counter() - asked
            self._engine.train(iter(tf.data.Dataset.from_tensors(batch)), 1)
        seconds = time.perf_counter() - began
        return num_steps * self.batch_size / seconds, waited / seconds

    def _open(self) -> Any:
        self._feed.close()
        self._feed.open(self._epoch)
        self._epoch += 1
        return self._feed.iterator


def measure(rounds: int, steps: int, **settings: Any) -> dict[str, Any]:
    """Medians over the rounds."""
    bench = Bench(**settings)
    pairs = [(bench.read(), *bench.train(steps)) for _ in range(rounds)]
    return {
        "input_examples_per_second": round(statistics.median(read for read, _, _ in pairs)),
        "training_examples_per_second": round(statistics.median(rate for _, rate, _ in pairs)),
        "times_as_fast": round(statistics.median(read / rate for read, rate, _ in pairs), 1),
        "waiting_percent": round(100 * statistics.median(share for _, _, share in pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--data-dir", help="folder with cifar-10-batches-bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="training steps per round")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    source: dict[str, Any] = {"source": "synthetic", "num_train": NUM_IMAGES}
    if given.data_dir:
        source = {"data_dir": given.data_dir}
    facts = about()
    found = measure(given.rounds, given.steps, preset=given.preset, **source)
    print(f"{as_line(facts)}\n")
    print(f"| preset {given.preset} | |\n|---|---|")
    print(f"| input alone | {found['input_examples_per_second']:,} examples/s |")
    print(f"| training | {found['training_examples_per_second']:,} examples/s |")
    print(f"| input ÷ training | {found['times_as_fast']} times |")
    print(f"| steps wait for their batch | {found['waiting_percent']}% of the time |")
    if given.json:
        given.json.write_text(json.dumps({"about": facts, "input": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
