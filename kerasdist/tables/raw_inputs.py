"""Turns raw strings and numbers into a model's arrays in TensorFlow, for exported files.

It computes what `learning.encode` does with NumPy, so that a server needs no Python.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kerasdist.tables import values
from kerasdist.tables.learning import BEND, WEEK, YEAR
from kerasdist.tables.reading.builders import MOST_WORDS
from kerasdist.tables.schema import (
    FIRST_VALUE,
    FIRST_WORD,
    NO_VALUE,
    OTHER,
    OTHER_WORD,
    PADDING,
    Column,
    Schema,
)
from kerasdist.tables.words import APOSTROPHES, SINGLE

_EPOCH = 719_468  # The days from 0000-03-01 to 1970-01-01.


class RawInputs(tf.Module):
    """The way from the columns of a table to the arrays that a model reads.

    Attributes:
        inputs: A `tf.TensorSpec` per column: float32 for numbers (NaN where one is missing), or
            float64 if their median is above 16,777,216; strings for others. Its name is the
            column's, with `_` for what no name may have.
        columns: The column of each input.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__(name="raw_inputs")
        self._schema = schema
        self.columns = dict(zip(_input_names(schema.columns), schema.columns, strict=True))
        self.inputs = {
            name: tf.TensorSpec([None], _type(column), name)
            for name, column in self.columns.items()
        }
        self._tables = {
            column.name: _table(column.values, FIRST_VALUE, OTHER)
            for column in schema.columns
            if column.has_category and column.values
        }
        self._words = _table(schema.vocabulary, FIRST_WORD, OTHER_WORD)

    def __call__(self, **raw: tf.Tensor) -> dict[str, tf.Tensor]:
        """The arrays for the values of each input, by its name."""
        by_column = {column.name: raw[name] for name, column in self.columns.items()}
        numbers, ids, texts = [], [], []
        for column in self._schema.columns:
            given = by_column[column.name]
            if column.kind == "text":
                texts.append(given)
            if column.has_numbers:
                found = _days(given) if column.kind == "date" else tf.cast(given, _type(column))
                numbers += _scaled(column, found)
            if column.has_category:
                ids.append(self._ids(column, given))
        arrays = {}
        if numbers:
            arrays["numbers"] = tf.stack(numbers, axis=1)
        if ids:
            arrays["categories"] = tf.stack(ids, axis=1)
        if texts and self._schema.num_words:
            arrays["words"] = self._padded(tf.strings.join(texts, " "))
        return arrays

    def _ids(self, column: Column, given: tf.Tensor) -> tf.Tensor:
        table = self._tables.get(column.name)
        if column.is_read_as_number:
            missing = ~tf.math.is_finite(given)
            whole = tf.cast(tf.where(missing, 0.0, given), tf.int64)
            found = OTHER if table is None else table.lookup(whole)
            found = tf.where(tf.cast(whole, tf.float32) == given, found, OTHER)
        else:
            text = tf.strings.strip(given)
            missing = _is_missing(text)
            if column.kind == "boolean":
                text = tf.strings.lower(text, encoding="utf-8")
            else:
                text = tf.strings.regex_replace(text, values.WHOLE, r"\1")
            found = OTHER if table is None else table.lookup(text)
        return tf.where(missing, NO_VALUE, found)

    def _padded(self, texts: tf.Tensor) -> tf.Tensor:
        words = words_of(texts)[:, : min(MOST_WORDS, self._schema.num_words)]
        ids = OTHER_WORD + tf.zeros_like(words.values, tf.int32)
        if self._words is not None:
            ids = self._words.lookup(words.values)
        shape = (None, self._schema.num_words)
        return words.with_values(ids).to_tensor(PADDING, shape=shape)


def _type(column: Column) -> tf.DType:
    if not column.is_read_as_number:
        return tf.string
    return tf.float64 if column.is_large else tf.float32


