"""Finds what does not add up over the shards of a batch, before training: losses, and state."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import InexactLossError, KerasdistError
from kerasdist.models import pure
from kerasdist.models.contract import Example, read
from kerasdist.models.pure.alike import compilation
from kerasdist.models.state_rules import MEAN, SAME, SUM

# As many examples as this of the first batch, in two parts of different sizes.
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

    @property
    def is_altered(self) -> bool:
        """Whether the model may meet values that it does not meet in training."""
        return self.seed is not None or self.begin is not None


@dataclass(frozen=True)
class _Seen:
    loss: float
    state: dict[int, np.ndarray]
    denominators: Sequence[tf.Tensor]
    draws: Any


@dataclass(frozen=True)
class _Case:
    """The whole, the same again with other random numbers where rows differ by them, and parts."""

    mode: _Mode
    whole: _Seen
    again: _Seen
    parts: list[_Seen]

    @property
    def has_loss(self) -> bool:
        """Whether the losses can be compared: no chance in them, and all are finite."""
        seen = (self.whole, *self.parts)
        return (
            all(part.draws.are_alike and np.isfinite(part.loss) for part in seen)
            and np.isclose(self.again.loss, self.whole.loss, rtol=1e-5).item()
        )

    @property
    def by_chance(self) -> set[int]:
        """The state that is not the same when it is computed again."""
        again = self.again.state
        return {
            key
            for key, value in self.whole.state.items()
            if key not in again
            or not np.allclose(_wide(value), _wide(again[key]), rtol=1e-5, equal_nan=True)
        }

    @property
    def comparable(self) -> set[int]:
        """The state that can be compared, whatever the loss and other state are."""
        seen = (self.whole, *self.parts)
        return {
            key
            for key in self.whole.state
            if all(key in part.state and np.isfinite(_wide(part.state[key])).all() for part in seen)
        } - self.by_chance


class _Probe:
    """Evaluates rows of a batch, whole and in two parts."""

    def __init__(self, model: keras.Model, batch: Any, own_state: Sequence[Any], targets: bool):
        self.model = model
        self.is_for_loss = targets and not own_state
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

    def compare(self, mode: _Mode) -> _Case | None:
        """None if the random numbers differ, or altered values are not what the model can take."""
        try:
            return self._compare(mode)
        except Exception as error:
            if mode.is_altered:
                return None
            if isinstance(error, KerasdistError):
                raise
            raise _uncomputable(self, error) from error

    def _compare(self, mode: _Mode) -> _Case | None:
        middle, end = self.sizes[0], self.count
        of_rows = None
        for _ in range(2):
            whole = self._evaluate(mode, 0, end, None, of_rows)
            parts = [
                self._evaluate(mode, 0, middle, whole.denominators, of_rows),
                self._evaluate(mode, middle, end, whole.denominators, of_rows),
            ]
            draws = [seen.draws for seen in (whole, *parts)]
            # A draw whose size is not each time that of the rows is for a layer's weights.
            of_rows = set.intersection(*(each.of_rows for each in draws))
            if all(each.of_rows == of_rows for each in draws):
                break
        if len({each.num_draws for each in draws}) > 1:
            return None
        again = self._evaluate(mode, 0, end, None, of_rows, other_chance=True)
        return _Case(mode, whole, again, parts)

    def _evaluate(
        self,
        mode: _Mode,
        start: int,
        end: int,
        denominators: Any,
        of_rows: Collection[int] | None,
        *,
        other_chance: bool = False,
    ) -> _Seen:
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
        alike = pure.rows_alike(end - start, of_rows, other_chance=other_chance)
        with pure.patched(), alike as draws:
            forward = self._forward(mode, example, shard, factors)
        loss = 0.0 if forward.loss is None else float(forward.loss)
        state = {key: np.array(v) for key, v in forward.changed.items() if key in self._own}
        return _Seen(loss, state, shard.local_denominators, draws)

    def _forward(self, mode: _Mode, example: Example, shard: pure.Shard, factors: Any):
        before = {} if mode.begin is None else self.before(mode)

        def of(role: str) -> list[tf.Tensor]:
            pairs = zip(getattr(self._roles, role), self._roles.natives(role), strict=True)
            return [tf.convert_to_tensor(before.get(id(v), native)) for v, native in pairs]

        state = of("trainable"), of("other"), of("seeds")
        if not self._with_loss:
            return pure.predict(self.model, self._roles, state, example)
        return pure.forward(
            self.model,
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


def _refuse_inexact(model: keras.Model, batch: Any, shards: int, *, training: bool) -> bool:
    """Compares the loss of some examples with the weighted losses of two parts of them.

    They differ for a loss that is summed by hand, has a denominator of its own that Keras does not
    see, or compares examples of a batch with one another. Twice more with rows that are made to
    differ. Returns whether anything could be compared.
    """
    probe = _Probe(model, batch, (), targets=True)
    if probe.count < 2:
        return False
    tolerance = _tolerance(model, has_own_terms=pure.overrides(model, "compute_loss"))
    found = [probe.compare(_Mode(training, seed)) for seed in (None, 0, 1)]
    cases = [case for case in found if case is not None and case.has_loss]
    for case in cases:
        whole, seen = case.whole, case.parts
        shares = [size / probe.count for size in probe.sizes]
        parts = [share * part.loss for share, part in zip(shares, seen, strict=True)]
        size = max(abs(whole.loss), *(abs(part) for part in parts))
        if abs(sum(parts) - whole.loss) > tolerance * size + _SMALLEST:
            raise _inexact(model, shards, probe.count, whole.loss, sum(parts))
    return bool(cases)


def _inexact(model: keras.Model, shards: int, count: int, whole: float, parts: float) -> Exception:
    return InexactLossError(
        f"The loss of {type(model).__name__!r} ({pure.loss_names(model)}) is not a mean over "
        f"examples: it is {whole:.6g} for {count} examples of the first batch, and {parts:.6g} "
        f"when they are cut in two. With {shards} shards it would be computed on each shard, and "
        "the result would depend on their number. Use a Keras loss with `reduction='sum'` for a "
        "sum, a mean over examples in `compute_loss` and `add_loss`, or `devices=1, shards=1` for "
        "a loss that compares examples. See docs/exactness.md."
    )


def _uncomputable(probe: _Probe, error: Exception) -> Exception:
    model = probe.model
    name, lines = type(model).__name__, str(error).splitlines()
    # Keras puts its own first line, and colors, around what a layer raised; TensorFlow the node.
    lines = [re.sub(r"\x1b\[\d*m|{{.*?}}", "", line).strip() for line in lines]
    told = [line for line in lines if line and not line.startswith("Exception encountered when")]
    reason = f"{type(error).__name__}: {told[0]}" if told else type(error).__name__
    first, second = probe.sizes
    subject, kind = f"The model {name!r}", KerasdistError
    if probe.is_for_loss:
        subject = f"The loss of {name!r} ({pure.loss_names(model)})"
        kind = InexactLossError
    return kind(
        f"{subject} cannot be computed on a part of a batch: with {probe.count} examples of the "
        f"first batch, or {first} and {second} of them, it raised {reason!r}. Expected what can be "
        "computed on any number of examples, because each shard gets a part of the batch. Take "
        "the number from the inputs, such as `keras.ops.shape(y_pred)[0]`, or use "
        "`devices=1, shards=1`."
    )


def state_rules(
    model: keras.Model, first_batch: Callable, findings: Any, shards: int, *, training: bool
) -> dict[int, str]:
    """How the values that a layer gives to its state on each shard make those of the whole batch.

    By the id of each variable, for those that could be compared. Refuses a loss or state that
    cannot be made of those of the shards. What was found for a model is remembered until it is
    compiled again or changed.
    """
    if shards == 1 or not (findings.has_own_loss_terms or findings.own_state):
        return {}
    batch = first_batch()
    own = findings.own_state
    key = (training, findings.has_own_loss_terms, findings.has_targets, _kind(model, batch))
    memory = _memory(model)
    remembered = memory.get(key)
    if remembered is not None and remembered.is_of(model, own):
        return dict(zip(map(id, own), remembered.rules, strict=True))
    has_loss = True
    if findings.has_own_loss_terms:
        has_loss = _refuse_inexact(model, batch, shards, training=training)
    rules = _rules(model, batch, own, training, findings.has_targets)
    # Without a verdict, another batch may give one.
    if has_loss and len(rules) == len(own):
        memory[key] = _Verdict.of(model, own, rules)
    return rules


@dataclass(frozen=True)
class _Verdict:
    """Weak references only: what it is about is not kept alive, and no id is mistaken for it."""

    compilation: tuple[Callable, ...]
    own_state: tuple[Callable, ...]
    rules: tuple[str, ...]

    @classmethod
    def of(cls, model: keras.Model, own_state: Sequence[Any], rules: Mapping[int, str]):
        return cls(
            tuple(_reference(made) for made in compilation(model)),
            tuple(weakref.ref(v) for v in own_state),
            tuple(rules[id(v)] for v in own_state),
        )

    def is_of(self, model: keras.Model, own_state: Sequence[Any]) -> bool:
        references = (*self.compilation, *self.own_state)
        now = (*compilation(model), *own_state)
        return len(references) == len(now) and all(
            reference() is thing for reference, thing in zip(references, now, strict=True)
        )


def _reference(thing: Any) -> Callable:
    return (lambda: None) if thing is None else weakref.ref(thing)


_SET_BY_LOOPS = {"stop_training", "stop_evaluating", "stop_predicting"}
_VERDICTS: weakref.WeakKeyDictionary[Any, dict[Any, _Verdict]] = weakref.WeakKeyDictionary()


def _memory(model: keras.Model) -> dict[Any, _Verdict]:
    return {} if type(model).__hash__ is None else _VERDICTS.setdefault(model, {})


def _kind(model: keras.Model, batch: Any) -> str:
    """Shapes and dtypes of the batch, and the settings of the model, its layers and losses."""

    def spec(leaf: Any) -> Any:
        return tuple(getattr(leaf, "shape", ())), str(getattr(leaf, "dtype", type(leaf)))

    def settings(thing: Any) -> Any:
        plain = bool | int | float | str
        pairs = getattr(thing, "__dict__", {}).items()
        return {k: v for k, v in pairs if isinstance(v, plain) and k not in _SET_BY_LOOPS}

    things = [model, *pure.all_layers(model), *tf.nest.flatten(getattr(model, "loss", None))]
    return repr((tf.nest.map_structure(spec, batch), [settings(thing) for thing in things]))


def _rules(
    model: keras.Model, batch: Any, own_state: Sequence[Any], training: bool, targets: bool
) -> dict[int, str]:
    probe = _Probe(model, batch, own_state, targets)
    if not own_state or probe.count < 2:
        return {}
    first = probe.compare(_Mode(training))
    largest = 0.0
    if first is not None:
        seen = (first.whole, *first.parts)
        values = [_wide(part.state[key]) for part in seen for key in first.comparable]
        largest = max((float(np.abs(v).max()) for v in values if v.size), default=0.0)
    far = float(np.ceil(1 + 2 * largest))
    # From other values, too: a maximum that no example exceeds looks like any constant.
    begins = (None, None, 0.0, 0.0, -far, far)
    found = [first, *(probe.compare(_Mode(training, *pair)) for pair in enumerate(begins))]
    cases = [case for case in found if case is not None]
    # Chance may agree by chance: once it does not, nothing is said about that variable.
    by_chance = {key for case in cases for key in case.by_chance}
    rules: dict[int, list[str]] = {}
    shown: dict[int, tuple] = {}
    possible = {id(v): _possible(v) for v in own_state}
    for case in cases:
        before, epsilon = probe.before(case.mode), _epsilon(model)
        for key in case.comparable - by_chance:
            rules.setdefault(key, possible[key])
            _narrow(rules, shown, key, case, before.get(key), probe.sizes, epsilon)
    for variable in own_state:
        if not rules.get(id(variable), True):
            raise _uncuttable(model, variable, shown[id(variable)])
    return {key: left[0] for key, left in rules.items()}


def _possible(variable: Any) -> list[str]:
    dtype = tf.as_dtype(variable.dtype)
    if dtype == tf.bool:
        return [SAME]
    return [SAME, MEAN, SUM] if dtype.is_floating else [SAME, SUM]


def _narrow(
    rules: dict[int, list[str]],
    shown: dict[int, tuple],
    key: int,
    case: _Case,
    before: np.ndarray | None,
    sizes: tuple[int, int],
    epsilon: float,
) -> None:
    """Leaves out the rules that do not hold here for one variable."""
    value = case.whole.state[key]
    share = sizes[0] / sum(sizes)
    a, b = (_wide(part.state[key]) for part in case.parts)
    w, s = _wide(value), _wide(value if before is None else before)
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


def _wide(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, "float64")


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
