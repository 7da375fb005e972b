"""Finds a loss that does not add up over the shards of a batch, before training starts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import keras

from kerasdist.errors import InexactLossError
from kerasdist.models import pure
from kerasdist.models.fields import Batch
from kerasdist.models.probing.cases import Mode
from kerasdist.models.probing.probe import Probe
from kerasdist.models.probing.rounding import RELATIVE, of_gradients, rounding_of

# Smaller differences of losses count as rounding.
_SMALLEST = 1e-6


@dataclass(frozen=True)
class Finding:
    """Why the loss does not add up, if that was found, and whether losses could be compared."""

    error: InexactLossError | None
    is_compared: bool


def find_inexact(
    model: keras.Model,
    batch: Batch,
    shards: int,
    *,
    training: bool,
    class_weight: dict[int, float] | None = None,
) -> Finding:
    """Compares the loss of some examples with the weighted losses of two parts of them; to train,
    also its gradients for the weights.

    They differ for a loss that is summed by hand, that divides by something Keras does not see, or
    that compares the examples of a batch with one another. The comparison is made three times: with
    the rows as they are, and twice with rows that are changed so that they differ. If there are
    sample weights, it is made once more with changed weights: those of the first batch may all be
    1. A loss that cannot be computed on a part of a batch does not add up, either.
    """
    probe = Probe(model, batch, (), targets=True, class_weight=class_weight)
    if probe.count < 2:
        return Finding(None, is_compared=False)
    tolerance = _tolerance(model, has_own_terms=pure.overrides(model, "compute_loss"))
    try:
        modes = [Mode(training, seed) for seed in (None, 0, 1)]
        modes += [Mode(training, seed=2, weighs=True)] if probe.is_weighted else []
        found = [probe.compare(mode) for mode in modes]
    except InexactLossError as error:
        # A loss for batches of one size can still be computed on the whole batch.
        most = sys.maxsize
        every = Probe(model, batch, (), targets=True, most=most, class_weight=class_weight)
        every.check_whole(Mode(training))
        return Finding(error, is_compared=True)
    cases = [case for case in found if case is not None and case.has_loss]
    for case in cases:
        whole, seen = case.whole, case.parts
        shares = [size / probe.count for size in probe.sizes]
        parts = [share * part.loss for share, part in zip(shares, seen, strict=True)]
        size = max(abs(whole.loss), *(abs(part) for part in parts))
        if abs(sum(parts) - whole.loss) > tolerance * size + _SMALLEST:
            told = f"it is {whole.loss:.6g} for {probe.count} examples of the first batch, and "
            told += f"{sum(parts):.6g} when they are cut in two"
            return Finding(_inexact(model, shards, told), is_compared=True)
        # A small term of a large loss may have a gradient that is not small.
        (gap, _), *_ = case.gaps or [(0.0, 0.0)]
        if gap > of_gradients(model):
            told = f"its gradients for {probe.count} examples of the first batch differ by "
            told += f"{gap:.2g} of the largest when they are cut in two"
            return Finding(_inexact(model, shards, told), is_compared=True)
    return Finding(None, is_compared=bool(cases))


def _tolerance(model: keras.Model, *, has_own_terms: bool) -> float:
    """Keras computes its losses in `floatx`. A custom loss may be computed in half precision."""
    rounding = rounding_of(model)
    return max(RELATIVE, rounding if has_own_terms else rounding / 10)


def _inexact(model: keras.Model, shards: int, told: str) -> InexactLossError:
    return InexactLossError(
        f"The loss of {type(model).__name__!r} ({pure.loss_names(model)}) is not a mean over "
        f"examples: {told}. With {shards} shards it would be computed on each shard, and the "
        "result would depend on the number of shards. Leave out `whole_batch_loss=False`: then it "
        "is computed on the outputs for the whole batch. Or use a mean over examples, or "
        "`devices=1, shards=1`. See docs/exactness.md."
    )


def weighed_scalar(model: keras.Model) -> InexactLossError:
    """What is said of a loss that Keras weighs after it is a single number."""
    return InexactLossError(
        f"The loss of {type(model).__name__!r} ({pure.loss_names(model)}) is not a mean over "
        "examples: it returns one number for its batch, and Keras multiplies that by the mean of "
        "the sample weights. Leave out `whole_batch_loss=False`: then it is computed on the "
        "outputs for the whole batch. Or return one number per example, or use `devices=1, "
        "shards=1`. See docs/exactness.md."
    )
