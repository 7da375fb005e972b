"""The finite check: a step is written only if all of its numbers are finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.state import Start, State, Values
from kerasdist.engine.sums import SMALL, Sums, Totals
from kerasdist.engine.terms import Terms


@dataclass(frozen=True)
class Check:
    """Whether a step is finite.

    `flags` computes `[replicas, tensors]`: which tensors are finite in each replica's own sums.
    That tells where a number that is not finite comes from.
    """

    finite: tf.Tensor
    flags: Callable[[], tf.Tensor]


def check(
    totals: Totals,
    sums: Sums,
    terms: Terms,
    start: Start,
    own_flags: tf.Tensor | None = None,
    decide: Callable[[tf.Tensor], tf.Tensor] = lambda flag: flag,
) -> Check:
    """Checks everything that the update uses: packed sums as vectors, if they are at hand.

    `decide` takes the result to where it is decided what to write. With `own_flags`, the check does
    not hold on to the sums of the replica.
    """
    tensors, vectors, groups = totals.checked, totals.packed, None
    if vectors is None:
        groups = _groups(tensors)
        vectors = [vector for _, _, vector in groups]
    all_of = [_is_finite(vector) for vector in vectors]
    finite = all_of[0] if len(all_of) == 1 else tf.reduce_all(tf.stack(all_of))

    def flags() -> tf.Tensor:
        if own_flags is not None:
            return own_flags[tf.newaxis]
        if totals.packed is not None:
            return terms.flags(sums.of_replicas, len(tensors))
        if sums.is_of_one_replica:
            return _flags(tensors, groups)[tf.newaxis]
        parts = [terms.split(own, start.inputs.variables) for own in sums.of_replicas]
        return tf.stack([_flags(part.checked) for part in parts])

    return Check(decide(finite), flags)


def not_finite(
    flags: np.ndarray, names: Sequence[str], placement: Placement
) -> tuple[tuple[str, ...], int | None]:
    """What was not finite in a step, and the first replica where that happened.

    `flags` are those of `Check`, of the replicas of this process. `names` are those of its tensors.
    """
    bad = ~flags
    if placement.workers is not None:
        bad = placement.workers.join_rows(bad)
    replica = int(np.argmax(bad.any(axis=1))) if bad.any() else None
    found = tuple(n for n, is_bad in zip(names, bad[replica or 0], strict=True) if is_bad)
    return found or ("sum over the replicas",), replica


def own_flags(own: Sequence[tf.Tensor], terms: Terms, start: Start) -> tf.Tensor | None:
    """Which tensors are finite in the sums of this replica; None if `check` finds that quicker."""
    if terms.is_small:
        return None
    return _flags(terms.split(own, start.inputs.variables).checked)


# Numbers and sizes of some tensors, and a vector that holds them.
Group = tuple[list[int], list[int], tf.Tensor]


def _groups(tensors: Sequence[tf.Tensor]) -> list[Group]:
    """The tensors of floats: large ones alone, small ones of a dtype in one vector."""
    groups: list[Group] = []
    small: dict[str, list[int]] = {}
    for i, tensor in enumerate(tensors):
        size = tensor.shape.num_elements()
        if not tensor.dtype.is_floating:
            continue
        if size is None or size > SMALL:
            groups.append(([i], [-1], tensor))
        else:
            small.setdefault(tensor.dtype.name, []).append(i)
    for indices in small.values():
        flat = [tf.reshape(tensors[i], [-1]) for i in indices]
        sizes = [tensors[i].shape.num_elements() for i in indices]
        groups.append((indices, sizes, flat[0] if len(flat) == 1 else tf.concat(flat, 0)))
    return groups


def _flags(tensors: Sequence[tf.Tensor], groups: list[Group] | None = None) -> tf.Tensor:
    """Whether each of the tensors is finite."""
    flags = [tf.constant(True)] * len(tensors)
    for indices, sizes, vector in groups or _groups(tensors):
        parts = [vector] if len(indices) == 1 else tf.split(vector, sizes)
        for i, part in zip(indices, parts, strict=True):
            flags[i] = _is_finite(part)
    return tf.stack(flags)


def _is_finite(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(tensor))


# Two ways to write a step: the new values if it is finite, else the `kept` ones. They return the
# check's flags, which are empty if the step is finite, and what to wait for.
Assign = Callable[[Values], list[tf.Operation]]
Written = tuple[tf.Tensor, list[Any]]
Write = Callable[[Check, Callable[[], Values], Values, Assign], Written]


def writer(state: State) -> Write:
    """The quicker way to write: a choice copies the state, a branch costs operations."""
    return write_by_choice if state.is_small else write_in_branch


def write_by_choice(
    check: Check, new_values: Callable[[], Values], kept: Values, assign: Assign
) -> Written:
    """Always writes: for each value, the new one or the one to keep."""
    new = new_values()
    chosen = {
        role: [
            value if value is None or value is old else tf.where(check.finite, value, old)
            for value, old in zip(new[role], values, strict=True)
        ]
        for role, values in kept.items()
    }
    written = assign(chosen)
    flags = tf.cond(check.finite, _no_flags, check.flags)
    return flags, [flags, *written]


def write_in_branch(
    check: Check, new_values: Callable[[], Values], kept: Values, assign: Assign
) -> Written:
    """Computes and writes the new values in a branch of `tf.cond`. Its inputs cost operations."""

    def write() -> tf.Tensor:
        assign(new_values())
        return _no_flags()

    def keep() -> tf.Tensor:
        assign(kept)
        return check.flags()

    flags = tf.cond(check.finite, write, keep)
    return flags, [flags]


def _no_flags() -> tf.Tensor:
    return tf.ones((0, 0), tf.bool)
