"""Metrics that `call` or the loss updates, which see a shard of the batch: do they add up?"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np

from kerasdist.errors import InexactStateError
from kerasdist.models import pure
from kerasdist.models.fields import Batch
from kerasdist.models.probing.cases import Case, Mode
from kerasdist.models.probing.probe import Probe
from kerasdist.models.probing.rounding import RELATIVE, as_float64, rounding_of


def touched(model: keras.Model, forward: pure.Forward) -> tuple[keras.metrics.Metric, ...]:
    """The metrics of a model that a forward pass or its loss updated."""
    return tuple(
        metric
        for metric in pure.tracked_metrics(model)
        if {id(v) for v in metric.variables} & forward.updated_metrics
    )


def refuse_uneven(
    model: keras.Model,
    metrics: Sequence[keras.metrics.Metric],
    batch: Batch,
    *,
    training: bool,
    with_loss: bool,
    class_weight: dict[int, float] | None,
) -> bool:
    """Refuses metrics that grow by something else on a batch than on its parts together.

    Returns whether that could be compared.

    A number is taken as a mean over examples. A sum, a largest number or a count of batches is not.
    """
    probe = Probe(model, batch, (), True, with_loss, class_weight=class_weight)
    if probe.count < 2:
        return False
    tolerance = max(RELATIVE, rounding_of(model))
    found = [probe.compare(Mode(training, seed)) for seed in (None, 0)]
    for case in (case for case in found if case is not None):
        for metric in metrics:
            if any(_differs(case, id(v), tolerance) for v in metric.variables):
                raise InexactStateError(
                    f"The metric {metric.name!r} is updated while {type(model).__name__!r} runs, "
                    "with a value that is not a mean over examples: it grows by another number on "
                    "the first batch than on two parts of it. Expected a `keras.metrics.Mean` of a "
                    "mean over examples or of one value per example, or a `keras.metrics.Sum` of a "
                    "sum over examples. Use one of these, or `devices=1, shards=1`."
                )
    return True


def _differs(case: Case, key: int, tolerance: float) -> bool:
    whole, again = (as_float64(seen.metrics[key]) for seen in (case.whole, case.again))
    found = np.sum([as_float64(part.metrics[key]) for part in case.parts], axis=0)
    if not np.allclose(whole, again, rtol=1e-5, equal_nan=True):
        return False  # It depends on chance.
    is_finite = np.isfinite(whole) & np.isfinite(found)
    size = np.abs(whole[is_finite]).max(initial=0.0)
    return bool(np.any(np.abs(found - whole)[is_finite] > tolerance * size + 1e-6))
