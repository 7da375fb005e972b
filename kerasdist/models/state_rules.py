"""Rules of state: how the new values of a variable on each shard make that of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import InexactStateError
from kerasdist.models.fields import Batch
from kerasdist.models.probing.cases import Case, Mode
from kerasdist.models.probing.probe import Probe
from kerasdist.models.probing.rounding import RELATIVE, as_float64, rounding_of

# MEAN: the mean of the shards' values, weighted by their examples. SAME: all shards have the same
# value, so shard 0's is taken. SUM: the old value plus the changes of all shards.
MEAN, SAME, SUM = "mean", "same", "sum"


def find_rules(
    model: keras.Model,
    batch: Batch,
    own_state: Sequence[keras.Variable],
    *,
    training: bool,
    targets: bool,
    with_loss: bool = True,
) -> dict[int, str]:
    """Finds the rule of each variable in `own_state` that can be compared, by variable id.

    Refuses state that follows none of the rules. Without `with_loss`, only what `call` changes.
    """
    probe = Probe(model, batch, own_state, targets, with_loss)
    if not own_state or probe.count < 2:
        return {}
    first = probe.compare(Mode(training))
    largest = 0.0
    if first is not None:
        seen = (first.whole, *first.parts)
        values = [as_float64(part.state[key]) for part in seen for key in first.comparable]
        largest = max((float(np.abs(v).max()) for v in values if v.size), default=0.0)
    far = float(np.ceil(1 + 2 * largest))
    # Other starting values as well: a maximum that no example exceeds looks like a constant.
    begins = (None, None, 0.0, 0.0, -far, far)
    found = [first, *(probe.compare(Mode(training, *pair)) for pair in enumerate(begins))]
    cases = [case for case in found if case is not None]
    # Random values may agree by accident. If they differ once, that variable gets no rule.
    by_chance = {key for case in cases for key in case.by_chance}
    rules: dict[int, list[str]] = {}
    shown: dict[int, tuple[float, ...]] = {}
    possible = {id(v): _possible(v) for v in own_state}
    for case in cases:
        before, rounding = probe.before(case.mode), rounding_of(model)
        for key in case.comparable - by_chance:
            rules.setdefault(key, possible[key])
            _narrow(rules, shown, key, case, before.get(key), probe.sizes, rounding)
    for variable in own_state:
        if not rules.get(id(variable), True):
            raise _uncuttable(model, variable, shown[id(variable)])
    return {key: left[0] for key, left in rules.items()}


def _possible(variable: keras.Variable) -> list[str]:
    dtype = tf.as_dtype(variable.dtype)
    if dtype == tf.bool:
        return [SAME]
    return [SAME, MEAN, SUM] if dtype.is_floating else [SAME, SUM]


def _narrow(
    rules: dict[int, list[str]],
    shown: dict[int, tuple[float, ...]],
    key: int,
    case: Case,
    before: np.ndarray | None,
    sizes: tuple[int, int],
    rounding_of_one: float,
) -> None:
    """Removes the rules that do not hold for one variable in this case."""
    value = case.whole.state[key]
    share = sizes[0] / sum(sizes)
    a, b = (as_float64(part.state[key]) for part in case.parts)
    w, s = as_float64(value), as_float64(value if before is None else before)
    wide = value.dtype.kind != "f" or value.dtype.itemsize > 4
    own = rounding_of_one if wide else max(rounding_of_one, 1e-5)
    rounding = own * np.max(np.abs([a, b, w, s]), axis=0)
    # Cancellation can lose as much as the values vary.
    part = min(RELATIVE, 1e3 * own)
    by_mean = part * np.abs(a - b) + rounding
    by_sum = part * (np.abs(a - s) + np.abs(b - s)) + rounding
    holds = {
        SAME: np.all(np.abs(a - w) <= rounding) and np.all(np.abs(b - w) <= rounding),
        MEAN: np.all(np.abs(share * a + (1 - share) * b - w) <= by_mean),
        SUM: np.all(np.abs(a + b - s - w) <= by_sum),
    }
    rules[key] = [rule for rule in rules[key] if holds[rule]]
    if not rules[key]:
        worst = np.unravel_index(np.argmax(np.abs(a - b)), w.shape)
        shown.setdefault(key, tuple(float(v[worst]) for v in (w, a, b)))


def _uncuttable(
    model: keras.Model, variable: keras.Variable, shown: tuple[float, ...]
) -> InexactStateError:
    whole, first, second = shown
    return InexactStateError(
        f"The model {type(model).__name__!r} changes the state {variable.path!r} in a way that "
        f"cannot be computed on parts of a batch: it becomes {whole:.6g} on some examples of the "
        f"first batch, but {first:.6g} and {second:.6g} on two parts of them. Expected a mean over "
        "examples, a sum over examples, or a value that does not depend on the examples. Use "
        "`devices=1, shards=1`, or compute it from a mean or a sum."
    )
