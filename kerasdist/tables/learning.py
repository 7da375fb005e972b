"""Learns from the training rows how to turn a table into arrays, and does it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np

from kerasdist.tables.kinds import Kinds
from kerasdist.tables.reading.builders import NO_CODE, Names, Words
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import (
    FIRST_VALUE,
    FIRST_WORD,
    NO_VALUE,
    OTHER,
    OTHER_WORD,
    PADDING,
    Column,
    Schema,
    Target,
)

# A value of a category, or a word, that comes less often in training is an "other" one.
FEWEST = 2
MOST_CATEGORIES = 10_000
MOST_VOCABULARY = 20_000
# How many words of a text the model reads, at most.
MOST_READ = 256
# Beyond this distance from the middle, larger numbers look more and more alike.
BEND = 3.0
YEAR, WEEK = 365.25, 7.0


def learn(raw: Raw, kinds: Kinds, target: Target, rows: np.ndarray) -> Schema:
    """What the model needs to know about the columns, from the training rows alone."""
    learnt = tuple(_learnt(column, raw.columns.get(column.name), rows) for column in kinds.columns)
    if target.task == "regression" and raw.target is not None:
        values = raw.target[rows].astype(np.float64)
        scale = float(values.std())
        target = dataclasses.replace(target, center=float(values.mean()), scale=scale or 1.0)
    vocabulary, num_words = ((), 0) if raw.words is None else _vocabulary(raw.words, rows)
    return Schema(learnt, target, vocabulary, num_words, kinds.left_out, kinds.notes)


def _learnt(column: Column, values: Any, rows: np.ndarray) -> Column:
    if column.has_numbers:
        chosen = values[rows]
        features = number_features(column, chosen)
        middles = [_middle_and_scale(feature) for feature in features.T]
        known: tuple[Any, ...] = ()
        if column.has_category:
            counts = Counter(chosen[~np.isnan(chosen)].astype(np.int64).tolist())
            known = tuple(sorted(value for value, count in counts.items() if count >= FEWEST))
        return dataclasses.replace(
            column,
            centers=tuple(center for center, _ in middles),
            scales=tuple(scale for _, scale in middles),
            has_missing=bool(np.isnan(chosen).any()),
            values=known,
        )
    if isinstance(values, Names):
        return dataclasses.replace(column, values=_frequent(values, rows))
    return column


def _frequent(values: Names, rows: np.ndarray) -> tuple[str, ...]:
    codes = values.codes[rows]
    counts = np.bincount(codes[codes != NO_CODE], minlength=len(values.names))
    order = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    return tuple(sorted(values.names[i] for i in order if counts[i] >= FEWEST))


def _middle_and_scale(values: np.ndarray) -> tuple[float, float]:
    """The median, and a distance like a standard deviation that outliers do not change."""
    values = values[~np.isnan(values)].astype(np.float64)
    if not len(values):
        return 0.0, 1.0
    low, middle, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    if len(np.unique(values[:1000])) <= 2 or high == low:
        # Of two values, or with most values alike, quartiles say nothing.
        return float(values.mean()), float(values.std()) or 1.0
    return middle, (high - low) / 1.35


def number_features(column: Column, values: np.ndarray) -> np.ndarray:
    """The numbers that are made of each value: of a date also the time of the year and week."""
    if column.kind != "date":
        return values[:, None]
    turns = [
        np.mod(values, np.float32(length)) / np.float32(length) * np.float32(2 * math.pi)
        for length in (YEAR, WEEK)
    ]
    waves = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
    return np.stack([values, *waves], axis=1)


def _vocabulary(words: Words, rows: np.ndarray) -> tuple[tuple[str, ...], int]:
    lengths = np.diff(words.ends, prepend=0)
    used = np.repeat(rows, lengths)
    counts = np.bincount(words.codes[used], minlength=len(words.words))
    # Of equally frequent words, the first by the alphabet: the order of the rows does not count.
    order = sorted(np.flatnonzero(counts >= FEWEST), key=lambda i: (-counts[i], words.words[i]))
    longest = int(lengths[rows].max(initial=1))
    return (
        tuple(words.words[i] for i in order[:MOST_VOCABULARY]),
        max(1, min(longest, MOST_READ)),
    )


def encode(raw: Raw, schema: Schema) -> dict[str, np.ndarray]:
    """The arrays that the model reads: `numbers`, `categories` and `words`, as far as it does.

    Missing numbers become the median (0 after it was subtracted) and set an indicator, if
    the training part misses values, too.
    """
    arrays: dict[str, np.ndarray] = {}
    if schema.num_numbers:
        parts = []
        for column in schema.columns:
            if column.has_numbers:
                parts.append(_scaled(column, raw.columns[column.name]))
        arrays["numbers"] = np.concatenate(parts, axis=1)
    if schema.num_categories:
        ids = [_ids(c, raw.columns[c.name]) for c in schema.columns if c.has_category]
        arrays["categories"] = np.stack(ids, axis=1)
    if schema.num_words and raw.words is not None:
        arrays["words"] = _padded(raw.words, schema)
    return arrays


def _scaled(column: Column, values: np.ndarray) -> np.ndarray:
    features = number_features(column, values)
    # Large numbers are float64 until the center is subtracted.
    kind = features.dtype
    centers, scales = np.array(column.centers, kind), np.array(column.scales, kind)
    scaled = (features - centers) / scales
    bent = scaled / np.sqrt(1 + np.square(scaled / np.float32(BEND)))
    missing = np.isnan(values)
    parts = [np.where(missing[:, None], np.float32(0), bent)]
    if column.has_missing:
        parts.append(missing[:, None].astype(np.float32))
    return np.concatenate(parts, axis=1).astype(np.float32)


def _ids(column: Column, values: Any) -> np.ndarray:
    known = {value: i for i, value in enumerate(column.values, FIRST_VALUE)}
    if isinstance(values, Names):
        ids = np.array([*(known.get(name, OTHER) for name in values.names), NO_VALUE], np.int32)
        return ids[values.codes]  # NO_CODE is the last one.
    different, inverse = np.unique(values, return_inverse=True)
    ids = np.array(
        [NO_VALUE if math.isnan(v) else known.get(v, OTHER) for v in different.tolist()], np.int32
    )
    return ids[inverse]


def _padded(words: Words, schema: Schema) -> np.ndarray:
    known = {word: i for i, word in enumerate(schema.vocabulary, FIRST_WORD)}
    ids = np.array([known.get(word, OTHER_WORD) for word in words.words], np.int32)
    lengths = np.diff(words.ends, prepend=0)
    starts = words.ends - lengths
    column = np.arange(schema.num_words)
    inside = column < lengths[:, None]
    padded = np.full(inside.shape, PADDING, np.int32)
    places = (starts[:, None] + column)[inside]
    padded[inside] = ids[words.codes[places]] if len(ids) else OTHER_WORD
    return padded


def as_targets(raw: Raw, schema: Schema) -> np.ndarray:
    """The targets as the loss takes them: class numbers, or a column of numbers."""
    if raw.target is None:  # An empty table.
        return np.zeros((0, 1) if schema.target.task == "regression" else 0, np.int64)
    if schema.target.task == "regression":
        return raw.target[:, None].astype(np.float32)
    return raw.target
