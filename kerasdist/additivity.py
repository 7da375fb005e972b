"""Finds what does not add up over the shards of a batch, before training: losses, and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import pure
from kerasdist.errors import InexactLossError, KerasdistError
from kerasdist.models import Example, read
from kerasdist.shards import MEAN, SAME, SUM

# As many examples as this of the first batch, in two parts of different sizes. Primes: a draw of
# random numbers of that many rows is one for each example, and not a layer's width.
_ROWS = 61
_FIRST_PART = 38 / 61
# Sums and means of many numbers may differ by this part, by rounding.
_RELATIVE = 1e-4
# Losses below are taken as rounding.
_SMALLEST = 1e-6


@dataclass(frozen=True)
class _Mode:
    """One way to evaluate the rows.

    With a `seed` they come in another order, and each row of floats, of inputs and of outputs, is
    multiplied by its own factor. The state is `begin` at first, if that is not None.
    """

    training: bool
    seed: int | None = None
    begin: float | None = None


@dataclass(frozen=True)
class _Seen:
    loss: float
    state: dict[int, np.ndarray]
    denominators: Sequence[tf.Tensor]
    is_alike: bool


class _Probe:
    """Evaluates rows of a batch, whole and in two parts."""

    def __init__(self, model: keras.Model, batch: Any, own_state: Sequence[Any], targets: bool):
        self._model = model
        example = read(model, batch, need_targets=targets)
        size = int(tf.shape(tf.nest.flatten(example.args)[0])[0])
        self.count = min(size, _ROWS)
        rows = np.linspace(0, size - 1, self.count).astype("int64")
        self._example = _map(lambda t: tf.gather(tf.convert_to_tensor(t), rows), example)
        first = min(max(1, round(self.count * _FIRST_PART)), self.count - 1)
        self.sizes = (first, self.count - first)
        self._own = {id(v) for v in own_state}
        self._with_loss = targets
        self._roles = pure.parts(model)

    def before(self, mode: _Mode) -> dict[int, np.ndarray]:
        variables = [v for role in ("trainable", "other") for v in getattr(self._roles, role)]
        values = [v for role in ("trainable", "other") for v in self._roles.natives(role)]
        return {
            id(variable): value.numpy()
            if mode.begin is None
            else np.full(value.shape, np.clip(mode.begin, value.dtype.min, value.dtype.max)).astype(
                value.dtype.as_numpy_dtype
            )
            for variable, value in zip(variables, values, strict=True)
            if id(variable) in self._own and value.dtype != tf.bool
        }

    def compare(self, mode: _Mode) -> tuple[_Seen, list[_Seen]] | None:
        """The whole and its parts; None if chance decides, or nothing finite comes out."""
        whole = self._evaluate(mode, 0, self.count, None)
        again = self._evaluate(mode, 0, self.count, None)
        middle, end = self.sizes[0], self.count
        parts = [
            self._evaluate(mode, 0, middle, whole.denominators),
            self._evaluate(mode, middle, end, whole.denominators),
        ]
        is_alike = all(seen.is_alike for seen in (whole, *parts))
        is_finite = all(
            np.isfinite(seen.loss) and all(np.isfinite(v).all() for v in seen.state.values())
            for seen in (whole, *parts)
        )
        if not is_alike or not is_finite or not np.isclose(again.loss, whole.loss, rtol=1e-5):
            return None
        if any(not np.allclose(whole.state[k], again.state[k], rtol=1e-5) for k in whole.state):
            return None
        return whole, parts

    def _evaluate(self, mode: _Mode, start: int, end: int, denominators: Any) -> _Seen:
        factors, example = None, _map(lambda t: t[start:end], self._example)
        if mode.seed is not None:
            random = np.random.default_rng(mode.seed)
            factors = random.uniform(0.5, 1.0, size=self.count)[start:end]
            rows = random.permutation(self.count)[start:end]
            example = _map(lambda t: tf.gather(t, rows), self._example)
            weight = example.sample_weight
            example = _map(lambda t: _times(t, factors), example)
            example = Example(example.args, example.x, example.y, weight)
        shard = pure.Shard(tf.constant(end - start), tf.constant(self.count), denominators)
        with pure.patched(), pure.rows_alike(end - start) as draws:
            forward = self._forward(mode, example, shard, factors)
        loss = 0.0 if forward.loss is None else float(forward.loss)
        state = {key: np.array(v) for key, v in forward.changed.items() if key in self._own}
        return _Seen(loss, state, shard.local_denominators, draws.are_alike)

    def _forward(self, mode: _Mode, example: Example, shard: pure.Shard, factors: Any):
        before = {} if mode.begin is None else self.before(mode)

        def of(role: str) -> list[tf.Tensor]:
            pairs = zip(getattr(self._roles, role), self._roles.natives(role), strict=True)
            return [tf.convert_to_tensor(before.get(id(v), native)) for v, native in pairs]

        state = of("trainable"), of("other"), of("seeds")
        if not self._with_loss:
            return pure.predict(self._model, self._roles, state, example)
        return pure.forward(
            self._model,
            self._roles,
            state,
            example,
            shard=shard,
            training=mode.training,
            with_metrics=False,
            change_outputs=None
            if factors is None
            else lambda outputs: tf.nest.map_structure(lambda t: _times(t, factors), outputs),
        )


def _refuse_inexact(model: keras.Model, batch: Any, shards: int, *, training: bool) -> None:
    """Compares the loss of some examples with the weighted losses of two parts of them.

    They differ for a loss that is summed by hand, has a denominator of its own that Keras does not
    see, or compares examples of a batch with one another. Twice more with rows that are made to
    differ.
    """
    probe = _Probe(model, batch, (), targets=True)
    if probe.count < 2:
        return
    tolerance = _tolerance(model, has_own_terms=pure.overrides(model, "compute_loss"))
    for mode in (_Mode(training), _Mode(training, 0), _Mode(training, 1)):
        compared = probe.compare(mode)
        if compared is None:
            continue
        whole, seen = compared
        shares = [size / probe.count for size in probe.sizes]
        parts = [share * part.loss for share, part in zip(shares, seen, strict=True)]
        size = max(abs(whole.loss), *(abs(part) for part in parts))
        if abs(sum(parts) - whole.loss) > tolerance * size + _SMALLEST:
            raise _inexact(model, shards, probe.count, whole.loss, sum(parts))


def _inexact(model: keras.Model, shards: int, count: int, whole: float, parts: float) -> Exception:
    return InexactLossError(
        f"The loss of {type(model).__name__!r} ({pure.loss_names(model)}) is not a mean over "
        f"examples: it is {whole:.6g} for {count} examples of the first batch, and {parts:.6g} "
        f"when they are cut in two. With {shards} shards it would be computed on each shard, and "
        "the result would depend on their number. Use a Keras loss with `reduction='sum'` for a "
        "sum, a mean over examples in `compute_loss` and `add_loss`, or `devices=1, shards=1` for "
        "a loss that compares examples. See docs/exactness.md."
    )


def state_rules(
    model: keras.Model, first_batch: Callable, findings: Any, shards: int, *, training: bool
) -> dict[int, str]:
    """How the values that a layer gives to its state on each shard make those of the whole batch.

    By the id of each variable. Refuses a loss or state that cannot be made of those of the shards.
    """
    if shards == 1 or not (findings.has_own_loss_terms or findings.own_state):
        return {}
    batch = first_batch()
    if findings.has_own_loss_terms:
        _refuse_inexact(model, batch, shards, training=training)
    return _rules(model, batch, findings.own_state, training, findings.has_targets)


def _rules(
    model: keras.Model, batch: Any, own_state: Sequence[Any], training: bool, targets: bool
) -> dict[int, str]:
    probe = _Probe(model, batch, own_state, targets)
    if not own_state or probe.count < 2:
        return {}
    rules = {id(v): _possible(v) for v in own_state}
    shown: dict[int, tuple] = {}
    first = probe.compare(_Mode(training))
    largest = 0.0
    if first is not None:
        values = [v for seen in (first[0], *first[1]) for v in seen.state.values()]
        largest = max((float(np.abs(v).max()) for v in values if v.size), default=0.0)
    far = float(np.ceil(1 + 2 * largest))
    # From other values, too: a maximum that no example exceeds looks like any constant.
    begins = (None, None, 0.0, 0.0, -far, far)
    modes = [_Mode(training, seed, begin) for seed, begin in enumerate(begins)]
    cases = [(first, _Mode(training)), *((probe.compare(mode), mode) for mode in modes)]
    for case, mode in cases:
        if case is not None:
            _narrow(rules, shown, case, probe.before(mode), probe.sizes, _epsilon(model))
    for variable in own_state:
        if not rules[id(variable)]:
            raise _uncuttable(model, variable, shown[id(variable)])
    return {key: possible[0] for key, possible in rules.items()}


def _possible(variable: Any) -> list[str]:
    dtype = tf.as_dtype(variable.dtype)
    if dtype == tf.bool:
        return [SAME]
    return [SAME, MEAN, SUM] if dtype.is_floating else [SAME, SUM]


def _narrow(
    rules: dict[int, list[str]],
    shown: dict[int, tuple],
    compared: tuple[_Seen, list[_Seen]],
    before: Mapping[int, np.ndarray],
    sizes: tuple[int, int],
    epsilon: float,
) -> None:
    """Leaves out the rules that do not hold here."""
    whole, (first, second) = compared
    share = sizes[0] / sum(sizes)
    for key, value in whole.state.items():
        a, b, w, s = (
            np.asarray(v, "float64")
            for v in (first.state[key], second.state[key], value, before.get(key, value))
        )
        wide = value.dtype.kind != "f" or value.dtype.itemsize > 4
        own = epsilon if wide else max(epsilon, 1e-5)
        rounding = own * np.max(np.abs([a, b, w, s]), axis=0)
        # What may be lost by cancellation is as large as the values vary.
        part = min(_RELATIVE, 1e3 * own)
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


def _uncuttable(model: keras.Model, variable: Any, shown: tuple) -> Exception:
    whole, first, second = shown
    return KerasdistError(
        f"The model {type(model).__name__!r} changes the state {variable.path!r} in a way that "
        f"cannot be computed on parts of a batch: it becomes {whole:.6g} on some examples of the "
        f"first batch, but {first:.6g} and {second:.6g} on two parts of them. Expected a mean over "
        "examples, a sum over examples, or a value that does not depend on the examples. Use "
        "`devices=1, shards=1`, or compute it from a mean or a sum."
    )


def _epsilon(model: keras.Model) -> float:
    """Relative rounding of one number, with room for a few operations."""
    types = {layer.compute_dtype for layer in pure.all_layers(model)}
    if any("16" in name for name in types):
        return 2e-2
    return 1e-14 if types == {"float64"} else 1e-5


def _tolerance(model: keras.Model, *, has_own_terms: bool) -> float:
    """Keras computes its losses in `floatx`; what a model computes itself may be in half of it."""
    epsilon = _epsilon(model)
    return max(_RELATIVE, epsilon if has_own_terms else epsilon / 10)


def _map(function: Any, example: Example) -> Example:
    def over(structure):
        return tf.nest.map_structure(lambda t: None if t is None else function(t), structure)

    args = over(example.args)
    x = args[0] if len(args) == 1 else args
    return Example(args, x, over(example.y), over(example.sample_weight))


def _times(tensor: Any, factors: np.ndarray) -> Any:
    """Each row of floats times its factor; a mask stays."""
    if tensor is None or not tensor.dtype.is_floating or tensor.shape[:1] != [len(factors)]:
        return tensor
    shape = [len(factors)] + [1] * (len(tensor.shape) - 1)
    scaled = tensor * tf.cast(tf.reshape(factors, shape), tensor.dtype)
    mask = pure.get_mask(tensor)
    if mask is not None:
        pure.set_mask(scaled, mask)
    return scaled