def _input_names(columns: Sequence[Column]) -> list[str]:
    """A name for each column, as signatures allow them: different ones for different columns.

    TensorFlow takes them for Python's arguments, and compares them in lower case.
    """
    names: list[str] = []
    for column in columns:
        plain = re.sub(r"\W", "_", column.name, flags=re.ASCII)
        plain = plain if re.match(r"[A-Za-z]", plain) else f"column_{plain.lstrip('_')}"
        plain += "_" if keyword.iskeyword(plain) or plain.lower() == "self" else ""
        name, number = plain, 2
        while name.lower() in map(str.lower, names):
            name, number = f"{plain}_{number}", number + 1
        names.append(name)
    return names


def _table(known: Sequence[str | int], first: int, other: int) -> Any:
    """A lookup table from values to ids; None without values."""
    if not known:
        return None
    ids = tf.range(first, first + len(known), dtype=tf.int32)
    kind = tf.string if isinstance(known[0], str) else tf.int64
    keys = tf.constant(list(known), kind)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, ids), other)


def _is_missing(text: tf.Tensor) -> tf.Tensor:
    lower = tf.strings.lower(text)
    return tf.reduce_any(lower[:, None] == tf.constant(values.MISSING)[None], axis=1)


def _scaled(column: Column, found: tf.Tensor) -> list[tf.Tensor]:
    missing = ~tf.math.is_finite(found)
    features = [tf.where(missing, tf.zeros_like(found), found)]
    if column.kind == "date":
        for length in (YEAR, WEEK):
            turn = tf.math.floormod(features[0], length) / length * tf.constant(2 * math.pi)
            features += [tf.sin(turn), tf.cos(turn)]
    results = []
    for feature, center, scale in zip(features, column.centers, column.scales, strict=True):
        scaled = (feature - center) / scale
        bent = scaled / tf.sqrt(1 + tf.square(scaled / BEND))
        results.append(tf.where(missing, 0.0, tf.cast(bent, tf.float32)))
    if column.has_missing:
        results.append(tf.cast(missing, tf.float32))
    return results


def _days(text: tf.Tensor) -> tf.Tensor:
    """ISO dates as days since 1970, with the time; NaN for everything else."""
    text = tf.strings.strip(text)
    is_date = tf.strings.regex_full_match(text, values.DATE)
    full = tf.where(is_date, text, "1970-01-01")
    full = tf.strings.regex_replace(full, r"^(.{10})$", r"\1 00:00:00")
    full = tf.strings.regex_replace(full, r"^(.{16})([^:].*)?$", r"\1:00")
    year, month, day, hour, minute, second = (
        tf.strings.to_number(tf.strings.substr(full, start, length), tf.int32)
        for start, length in ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))
    )
    is_date &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= _days_in(month, year))
    # Years that begin in March have their leap day at the end.
    shifted = tf.where(month > 2, year, year - 1)
    since_march = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    whole = 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + since_march - _EPOCH
    part = tf.cast(hour * 3600 + minute * 60 + second, tf.float64) / 86400
    days = tf.cast(tf.cast(whole, tf.float64) + part, tf.float32)
    return tf.where(is_date & (year >= 1), days, tf.constant(math.nan))


def _days_in(month: tf.Tensor, year: tf.Tensor) -> tf.Tensor:
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    lengths = tf.constant([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    days = tf.gather(lengths, tf.clip_by_value(month - 1, 0, 11))
    return days + tf.cast(is_leap & (month == 2), tf.int32)


_SINGLE = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in SINGLE)


def words_of(texts: tf.Tensor) -> tf.RaggedTensor:
    """The words of each text, as `words.words_of` finds them."""
    text = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
    text = tf.strings.lower(text, encoding="utf-8")
    text = tf.strings.regex_replace(text, f"[{APOSTROPHES}]", "")
    text = tf.strings.regex_replace(text, rf"([{_SINGLE}])", r" \1 ")
    text = tf.strings.regex_replace(text, r"[^\p{L}\p{M}\p{N}]+", " ")
    return tf.strings.split(text)
