"""Checks once per model that its loss and state can be computed on shards; remembers the result."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from kerasdist.models.additive_loss import find_inexact, weighed_scalar
from kerasdist.models.fields import Batch
from kerasdist.models.inspection import Findings
from kerasdist.models.memory.fingerprint import Same
from kerasdist.models.memory.kept import remembered
from kerasdist.models.state_rules import find_rules
from kerasdist.models.whole_batch.mixed_rows import refuse_mixed_rows
from kerasdist.models.whole_batch.separation import Separation, separate
from kerasdist.models.whole_batch.tracked_metrics import refuse_uneven


@dataclass(frozen=True)
class Verdict:
    """How a model is computed on shards.

    `rules` has the rule of each state variable by its id, where the first batch shows one. `whole`
    says how to compute the loss if it needs the whole batch; None if it adds up over shards.
    `is_final` is False if something could not be compared: another batch may show it.
    """

    rules: Mapping[int, str]
    whole: Separation | None = None
    is_final: bool = True


def verdict(
    model: keras.Model,
    first_batch: Callable[[], Batch],
    findings: Findings,
    shards: int,
    *,
    training: bool,
    whole: bool | None = None,
    class_weight: dict[int, float] | None = None,
) -> Verdict:
    """Decides how the loss and the state of a model are computed on shards.

    `whole` says whether to compute the loss on the outputs for the whole batch. None does so if
    the first batch shows that the loss does not add up over shards. Refuses a loss or state that
    cannot be computed. The verdict about a model is remembered until the model is compiled again
    or changed.
    """
    has_own_loss = findings.has_own_loss_terms or findings.weighs_scalars
    own_code = findings.own_state or findings.has_own_calls or findings.tracked
    needs_check = has_own_loss or own_code
    if shards == 1 or not (needs_check or whole):
        return Verdict({})
    batch = first_batch()
    return remembered(
        model,
        "verdicts",
        (training, whole, str(class_weight), *_kind(findings, batch)),
        lambda: _find(
            model,
            batch,
            findings,
            shards,
            training=training,
            whole=whole,
            class_weight=class_weight,
        ),
        is_final=lambda found: found.is_final,
    )


def _find(
    model: keras.Model,
    batch: Batch,
    findings: Findings,
    shards: int,
    *,
    training: bool,
    whole: bool | None,
    class_weight: dict[int, float] | None,
) -> Verdict:
    own = findings.own_state
    has_loss, separation = True, None
    if whole or (findings.weighs_scalars and whole is None):
        separation = separate(model, batch, training=training)
    elif findings.weighs_scalars:
        raise weighed_scalar(model)
    elif findings.has_own_loss_terms:
        found = find_inexact(model, batch, shards, training=training, class_weight=class_weight)
        has_loss = found.is_compared
        if found.error is not None and whole is False:
            raise found.error
        if found.error is not None:
            separation = separate(model, batch, training=training)
    targets, with_loss = findings.has_targets, separation is None
    if findings.has_own_calls and separation is None:
        refuse_mixed_rows(model, batch, training=training, targets=targets)
    if findings.tracked:
        has_loss &= refuse_uneven(
            model,
            findings.tracked,
            batch,
            training=training,
            with_loss=with_loss,
            class_weight=class_weight,
        )
    rules = find_rules(model, batch, own, training=training, targets=targets, with_loss=with_loss)
    return Verdict(rules, separation, is_final=has_loss and len(rules) == len(own))


def _kind(findings: Findings, batch: Batch) -> tuple[Hashable, ...]:
    """What the verdict depends on besides the model: findings, and the shapes of the batch."""

    def spec(leaf: object) -> tuple[object, str]:
        return tuple(getattr(leaf, "shape", ())), str(getattr(leaf, "dtype", type(leaf)))

    loss = (findings.has_own_loss_terms, findings.weighs_scalars)
    kinds = (*loss, findings.has_own_calls, findings.has_targets)
    own = tuple(Same(thing) for thing in (*findings.own_state, *findings.tracked))
    return *kinds, own, repr(tf.nest.map_structure(spec, batch))
