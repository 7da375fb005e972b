"""What traces of a model on its data show, remembered while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import keras

from kerasdist.models import inspection
from kerasdist.models.fields import Batch
from kerasdist.models.inspection import Findings
from kerasdist.models.memory.kept import remembered


def inspected(
    model: keras.Model,
    spec: Batch,
    *,
    to_train: bool = True,
    class_weight: dict[int, float] | None = None,
) -> Findings:
    """`inspection.inspect`, remembered."""
    return remembered(
        model,
        f"findings to {'train' if to_train else 'test'}",
        (repr(spec), str(class_weight)),
        lambda: inspection.inspect(model, spec, to_train=to_train, class_weight=class_weight),
    )


def inspected_own(
    model: keras.Model, method: str, spec: Batch, first_batch: Callable[[], Batch], shards: int
) -> Findings:
    """`inspection.inspect_own`, remembered. Nothing can be compared on one row: another batch may
    show more."""
    findings = remembered(
        model, f"trace of {method}", repr(spec), lambda: inspection.trace_own(model, method, spec)
    )
    return remembered(
        model,
        f"findings of {method}",
        (repr(spec), shards),
        lambda: inspection.compared_own(findings, model, first_batch, shards),
        is_final=lambda found: found.own_step is not None and found.own_step.is_compared,
    )


def built_for_prediction(model: keras.Model, spec: Batch | None) -> Findings:
    """`inspection.build_for_prediction`, remembered."""
    return remembered(
        model,
        "findings to predict",
        repr(spec),
        lambda: inspection.build_for_prediction(model, spec),
    )
