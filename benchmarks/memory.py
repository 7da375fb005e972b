"""Measures the peak memory of training for several numbers of shards on one device.

python benchmarks/memory.py            # the table of docs/exactness.md
python benchmarks/memory.py --shards 8 # one measurement: prints the peak in MB
python benchmarks/memory.py --contrastive # the same with a loss over the whole batch
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path


def train(shards: int, contrastive: bool, steps: int) -> float:
    """Trains a small convolutional network; returns the peak resident memory in MB."""
    import keras
    import numpy as np

    import kerasdist

    layers = [keras.Input((32, 32, 3))]
    for _ in range(4):
        layers += [keras.layers.Conv2D(64, 3, padding="same", activation="relu")]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", keras.losses.Circle() if contrastive else loss)
    random = np.random.default_rng(0)
    data = random.normal(size=(512, 32, 32, 3)).astype("float32"), random.integers(0, 10, 512)
    kerasdist.fit(
        model, data, batch_size=512, steps=steps, shards=shards, devices=1, progress=False
    )
    # Not getrusage: its peak includes the peak of the parent process.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def measure(shards: int, contrastive: bool = False, steps: int = 2) -> float:
    """Calls `train` in a new process."""
    command = [sys.executable, __file__, "--shards", str(shards), "--steps", str(steps)]
    command += ["--contrastive"] if contrastive else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--contrastive", action="store_true")
    arguments = parser.parse_args()
    if arguments.shards:
        print(f"{train(arguments.shards, arguments.contrastive, arguments.steps):.0f}")
        return
    print("| shards | peak memory (MB) |\n|---|---|")
    for shards in (1, 2, 4, 8):
        print(f"| {shards} | {measure(shards, arguments.contrastive):.0f} |")


if __name__ == "__main__":
    main()
