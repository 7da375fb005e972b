"""What people should know about their table before they trust a model: leaks and rare classes."""

from __future__ import annotations

import numpy as np

from kerasdist.tables.reading.builders import NO_CODE, Names
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import Schema

# A class with a smaller part of its fair share of the rows is rare enough to say so.
RARE_CLASS = 0.2
# Answers that are rounded to more than this part of the target's deviation are worth a hint.
SMALL_STEP = 0.01
# A number that follows the target this closely hardly is a coincidence.
SAME = 0.9999


def find_leaks(raw: Raw, schema: Schema, rows: np.ndarray) -> list[str]:
    """The columns that tell the target exactly."""
    if raw.target is None:
        return []
    target, found = raw.target[rows], []
    for column in schema.columns:
        values = raw.columns.get(column.name)
        if values is None:
            continue
        codes = values.codes if isinstance(values, Names) else values
        if schema.target.task == "classification":
            is_leak = _is_another_name(codes[rows], target)
        else:
            is_leak = not isinstance(values, Names) and _is_proportional(codes[rows], target)
        if is_leak:
            found.append(column.name)
    return found


def _is_another_name(values: np.ndarray, labels: np.ndarray) -> bool:
    """Whether each value comes with one class and each class with one value."""
    there = ~np.isnan(values) if values.dtype.kind == "f" else values != NO_CODE
    if there.sum() < max(2, 0.9 * len(values)):
        return False
    values, labels = values[there], labels[there]
    pairs = np.unique(np.stack([values.astype(np.float64), labels]), axis=1)
    num_values, num_labels = len(np.unique(values)), len(np.unique(labels))
    return num_labels > 1 and pairs.shape[1] == num_values == num_labels


def _is_proportional(values: np.ndarray, targets: np.ndarray) -> bool:
    there = ~np.isnan(values)
    if there.sum() < max(3, 0.9 * len(values)):
        return False
    x, y = values[there].astype(np.float64), targets[there].astype(np.float64)
    if not x.std() or not y.std():
        return False
    return bool(abs(np.corrcoef(x, y)[0, 1]) > SAME)


def rounding(raw: Raw, schema: Schema) -> str | None:
    """What to say of a target whose large numbers float32 cannot tell apart."""
    target = schema.target
    if target.task != "regression" or raw.target is None:
        return None
    step = float(np.spacing(np.float32(np.abs(raw.target).max(initial=0))))
    if step <= SMALL_STEP * target.scale:
        return None
    return (
        f"the target {target.name} has numbers so large that answers are multiples of {step:,.6g}: "
        "subtract the same number from all of them"
    )


def imbalance(counts: np.ndarray, classes: tuple[str, ...]) -> str | None:
    """What to say if one class is rare."""
    total = int(counts.sum())
    rare = int(counts.argmin())
    if not total or counts[rare] * len(classes) >= RARE_CLASS * total or len(classes) > 20:
        return None
    most = int(counts.argmax())
    return (
        f"{classes[rare]!r} is rare ({counts[rare]:,} of {total:,}); always answering "
        f"{classes[most]!r} would be right in {counts[most] / total:.1%}"
    )
