"""From reduced gradients to new values: finite check, clipping, the optimizer, loss scale, EMA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from kerasdist.engine.sums import SMALL
from kerasdist.models import pure

# Values by role ("trainable", "optimizer" ...).
State = Mapping[str, list]


class Update:
    """The optimizer's state of one step, and the pure functions on it."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, roles: pure.Parts, values: list):
        self.values = values
        self._inner, scale, counter = pure.loss_scale(optimizer)
        self._is_wrapped = self._inner is not optimizer
        self._growth_steps = getattr(optimizer, "dynamic_growth_steps", None)
        place = {id(v): i for i, v in enumerate(roles.optimizer)}
        self.step = tf.cast(values[place[id(optimizer.iterations)]], tf.int64)
        self._places = (place[id(scale)], place[id(counter)]) if scale is not None else None

    @property
    def scale(self) -> tf.Tensor | None:
        """The factor of the loss; None without one."""
        if self._places is not None:
            return self.values[self._places[0]]
        factor = self._inner.loss_scale_factor
        return None if factor is None else tf.constant(factor, tf.float64)

    @property
    def is_scaled(self) -> bool:
        return self.scale is not None

    def unscale(self, gradient: tf.Tensor) -> tf.Tensor:
        return gradient if self.scale is None else gradient / tf.cast(self.scale, gradient.dtype)

    def update(self, roles: pure.Parts, gradients: Sequence, trainable: Sequence):
        """`(new trainable values, new optimizer values)` from unscaled, clipped gradients."""
        new, values = pure.apply_gradients(
            self._inner, roles, gradients, trainable, self.values, is_inner=self._is_wrapped
        )
        if self._places is not None:
            scale, counter = self._places
            count = values[counter] + 1
            grow = tf.equal(count, self._growth_steps)
            values[scale] = tf.where(grow, values[scale] * 2, values[scale])
            values[counter] = tf.where(grow, tf.zeros_like(count), count)
        return new, values

    def backed_off(self) -> list:
        """The optimizer's values after a step that was not finite: only a loss scale shrinks."""
        values = list(self.values)
        if self._places is not None:
            scale, counter = self._places
            values[scale] = values[scale] * 0.5
            values[counter] = tf.zeros_like(values[counter])
        return values


def scaled(loss: tf.Tensor, scale: tf.Tensor | None) -> tf.Tensor:
    return loss if scale is None else loss * tf.cast(scale, loss.dtype)


def gradients(tape, loss, roles: pure.Parts, trainable: list, changed: dict) -> list:
    """With respect to each variable's value at the start, plus one that `call` assigned to it."""
    given = {i: changed[id(v)] for i, v in enumerate(roles.trainable) if id(v) in changed}
    found, more = tape.gradient(loss, (trainable, list(given.values())))
    for i, gradient in zip(given, more, strict=True):
        if gradient is not None:
            first = found[i]
            found[i] = gradient if first is None else tf.convert_to_tensor(first) + gradient
    return found


class Check:
    """Whether tensors are all finite. Small ones are looked at together, which is quicker.

    `vectors` hold the same values, if they are at hand.
    """

    def __init__(self, tensors: Sequence[tf.Tensor], vectors: Sequence[tf.Tensor] | None = None):
        self._tensors = tensors
        self._groups = [] if vectors is not None else _groups(tensors)
        if vectors is None:
            vectors = [vector for _, _, vector in self._groups]
        all_of = [_is_finite(vector) for vector in vectors]
        self.finite = all_of[0] if len(all_of) == 1 else tf.reduce_all(tf.stack(all_of))

    @property
    def flags(self) -> tf.Tensor:
        """Whether each of them is, in order."""
        flags = [tf.constant(True)] * len(self._tensors)
        for indices, sizes, vector in self._groups or _groups(self._tensors):
            parts = [vector] if len(indices) == 1 else tf.split(vector, sizes)
            for i, part in zip(indices, parts, strict=True):
                flags[i] = _is_finite(part)
        return tf.stack(flags)


def _groups(tensors: Sequence[tf.Tensor]) -> list[tuple[list[int], list[int], tf.Tensor]]:
    """Numbers and sizes of tensors of floats, and the vector that holds them."""
    groups: list[tuple[list[int], list[int], tf.Tensor]] = []
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


def _is_finite(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(tensor))


def if_finite(
    finite: tf.Tensor,
    new_state: Callable[[], State],
    left: State,
    flags: Callable[[], tf.Tensor],
    assign: Callable[[State], list],
) -> tuple[list, tf.Tensor]:
    """Assigns the new state, or else `left`: what was written, and flags (none if finite).

    Each tensor and variable that a branch of a `tf.cond` uses costs an operation. A small state is
    chosen value by value instead, which copies it.
    """

    def no_flags():
        return tf.ones((0, 0), tf.bool)

    sizes = [t.shape.num_elements() for values in left.values() for t in values]
    if None not in sizes and sum(sizes) <= SMALL:
        new = new_state()
        chosen = {
            role: [
                value if value is None or value is old else tf.where(finite, value, old)
                for value, old in zip(new[role], values, strict=True)
            ]
            for role, values in left.items()
        }
        return assign(chosen), tf.cond(finite, no_flags, flags)

    def write():
        assign(new_state())
        return no_flags()

    def leave():
        assign(left)
        return flags()

    return [], tf.cond(finite, write, leave)


def to_check(roles: pure.Parts, loss, gradients: Sequence, changed: dict[int, tf.Tensor]):
    """Names and tensors of everything that must be finite before anything is written."""
    paths = {id(v): v.path for v in (*roles.trainable, *roles.other)}
    pairs = [("loss", loss)]
    pairs += [
        (f"gradient of {variable.path}", gradient)
        for variable, gradient in zip(roles.trainable, gradients, strict=True)
        if gradient is not None
    ]
    pairs += [(f"state {paths[key]}", value) for key, value in changed.items()]
    names, tensors = zip(*pairs, strict=True)
    return names, tensors


def clip(gradients: Sequence, max_norm: float | None) -> list:
    """Scales all gradients by one factor so that their global norm is at most `max_norm`."""
    if max_norm is None:
        return list(gradients)
    squares = [tf.reduce_sum(tf.square(_wide(g))) for g in gradients if g is not None]
    if not squares:
        return list(gradients)
    dtype = tf.float64 if any(s.dtype == tf.float64 for s in squares) else tf.float32
    norm = tf.sqrt(tf.add_n([tf.cast(s, dtype) for s in squares]))
    factor = max_norm / tf.maximum(norm, max_norm)
    return [None if g is None else g * tf.cast(factor, g.dtype) for g in gradients]


def _wide(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor


def average(averages: Sequence, values: Sequence, decay: float | None, step: tf.Tensor) -> list:
    """The moving averages after an update; there are none without `decay`."""
    new = []
    for old, value in zip(averages, values, strict=False):
        of_step = tf.cast(ema_decay(decay, step), old.dtype)  # type: ignore[arg-type]
        new.append(of_step * old + (1 - of_step) * value)
    return new


def ema_decay(decay: float, step: tf.Tensor) -> tf.Tensor:
    """min(decay, (1 + t) / (10 + t)) at the t-th update: early averages follow more closely."""
    t = tf.cast(step, tf.float64) + 1  # `step` counts the updates before this one.
    return tf.minimum(tf.constant(decay, tf.float64), (1 + t) / (10 + t))
