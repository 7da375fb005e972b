"""Data that was checked with its model: what `fit` and `evaluate` look at before they compile."""

from __future__ import annotations

from collections.abc import Callable

import keras

from kerasdist.data.feed import Feed, element_spec, preparation
from kerasdist.data.streams import Stream, open_stream
from kerasdist.devices.placement import Placement
from kerasdist.errors import KerasdistError
from kerasdist.models import inspection, refusals
from kerasdist.models.value_checks import check_arrays
from kerasdist.models.verdicts import state_rules

DEFAULT_TEST_BATCH_SIZE = 128


def inspect(
    model: keras.Model,
    stream: Stream,
    name: str,
    augment: Callable | None = None,
    *,
    to_train: bool = True,
    allow_nan: bool = False,
    class_weight: dict[int, float] | None = None,
) -> inspection.Findings:
    spec = element_spec(stream, augment)
    if spec is None:
        raise KerasdistError(
            f"Received `{name}` without a single batch. Expected at least one. Check how it is "
            "read."
        )
    findings = inspection.inspect(model, spec, to_train=to_train, class_weight=class_weight)
    if stream.arrays is not None:
        check_arrays(model, stream.arrays, findings.labels, name, allow_nan=allow_nan)
    return findings


def feed_to_test(
    stack,
    model,
    data,
    name: str,
    placement: Placement,
    shards: int,
    *,
    batch_size: int | None = None,
    default_batch_size: int | None = None,
    allow_nan: bool = False,
):
    stream = open_stream(
        data,
        batch_size=batch_size,
        name=name,
        default_batch_size=default_batch_size or DEFAULT_TEST_BATCH_SIZE,
    )
    stack.callback(stream.close)
    refusals.refuse_stateful(model, shards)
    findings = inspect(model, stream, name, to_train=False, allow_nan=allow_nan)
    rules = state_rules(model, stream.first_batch, findings, shards, training=False)
    prepare = preparation(
        model,
        stream,
        labels=findings.labels,
        name=name,
        share=placement.share(shards),
        needs_whole=findings.gather_metrics,
        allow_nan=allow_nan,
    )
    feed = Feed(stream, prepare=prepare, name=name, takes_rows=not placement.is_gpu)
    stack.callback(feed.close)
    return feed, findings, rules
