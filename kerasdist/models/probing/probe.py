"""The probe: evaluates rows of the first batch, whole and in two parts, to compare them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import InexactLossError, KerasdistError, keras_reason
from kerasdist.models import pure
from kerasdist.models.class_weights import weigh_classes
from kerasdist.models.fields import Batch, Example, read
from kerasdist.models.probing.cases import Case, Evaluation, Mode
from kerasdist.models.probing.gradient_sums import Gradients, gap, gradient_of
from kerasdist.models.tensors.composites import (
    as_tensor,
    count_rows,
    gather_rows,
    is_composite,
    rows_of,
)

# The probe takes at most this many examples of the first batch, in two parts of different sizes.
ROWS = 61
_FIRST_PART = 38 / 61


class Probe:
    """Evaluates rows of a batch, whole and in two parts.

    With `own_state` it watches these variables. Without `targets` it predicts, without a loss.
    Without `with_loss` it trains or evaluates, but does not call the loss. It takes at `most` so
    many rows, with the sample weights of `class_weight`.
    """

    def __init__(
        self,
        model: keras.Model,
        batch: Batch,
        own_state: Sequence[keras.Variable],
        targets: bool,
        with_loss: bool = True,
        most: int = ROWS,
        class_weight: dict[int, float] | None = None,
    ):
        self.model = model
        self.is_for_loss = targets and not own_state
        example = weigh_classes(read(model, batch, need_targets=targets), class_weight)
        size = int(count_rows(tf.nest.flatten(example.args)[0]))
        self.count = min(size, most)
        self.is_weighted = example.sample_weight is not None
        rows = np.linspace(0, size - 1, self.count).astype("int64")
        self._example = _map(lambda t: gather_rows(as_tensor(t), rows), example)
        first = min(max(1, round(self.count * _FIRST_PART)), self.count - 1)
        self.sizes = (first, self.count - first)
        self._own = {id(v) for v in own_state}
        self._has_targets, self._with_loss = targets, with_loss
        self._roles = pure.parts(model)

    def before(self, mode: Mode) -> dict[int, np.ndarray]:
        """The values from which the watched state starts."""
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

    def compare(self, mode: Mode) -> Case | None:
        """Evaluates the whole and the parts.

        Returns None if they draw a different number of random values, or if the model cannot take
        the altered values.
        """
        try:
            return self._compare(mode)
        except Exception as error:
            if mode.is_altered:
                return None
            if isinstance(error, KerasdistError):
                raise
            raise _uncomputable(self, error) from error

    def check_whole(self, mode: Mode) -> None:
        """Evaluates the whole alone. Refuses a model or loss that cannot be computed on it."""
        try:
            self._evaluate(mode, 0, self.count, None, None)
        except Exception as error:
            raise _uncomputable(self, error) from error

    def _compare(self, mode: Mode) -> Case | None:
        middle, end = self.sizes[0], self.count
        of_rows = None
        for _ in range(2):
            whole = self._evaluate(mode, 0, end, None, of_rows)
            parts = [
                self._evaluate(mode, 0, middle, whole.denominators, of_rows),
                self._evaluate(mode, middle, end, whole.denominators, of_rows),
            ]
            draws = [seen.draws for seen in (whole, *parts)]
            # A draw is for rows only if its size follows the number of rows in each evaluation.
            # Otherwise it is for a layer's weights.
            of_rows = set.intersection(*(each.of_rows for each in draws))
            if all(each.of_rows == of_rows for each in draws):
                break
        if len({each.num_draws for each in draws}) > 1:
            return None
        shares = [size / self.count for size in self.sizes]
        of_losses = zip(whole.gradients, *(part.gradients for part in parts), strict=True)
        gaps = [(gap(each, parts, shares), gap(each, parts, [1, 1])) for each, *parts in of_losses]
        # They are as large as the model.
        whole, *parts = (replace(seen, gradients=()) for seen in (whole, *parts))
        again = self._evaluate(mode, 0, end, None, of_rows, other_chance=True)
        return Case(mode, whole, again, parts, gaps)

    def _evaluate(
        self,
        mode: Mode,
        start: int,
        end: int,
        denominators: Sequence[tf.Tensor] | None,
        of_rows: Collection[int] | None,
        *,
        other_chance: bool = False,
    ) -> Evaluation:
        factors, example = None, _map(lambda t: rows_of(t, start, end), self._example)
        if mode.seed is not None:
            random = np.random.default_rng(mode.seed)
            factors = random.uniform(0.5, 1.0, size=self.count)[start:end]
            rows = random.permutation(self.count)[start:end]
            example = _map(lambda t: gather_rows(t, rows), self._example)
            weight = example.sample_weight
            example = _map(lambda t: _times(t, factors), example)
            if not mode.weighs:
                example = replace(example, sample_weight=weight)
        shard = pure.Shard(
            tf.constant(end - start),
            tf.constant(self.count),
            denominators,
        )
        if self.is_for_loss:  # State that chance decides must be seen to differ.
            shard.draw_seed = tf.constant([int(other_chance), 5], tf.int64)
            shard.one_row = pure.rows_like(end - start)
        repeated = pure.repeated_rows(end - start, of_rows, other_chance=other_chance)
        with pure.patched(), repeated as draws, tf.GradientTape(persistent=True) as tape:
            forward = self._forward(mode, example, shard, factors, tape)
        loss = 0.0 if forward.loss is None else float(forward.loss)
        state = {key: np.array(v) for key, v in forward.changed.items() if key in self._own}
        grown = zip(self._roles.metrics, forward.metrics, strict=False)  # None in a prediction.
        metrics = {id(v): np.array(value) for v, value in grown}
        is_needed = mode.training and self.is_for_loss and not other_chance
        gradients = self._gradients(forward, tape) if is_needed else ()
        local = shard.local_denominators
        if self._with_loss:
            return Evaluation(loss, state, local, draws, (), (), metrics, gradients)
        outputs = [None if t is None else np.array(t) for t in tf.nest.flatten(forward.outputs)]
        added = [np.array(t) for t in forward.added]
        return Evaluation(loss, state, local, draws, outputs, added, metrics, gradients)

    def _gradients(self, forward: pure.Forward, tape: tf.GradientTape) -> list[Gradients]:
        losses = [forward.loss] if self._with_loss else forward.added
        return [
            [gradient_of(each) for each in tape.gradient(loss, self._weights)]
            for loss in losses
            if loss is not None
        ]

    def _forward(
        self,
        mode: Mode,
        example: Example,
        shard: pure.Shard,
        factors: np.ndarray | None,
        tape: tf.GradientTape,
    ) -> pure.Forward:
        before = {} if mode.begin is None else self.before(mode)

        def values(role: str) -> list[tf.Tensor]:
            pairs = zip(getattr(self._roles, role), self._roles.natives(role), strict=True)
            return [tf.convert_to_tensor(before.get(id(v), native)) for v, native in pairs]

        self._weights = values("trainable")
        tape.watch([weight for weight in self._weights if weight.dtype.is_floating])
        state = self._weights, values("other"), values("seeds")
        if not self._has_targets:
            return pure.predict(self.model, self._roles, state, example)
        return pure.forward(
            self.model,
            self._roles,
            state,
            example,
            shard=shard,
            training=mode.training,
            with_metrics=False,
            with_loss=self._with_loss,
            change_outputs=None
            if factors is None
            else lambda outputs: tf.nest.map_structure(lambda t: _times(t, factors), outputs),
        )


def _map(function: Callable[[Any], Any], example: Example) -> Example:
    def mapped(structure: Any) -> Any:
        return tf.nest.map_structure(lambda t: None if t is None else function(t), structure)

    args = mapped(example.args)
    x = args[0] if len(args) == 1 else args
    return Example(args, x, mapped(example.y), mapped(example.sample_weight))


def _times(tensor: Any, factors: np.ndarray) -> Any:
    """Multiplies each row of floats by its factor. The Keras mask stays."""
    if tensor is None or is_composite(tensor) or not tensor.dtype.is_floating:
        return tensor
    if tensor.shape[:1] != [len(factors)]:
        return tensor
    shape = [len(factors)] + [1] * (len(tensor.shape) - 1)
    scaled = tensor * tf.cast(tf.reshape(factors, shape), tensor.dtype)
    mask = pure.get_mask(tensor)
    if mask is not None:
        pure.set_mask(scaled, mask)
    return scaled


def _uncomputable(probe: Probe, error: Exception) -> KerasdistError:
    model, (first, second) = probe.model, probe.sizes
    name, told = type(model).__name__, keras_reason(error)
    reason = f"{type(error).__name__}: {told}" if told else type(error).__name__
    subject, kind = f"The model {name!r}", KerasdistError
    if probe.is_for_loss:
        subject = f"The loss of {name!r} ({pure.loss_names(model)})"
        kind = InexactLossError
    return kind(
        f"{subject} cannot be computed on a part of a batch: with {probe.count} examples of the "
        f"first batch, or {first} and {second} of them, it raised {reason!r}. Expected code that "
        "works for any number of examples, because each shard gets a part of the batch. Take the "
        "number from the inputs, such as `keras.ops.shape(y_pred)[0]`, or use "
        "`devices=1, shards=1`."
    )
