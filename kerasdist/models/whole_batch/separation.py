"""Separates a loss over the whole batch from the layers, which run on one shard at a time.

That works if every output of the model has one row per example, whatever the other examples are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np

from kerasdist.errors import InexactLossError
from kerasdist.models import pure
from kerasdist.models.fields import Batch
from kerasdist.models.probe import RELATIVE, Case, Mode, Probe, as_float64, rounding_of
from kerasdist.models.state_rules import MEAN, SUM

# A loss by `add_loss` that has one row per example.
ROWS = "rows"


@dataclass(frozen=True)
class Separation:
    """How a loss over the whole batch is computed from shards.

    `added` has a rule for each loss by `add_loss`: the loss of the whole batch is the MEAN of the
    losses of the shards, weighted by their examples, their SUM, or all their ROWS.
    """

    added: tuple[str, ...] = ()


def separate(model: keras.Model, batch: Batch, *, training: bool) -> Separation:
    """Compares the outputs and added losses of some examples with those of two parts of them.

    Refuses a model with outputs or added losses that cannot be computed from the parts.
    """
    probe = Probe(model, batch, (), targets=True, with_loss=False)
    if probe.count < 2:
        raise InexactLossError(
            f"The first batch has {probe.count} example, which does not show whether the loss of "
            f"{type(model).__name__!r} can be computed on several shards. Expected two examples "
            "at least. Use a larger batch, or `devices=1, shards=1`."
        )
    found = [probe.compare(Mode(training, seed)) for seed in (None, 0, 1)]
    cases = [case for case in found if case is not None]
    tolerance = max(RELATIVE, rounding_of(model))
    rules: list[list[str]] | None = None
    for case in cases:
        _check_outputs(model, case, tolerance)
        rules = rules or [[MEAN, SUM, ROWS] for _ in case.whole.added]
        for i, left in enumerate(rules):
            rules[i] = [rule for rule in left if _holds(rule, case, i, probe.sizes, tolerance)]
            if not rules[i]:
                raise _inseparable(model, f"loss {i} by `add_loss`")
    if rules is None:
        raise _inseparable(model, "number of random draws")
    return Separation(tuple(left[0] for left in rules))


def _check_outputs(model: keras.Model, case: Case, tolerance: float) -> None:
    for i, whole in enumerate(case.whole.outputs):
        again = case.again.outputs[i]
        parts = [t for t in (part.outputs[i] for part in case.parts) if t is not None]
        if whole is None or again is None:
            continue
        if not _is_joined(whole, again, parts, tolerance):
            raise _inseparable(model, f"output {i}")


def _is_joined(
    whole: np.ndarray, again: np.ndarray, parts: Sequence[np.ndarray], tolerance: float
) -> bool:
    """Whether the rows of the parts make up the whole. Random values cannot be compared."""
    if any(part.shape[1:] != whole.shape[1:] or not part.ndim for part in parts):
        return False
    joined = np.concatenate(parts)
    if joined.shape != whole.shape:
        return False
    return not is_close(whole, again, tolerance) or is_close(whole, joined, tolerance)


def is_close(whole: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    if whole.dtype.kind not in "fiub":
        return bool(np.array_equal(whole, other))
    a, b = as_float64(whole), as_float64(other)
    size = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return bool(np.allclose(a, b, rtol=0, atol=tolerance * size + 1e-12, equal_nan=True))


def _holds(rule: str, case: Case, number: int, sizes: tuple[int, int], tolerance: float) -> bool:
    whole, again = case.whole.added[number], case.again.added[number]
    parts = [part.added[number] for part in case.parts]
    if rule == ROWS:
        return _is_joined(whole, again, parts, tolerance)
    if any(part.shape != whole.shape for part in parts):
        return False
    shares = [size / sum(sizes) if rule == MEAN else 1.0 for size in sizes]
    made = sum(share * as_float64(part) for share, part in zip(shares, parts, strict=True))
    return not is_close(whole, again, tolerance) or is_close(whole, np.asarray(made), tolerance)


def _inseparable(model: keras.Model, what: str) -> InexactLossError:
    return InexactLossError(
        f"The loss of {type(model).__name__!r} ({pure.loss_names(model)}) is not a mean over "
        "examples. kerasdist computes such a loss on the outputs for the whole batch. But the "
        f"{what} of the model cannot be put together from parts of a batch. Expected outputs with "
        "one row per example that does not depend on the other examples. Compare examples in "
        "`compute_loss` instead of `call`, or use `devices=1, shards=1`. See docs/exactness.md."
    )
