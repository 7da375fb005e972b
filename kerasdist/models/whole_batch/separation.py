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
from kerasdist.models.probing.cases import Case, Mode
from kerasdist.models.probing.probe import Probe
from kerasdist.models.probing.rounding import as_float64, of_gradients, of_outputs
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
    rules: list[list[str]] | None = None
    for seed in (None, 0, 1):
        rules = _rules_left(model, probe, Mode(training, seed), rules)
    if rules is None:
        raise _inseparable(model, "number of random draws")
    return Separation(tuple(left[0] for left in rules))


def _rules_left(
    model: keras.Model, probe: Probe, mode: Mode, rules: list[list[str]] | None
) -> list[list[str]] | None:
    """The rules that also hold in this mode, for each added loss. None: nothing was compared yet.

    Outputs may be large, so one mode's are freed before those of the next are computed.
    """
    case = probe.compare(mode)
    if case is None:
        return rules
    tolerance = of_outputs(model)
    _check_outputs(model, case, tolerance)
    rules = rules or [[MEAN, SUM, ROWS] for _ in case.whole.added]
    for i, left in enumerate(rules):
        rules[i] = [
            rule
            for rule in left
            if _holds(rule, case, i, probe.sizes, tolerance)
            and _gap(rule, case, i) <= of_gradients(model)
        ]
        if not rules[i]:
            raise _inseparable(model, f"loss {i} by `add_loss`")
    return rules


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
    if not whole.ndim or sum(map(len, parts)) != len(whole):
        return False
    return not is_close(whole, again, tolerance) or _is_close(whole, parts, tolerance)


def is_close(whole: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    """Whether two outputs are the same, up to a fraction of the largest value."""
    return _is_close(whole, [other], tolerance)


def _is_close(whole: np.ndarray, others: Sequence[np.ndarray], tolerance: float) -> bool:
    """Whether the rows of the others, one after the other, are those of the whole."""
    if not whole.ndim:
        whole, others = whole[np.newaxis], [other[np.newaxis] for other in others]
    rows = [row for other in others for row in other]
    if len(rows) != len(whole):
        return False
    if whole.dtype.kind not in "fiub":
        return all(map(np.array_equal, whole, rows))
    # One row at a time: outputs in float64 may not fit into memory.
    size = max(map(_largest, whole), default=0.0)
    allowed = tolerance * size + 1e-12
    return all(
        a.shape == b.shape
        and np.allclose(as_float64(a), as_float64(b), rtol=0, atol=allowed, equal_nan=True)
        for a, b in zip(whole, rows, strict=True)
    )


def _largest(values: np.ndarray) -> float:
    """The largest finite magnitude; 0 if there is none."""
    wide = as_float64(values)
    return float(np.abs(wide).max(initial=0.0, where=np.isfinite(wide)))


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


def _gap(rule: str, case: Case, number: int) -> float:
    """How far its gradients are from those by the rule. A small term may have large ones."""
    as_mean, as_sum = case.gaps[number] if case.gaps else (0.0, 0.0)
    return as_mean if rule == MEAN else as_sum


def _inseparable(model: keras.Model, what: str) -> InexactLossError:
    return InexactLossError(
        f"The loss of {type(model).__name__!r} ({pure.loss_names(model)}) is not a mean over "
        "examples. kerasdist computes such a loss on the outputs for the whole batch. But the "
        f"{what} of the model cannot be put together from parts of a batch. Expected outputs with "
        "one row per example that does not depend on the other examples. Compare examples in "
        "`compute_loss` instead of `call`, or use `devices=1, shards=1`. See docs/exactness.md."
    )
