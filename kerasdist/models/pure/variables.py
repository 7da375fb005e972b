"""A model's variables by role, and Keras's global state around them."""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator

from kerasdist.errors import KerasdistError

_Result = TypeVar("_Result")


def _native(variable: keras.Variable) -> tf.Variable:
    return variable._value


@dataclass(frozen=True)
class Parts:
    """The variables of a compiled, built model by their role in a step."""

    trainable: tuple[keras.Variable, ...]
    other: tuple[keras.Variable, ...]
    optimizer: tuple[keras.Variable, ...]
    metrics: tuple[keras.Variable, ...]
    seeds: tuple[keras.Variable, ...]

    def natives(self, role: str) -> list[tf.Variable]:
        """The TensorFlow variables behind the Keras variables of a role."""
        return [_native(variable) for variable in getattr(self, role)]


# By model: variables that its `call` assigns and that no layer owns.
_adopted: weakref.WeakKeyDictionary[keras.Model, dict[int, keras.Variable]] = (
    weakref.WeakKeyDictionary()
)


def adopt(model: keras.Model, variables: Sequence[keras.Variable]) -> None:
    """From now on `parts` counts these among the model's variables.

    They are states of a recurrent layer with `stateful=True`, or variables outside of the model.
    Keras does not list them in `model.variables`, but its `fit` changes them, too.
    """
    _adopted.setdefault(model, {}).update({id(v): v for v in variables})


def adopted(model: keras.Model) -> tuple[keras.Variable, ...]:
    return tuple(_adopted.get(model, {}).values())


# By model: how many steps of its own `train_step` were trained, over all fits.
_counters: weakref.WeakKeyDictionary[keras.Model, keras.Variable] = weakref.WeakKeyDictionary()


def step_counter(model: keras.Model) -> keras.Variable:
    """The variable that counts the steps of a model with its own `train_step`.

    Such a model may have several optimizers, or none: their counters do not count steps.
    """
    if model not in _counters:
        with tf.init_scope():
            _counters[model] = keras.Variable(0, dtype="int64", trainable=False, name="num_steps")
        adopt(model, [_counters[model]])
    return _counters[model]


def num_own_steps(model: keras.Model) -> int | None:
    """How many steps of its own `train_step` a model was trained; None if it was not."""
    return int(_counters[model].numpy()) if model in _counters else None


def is_seed(variable: keras.Variable) -> bool:
    """Whether it is the state of a `keras.random.SeedGenerator`."""
    return variable.name == "seed_generator_state" and tuple(variable.shape) == (2,)


def parts(model: keras.Model) -> Parts:
    """Sorts a model's variables, including the adopted ones and the global seed generator."""
    trainable = tuple(model.trainable_variables)
    weights = list(model.weights)
    known = {id(v) for v in weights}
    seeds = [v for v in model.variables if id(v) not in known]
    seeds.append(share_global_seed_generator().state)
    known |= {id(v) for v in seeds}
    outside = [v for v in adopted(model) if id(v) not in known]
    seeds += [v for v in outside if is_seed(v)]
    weights += [v for v in outside if not is_seed(v)]
    tracker = model._loss_tracker.variables if model.compiled else ()
    metrics = {id(v): v for v in [*tracker, *model.metrics_variables]}
    of_trainable = {id(v) for v in trainable}
    return Parts(
        trainable=trainable,
        other=tuple(v for v in weights if id(v) not in of_trainable and id(v) not in metrics),
        optimizer=tuple(model.optimizer.variables) if getattr(model, "optimizer", None) else (),
        metrics=tuple(metrics.values()),
        seeds=tuple(seeds),
    )


def share_global_seed_generator() -> keras.random.SeedGenerator:
    """Returns the caller's global seed generator, for the threads of replicas: it is thread-local.

    Making one draws from Python's `random`. Keras's `fit` does not, so the state of `random` is
    restored.
    """
    state = random.getstate()
    try:
        return global_seed_generator()
    finally:
        random.setstate(state)


def use_global_seed_generator(generator: keras.random.SeedGenerator) -> None:
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)


def in_new_thread(function: Callable[[], _Result]) -> _Result:
    """Calls `function` with this thread's Keras settings, but no graph, device or strategy."""
    settings = vars(global_state.GLOBAL_STATE_TRACKER)

    def call_it() -> _Result:
        vars(global_state.GLOBAL_STATE_TRACKER).update(settings)
        return function()

    with ThreadPoolExecutor(max_workers=1) as threads:
        return threads.submit(call_it).result()


def build_outside(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Creates the variables of an optimizer while a step is traced, as Keras's `fit` does."""

    def build() -> None:
        global_state.set_global_attribute("stateless_scope", None)
        with optimizer._distribution_strategy.scope():
            optimizer.build(variables)

    in_new_thread(build)


@contextlib.contextmanager
def dtype_policy(precision: str | None) -> Iterator[None]:
    """Sets Keras's dtype policy, and restores it afterwards, even if none was set."""
    before = global_state.get_global_attribute("dtype_policy")
    if precision is not None:
        try:
            keras.config.set_dtype_policy(precision)
        except ValueError:
            raise KerasdistError(
                f"Received `precision={precision!r}`. Expected one of Keras's dtype policies. Give "
                "'mixed_bfloat16', 'mixed_float16', 'bfloat16', 'float32' or 'float64'."
            ) from None
    try:
        yield
    finally:
        if precision is not None:
            global_state.set_global_attribute("dtype_policy", before)
