"""Divides the rows of a table into a training and a validation part."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.recipes.own_data.splits import Split
from kerasdist.tables.reading.builders import Names
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import Column, Target

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # Those of SplitMix64.
_STEP = np.uint64(0x9E3779B97F4A7C15)


def find_split(
    raw: Raw, columns: Sequence[Column], target: Target, share: float, seed: int
) -> Split:
    """The split that gives validation its share of the rows, of each class if there are some.

    Of a class with one row, validation gets none.

    Args:
        raw: All rows.
        columns: The columns that a model reads.
        target: What it predicts.
        share: The part of the rows that is for validation.
        seed: Decides which rows.
    """
    if raw.rows < 2:
        rows = "1 row" if raw.rows else "no rows"
        raise KerasdistError(
            f"The table has {rows} to learn from. Expected at least two, so that one of them can "
            "be for validation. Add rows, and values of the target."
        )
    keys, labels = row_keys(raw, columns, seed), _labels(raw, target)
    groups = [keys if labels is None else keys[labels == i] for i in range(_num_groups(target))]
    limits = []
    for group in groups:
        count = max(round(share * len(group)), 1 if len(group) >= 4 else 0) if share else 0
        limits.append(_limit(group, max(min(count, len(group) - 1), 0)))
    if share and not any(limits):  # Many classes with a row or two each.
        limits = [_limit(keys, max(1, round(share * len(keys))))] * len(groups)
    return Split(share, seed, tuple(limits))


def validation_rows(
    raw: Raw, columns: Sequence[Column], target: Target, split: Split
) -> np.ndarray:
    """Which rows are for validation: a function of a row's values, and of how many equal it.

    So a row keeps its part when others are added or removed, or come in another order.
    """
    keys, labels = row_keys(raw, columns, split.seed), _labels(raw, target)
    limits = np.array(split.limits, np.uint64)
    return keys < (limits[0] if labels is None else limits[labels])


def _labels(raw: Raw, target: Target) -> np.ndarray | None:
    return raw.target if target.task == "classification" else None


def _num_groups(target: Target) -> int:
    return len(target.classes) if target.task == "classification" else 1


def _limit(keys: np.ndarray, count: int) -> int:
    """The number that `count` keys are below. New rows get validation's share of it."""
    return int(np.partition(keys, count)[count]) if count else 0


def row_keys(raw: Raw, columns: Sequence[Column], seed: int) -> np.ndarray:
    """A number for each row, by its values alone: all are different, also of equal rows.

    Args:
        raw: The rows.
        columns: The columns that count.
        seed: Gives other numbers.
    """
    keys = np.zeros(raw.rows, np.uint64)
    for column in columns:
        if column.name in raw.columns:
            keys = _mixed(keys + _hashes(raw.columns[column.name]))
    if raw.words is not None and len(raw.words.codes):
        lengths = raw.words.lengths
        hashes = _of_strings(raw.words.words)[raw.words.codes]
        places = np.arange(len(hashes)) - np.repeat(raw.words.ends - lengths, lengths)
        hashes = _mixed(hashes + places.astype(np.uint64))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes)])
        keys = _mixed(keys + sums[raw.words.ends] - sums[raw.words.ends - lengths])
    if raw.target is not None:
        keys = _mixed(keys + _hashes(raw.target))
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(raw.rows, bool)
    is_first[1:] = keys[order][1:] != keys[order][:-1]
    places = np.arange(raw.rows)
    among_equals = np.empty(raw.rows, np.uint64)
    among_equals[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    keys = _mixed(_mixed(keys + np.uint64(seed % 2**64)) + among_equals)
    return keys >> np.uint64(11)  # JSON's numbers are exact up to 53 bits.


def _hashes(values: Names | np.ndarray) -> np.ndarray:
    if isinstance(values, Names):
        hashes = np.append(_of_strings(values.names), np.uint64(1))
        return hashes[values.codes]  # NO_CODE is the last one.
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.float32(np.nan), values + np.float32(0))  # No -0.
        short = values.astype(np.float32)
        hashes = short.view(np.uint32).astype(np.uint64)
        if values.dtype == np.float32:
            return hashes
        is_rounded = ~np.isnan(values) & (values != short)
        return np.where(is_rounded, values.astype(np.float64).view(np.uint64), hashes)
    return values.astype(np.uint64)


def _of_strings(texts: Sequence[str]) -> np.ndarray:
    digests = b"".join(
        hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _mixed(keys: np.ndarray) -> np.ndarray:
    keys = keys + _STEP
    keys = (keys ^ (keys >> np.uint64(30))) * _MIX[0]
    keys = (keys ^ (keys >> np.uint64(27))) * _MIX[1]
    return keys ^ (keys >> np.uint64(31))
