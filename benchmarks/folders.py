"""Trains on a folder of many small images, and measures memory and the speed of reading.

python benchmarks/folders.py                        # 100,000 images in a temporary folder: minutes
python benchmarks/folders.py --images 2000          # quicker
python benchmarks/folders.py --folder photos        # your own folder

It reads images alone first: with one thread, then as a training does. Then `kerasdist fit` trains
one epoch in another process. Its memory is the largest resident set that the system saw.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from facts import about, as_line

NUM_CLASSES = 10
SIDE = 32
# Different files; their number, not their content, is what is measured.
NUM_DISTINCT = 500


def write_images(folder: Path, count: int) -> None:
    """Writes PNG images of ten classes: squares of noise around a level."""
    from PIL import Image

    random = np.random.default_rng(0)
    contents: list[list[bytes]] = []
    for label in range(NUM_CLASSES):
        (folder / f"class{label}").mkdir()
        contents.append([])
        for _ in range(NUM_DISTINCT // NUM_CLASSES):
            noise = random.normal(20 + 22 * label, 20, (SIDE, SIDE, 3))
            file = io.BytesIO()
            Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).save(file, "png")
            contents[-1].append(file.getvalue())
    for i in range(count):
        label, number = i % NUM_CLASSES, i // NUM_CLASSES
        content = contents[label][number % len(contents[label])]
        (folder / f"class{label}" / f"{number:06d}.png").write_bytes(content)


def reading_speed(folder: Path, seconds: float) -> dict[str, float]:
    """How long it takes to find and check the files, and images per second that are decoded."""
    import kerasdist

    began = time.perf_counter()
    images = kerasdist.ImageFolder(folder)
    found = {"seconds_to_find": time.perf_counter() - began}
    source = images.train
    order = np.random.default_rng(0).permutation(len(source))

    def measure(read: Any, size: int) -> float:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            start = done % max(1, len(order) - size)
            read([int(i) for i in order[start : start + size]])
            done += size
        return done / (time.perf_counter() - began)

    found["images_per_second_one_thread"] = measure(lambda rows: [source[i] for i in rows], 128)
    found["images_per_second"] = measure(source.__getitems__, 128)
    return found


def train(folder: Path, runs: Path) -> dict[str, Any]:
    """One epoch of `kerasdist fit` in another process."""
    argv = [sys.executable, "-m", "kerasdist", "fit", str(folder), "--epochs", "1", "--quiet"]
    argv += ["--batch-size", "128", "--width", "8", "--run-dir", str(runs / "run")]
    began = time.perf_counter()
    subprocess.run(argv, check=True)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    result = json.loads((runs / "run" / "result.json").read_text())
    return {
        "seconds": seconds,
        "peak_mb": peak,
        "val_accuracy": result["val_accuracy"],
        "trained_per_second": result["examples_per_second"],
    }


def main() -> None:
    """Parses the arguments, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="a folder with one folder per class")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each reading measurement")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory(prefix="kerasdist-folders-") as place:
        folder = arguments.folder
        if folder is None:
            folder = Path(place) / "images"
            folder.mkdir()
            write_images(folder, arguments.images)
        found = {
            "images": sum(1 for path in folder.rglob("*") if path.is_file()),
            **reading_speed(folder, arguments.seconds),
            **train(folder, Path(place)),
        }
    facts = about()
    if arguments.json:
        print(json.dumps({**found, **facts}))
        return
    for name, value in found.items():
        print(f"{name:30} {value:,.2f}" if isinstance(value, float) else f"{name:30} {value:,}")
    print(as_line(facts))


if __name__ == "__main__":
    main()
