"""Makes a table of passengers, to try the recipe without data."""

from __future__ import annotations

import csv
import functools
import random
import tempfile
from math import exp
from pathlib import Path

NUM_MADE = 800
HEADER = ("passenger", "survived", "cabin_class", "title", "sex", "age", "fare", "port")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="kerasdist-example-")  # Removed when Python ends.


def made_table() -> str:
    """The path of a CSV file with strings and missing values."""
    path = Path(_folder().name) / "passengers.csv"
    if not path.is_file():
        numbers = random.Random(0)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            writer.writerows(_passenger(i, numbers) for i in range(NUM_MADE))
    return str(path)


def _passenger(number: int, numbers: random.Random) -> list:
    sex = numbers.choices(("male", "female"), (13, 7))[0]
    level = numbers.choices((1, 2, 3), (5, 4, 11))[0]
    age = min(max(numbers.gauss(42 - 4 * level, 13), 0.5), 80)
    fare = exp(numbers.gauss((4.0, 2.7, 2.2)[level - 1], 0.5))
    title = ("Mr" if age > 14 else "Master") if sex == "male" else numbers.choice(("Mrs", "Miss"))
    chance = (3.5 if sex == "female" else 0.3) - 1.1 * (level - 1) - 0.04 * (age - 25)
    survived = numbers.random() < 1 / (1 + exp(-2 * chance))
    return [
        number,
        int(survived),
        level,
        title,
        sex,
        "" if numbers.random() < 0.2 else f"{age:.1f}",
        f"{fare:.2f}",
        numbers.choices(("Southampton", "Cherbourg", "?"), (15, 4, 1))[0],
    ]
