"""The update of a large variable in one pass over memory: XLA compiles the optimizer's formula.

TensorFlow runs a formula operation by operation. For Adam, each number of a weight then passes
through the processor about twenty times, and most operations need memory for their result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import tensorflow as tf

from kerasdist.devices import private_tensorflow

# A variable with at least so many numbers is large. To compile a formula takes about 0.1 s for each
# size of a variable, and some 60 MB, so it must pay: a million numbers in a transformer do not.
LARGE = 2**21
# Formulas that compute each number of a weight from that number's gradient and state alone. So XLA
# has no sums to put in another order.
_KINDS = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adamax,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.RMSprop,
    keras.optimizers.Nadam,
    keras.optimizers.Lion,
    keras.optimizers.Ftrl,
)
_FORMULAS = {kind.update_step for kind in _KINDS}


class Scope(Protocol):
    """The scope of an update, as far as it is needed here (`InPlace`)."""

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None: ...

    def stored(self, variable: keras.Variable) -> tf.Variable | None: ...

    def has_written(self, variable: keras.Variable) -> None: ...


@dataclass(frozen=True)
class _Formula:
    """What the update of one variable reads, and the graph that it makes of that.

    `numbers` are scalars, such as the counter of the steps. `arrays` are the weight and its state.
    Variables with an equal `key` are updated by the same function.
    """

    key: Hashable
    numbers: list[keras.Variable]
    arrays: list[keras.Variable]


class Fused:
    """Compiled updates of single variables, one for all variables that have the same formula."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Callable[..., None]] = {}

    def run(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradient: tf.Tensor,
        variable: keras.Variable,
        learning_rate: Any,
        scope: Scope,
    ) -> bool:
        """Updates a variable and its state where they are stored, if it is large.

        Returns False if that is left to Keras, operation by operation.
        """
        if not is_fusible(optimizer, variable):
            return False
        # A number has all its digits, also for variables in float64.
        dtype = variable.dtype if isinstance(learning_rate, float) else None
        rate = tf.convert_to_tensor(learning_rate, dtype)
        formula = _formula(optimizer, gradient, variable, rate)
        if formula is None:
            return False
        arrays = [scope.stored(v) for v in formula.arrays]
        numbers = [scope.get_current_value(v) for v in formula.numbers]
        if any(
            each is None for each in (*arrays, *numbers)
        ):  # The state of a custom class, which nobody keeps.
            return False
        if formula.key not in self._made:
            self._made[formula.key] = _compiled(optimizer, variable, formula)
        self._made[formula.key](arrays, numbers, gradient, rate)
        for each in formula.arrays:
            scope.has_written(each)
        return True


def is_fusible(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether a variable is large and its update treats each of its numbers by itself."""
    if math.prod(variable.shape) < LARGE or "update_step" in vars(optimizer):
        return False
    steps = [vars(kind)["update_step"] for kind in type(optimizer).__mro__ if _has_step(kind)]
    # Subclasses by kerasdist change the learning rate, and then call Keras's.
    others = [step for step in steps if step.__module__.split(".")[0] not in ("keras", "kerasdist")]
    return not others and any(step in _FORMULAS for step in steps)


def _has_step(kind: type) -> bool:
    return "update_step" in vars(kind) and kind is not keras.optimizers.Optimizer


class _Values(keras.StatelessScope):
    """A scope that asks `value_of` for the values of variables, and keeps what is assigned."""

    def __init__(self, value_of: Callable[[keras.Variable], tf.Tensor]):
        super().__init__()
        self._value_of = value_of
        self.assigned: dict[int, tf.Tensor] = {}

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor:
        value = self.assigned.get(id(variable))
        return self._value_of(variable) if value is None else value

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        self.assigned[id(variable)] = tf.cast(value, variable.dtype)


def _formula(
    optimizer: keras.optimizers.Optimizer,
    gradient: tf.Tensor,
    variable: keras.Variable,
    rate: tf.Tensor,
) -> _Formula | None:
    """Runs the update on placeholders, to see what it reads.

    None if it also reads a tensor that is neither a variable nor a number, such as a `beta_1` that
    is a tensor: only the caller's graph has it.
    """
    seen: dict[int, tuple[keras.Variable, tf.Tensor]] = {}
    graph = private_tensorflow.FunctionGraph("formula")
    with graph.as_default():

        def value_of(variable: keras.Variable) -> tf.Tensor:
            if id(variable) not in seen:
                given = tf.compat.v1.placeholder(variable.dtype, variable.shape)
                seen[id(variable)] = variable, given
            return seen[id(variable)][1]

        of_gradient = tf.compat.v1.placeholder(gradient.dtype, variable.shape)
        of_rate = tf.compat.v1.placeholder(rate.dtype, rate.shape)
        with _Values(value_of) as scope:
            optimizer.update_step(of_gradient, variable, of_rate)
    if graph.captures:
        return None
    read = [variable for variable, _ in seen.values()]
    numbers = [v for v in read if not v.shape]
    arrays = [v for v in read if v.shape]
    # Which placeholder stands for what, and which results are written where.
    places = tuple((given.name, bool(v.shape)) for v, given in seen.values())
    results = tuple((seen[key][1].name, value.name) for key, value in scope.assigned.items())
    key = (graph.as_graph_def().SerializeToString(deterministic=True), places, results)
    return _Formula(key, numbers, arrays)


def _compiled(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable, formula: _Formula
) -> Callable[..., None]:
    def update(
        arrays: Sequence[tf.Variable],
        numbers: Sequence[tf.Tensor],
        gradient: tf.Tensor,
        rate: tf.Tensor,
    ) -> None:
        stored = dict(zip(map(id, formula.arrays), arrays, strict=True))
        values: Mapping[int, tf.Tensor] = {
            **dict(zip(map(id, formula.numbers), numbers, strict=True)),
            **{key: each.read_value() for key, each in stored.items()},
        }
        with _Values(lambda v: values[id(v)]) as scope:
            optimizer.update_step(gradient, variable, rate)
        for key, value in scope.assigned.items():
            stored[key].assign(value)

    return tf.function(update, autograph=False, jit_compile=True)
