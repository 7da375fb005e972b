"""Writes what a model answers as a CSV file, one row per example."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist.evaluation.classes import Guess
from kerasdist.runs.atomic import write_text

# An example's place in its file, its outputs, and its likeliest classes if it has some.
Answer = tuple[dict[str, Any], Any, list[Guess] | None]


def write(path: Path, answers: Sequence[Answer]) -> None:
    """Writes a header and one row per example."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for i, answer in enumerate(answers):
        row = dict(_fields(*answer))
        if not i:
            writer.writerow(row)
        writer.writerow(row.values())
    write_text(path, text.getvalue())


def _fields(label: dict[str, Any], values: Any, best: list[Guess] | None) -> Iterator[Any]:
    yield from label.items()
    if best is not None:
        yield "class", best[0].name
        yield ("probability" if best[0].is_probability else "score"), f"{best[0].score:.6g}"
        return
    texts = [text for leaf in keras.tree.flatten(values) for text in _texts(np.asarray(leaf))]
    for i, text in enumerate(texts):
        yield ("value" if len(texts) == 1 else f"value_{i}"), text


def _texts(array: np.ndarray) -> Iterator[str]:
    """The numbers with all their digits: nothing is lost when they are read again."""
    for number in array.ravel().tolist():
        if isinstance(number, int):
            yield str(int(number))  # Of True, 1.
        else:
            yield repr(number) if array.dtype == np.float64 else f"{number:.9g}"
