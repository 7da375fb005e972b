"""Writes tables and texts like those that people have, for tests."""

import csv
from pathlib import Path

import numpy as np

HEADER = ("PassengerId", "Survived", "Pclass", "Name", "Sex", "Age", "SibSp", "Fare", "Embarked")
GOOD = ("great", "lovely", "perfect", "enjoyed", "superb", "moving")
BAD = ("dull", "awful", "boring", "wasted", "terrible", "flat")
COMMON = tuple(f"word{i}" for i in range(60))


def passengers(count=700, seed=0):
    """Rows with strings and missing values, whose target follows a noisy rule."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        sex, level = random.choice(["male", "female"], p=[0.6, 0.4]), int(random.integers(1, 4))
        age, children = float(random.uniform(1, 75)), int(random.integers(0, 4))
        chance = (2.2 if sex == "female" else -1.2) - 0.9 * (level - 2) - 0.03 * (age - 30)
        survived = random.random() < 1 / (1 + np.exp(-1.5 * chance))
        title = "Mrs." if sex == "female" else "Mr." if age > 14 else "Master."
        row = [i + 1, int(survived), level, f"Family{random.integers(400)}, {title} First Second"]
        row += [sex, "" if random.random() < 0.2 else f"{age:.0f}", children]
        row += [f"{np.exp(random.normal(4 - level, 0.5)):.2f}", random.choice(["S", "C", "Q", ""])]
        rows.append(row)
    return rows


def write_table(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def review(random, words):
    text = [*random.choice(COMMON, random.integers(8, 25)), *random.choice(words, 2)]
    random.shuffle(text)
    return " ".join(text).capitalize() + "."


def write_texts(folder, count=150, seed=0):
    """Writes `count` texts per class: two telling words among many that are not."""
    random = np.random.default_rng(seed)
    for name, words in (("bad", BAD), ("good", GOOD)):
        (Path(folder) / name).mkdir(parents=True)
        for i in range(count):
            (Path(folder) / name / f"{i}.txt").write_text(review(random, words))
    return Path(folder)


def logistic_regression(train, validation, sizes, steps=3000, l2=1e-3):
    """The accuracy of a plain logistic regression on the arrays of a table with two classes."""

    def flat(x):
        hot = [np.eye(size)[x["categories"][:, i]] for i, size in enumerate(sizes)]
        return np.concatenate([x["numbers"], *hot, np.ones((len(x["numbers"]), 1))], axis=1)

    (x, y), (other, labels) = train, validation
    x, other = flat(x), flat(other)
    weights = np.zeros(x.shape[1])
    for _ in range(steps):
        gradient = x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / len(y) + l2 * weights
        weights -= 0.3 * gradient
    return float(((other @ weights > 0) == labels).mean())
