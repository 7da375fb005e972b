"""Joins the trainable weights of a small model in one vector, so that its update is quick.

The time of a small model's update depends on the number of its operations: a dozen per variable,
and more to keep the old values if the step is not finite. With one vector it takes a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np

from kerasdist.models.pure.variables import Parts

SCHEDULE = keras.optimizers.schedules.LearningRateSchedule
# These optimizers change each number of a weight by that number's gradient and state alone.
ALIKE = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.RMSprop,
    keras.optimizers.Lion,
)


@dataclass(frozen=True)
class Joined:
    """The variables of a model joined in vectors, and an optimizer for these vectors.

    `numbers` says, for each role and each variable in `roles`, which of the model's variables it
    holds.
    """

    roles: Parts
    optimizer: keras.optimizers.Optimizer
    numbers: dict[str, list[list[int]]]


def join(optimizer: keras.optimizers.Optimizer, roles: Parts) -> Joined | None:
    """Joins the variables. Returns None if the optimizer does not treat all numbers alike."""
    if not _is_alike(optimizer, roles.trainable):
        return None
    try:
        config = optimizer.get_config()
    except NotImplementedError:  # A custom schedule may lack `get_config`.
        return None
    if isinstance(optimizer._learning_rate, SCHEDULE):
        config["learning_rate"] = optimizer._learning_rate
    of_vector = type(optimizer).from_config(config)
    vector = _vector(roles.trainable, "trainable")
    of_vector.build([vector])
    numbers = _optimizer_numbers(optimizer, of_vector, len(roles.trainable))
    if numbers is None:
        return None
    joins_metrics = len(roles.metrics) > 1 and {v.dtype for v in roles.metrics} == {vector.dtype}
    metrics = (_vector(roles.metrics, "metrics"),) if joins_metrics else roles.metrics
    every = list(range(len(roles.metrics)))
    return Joined(
        Parts(
            trainable=(vector,),
            other=roles.other,
            optimizer=tuple(of_vector.variables),
            metrics=metrics,
            seeds=roles.seeds,
        ),
        of_vector,
        {
            "trainable": [list(range(len(roles.trainable)))],
            "other": [[i] for i in range(len(roles.other))],
            "optimizer": numbers,
            "metrics": [every] if joins_metrics else [[i] for i in every],
        },
    )


def _is_alike(optimizer: keras.optimizers.Optimizer, trainable: Sequence[keras.Variable]) -> bool:
    if type(optimizer) not in ALIKE or len(trainable) < 2:
        return False
    if not {"apply", "apply_gradients", "update_step"}.isdisjoint(vars(optimizer)):
        return False
    if not isinstance(optimizer._learning_rate, (keras.Variable, SCHEDULE)):
        return False
    # These depend on which variable a number belongs to.
    if optimizer.clipnorm or optimizer.global_clipnorm or optimizer.use_ema:
        return False
    if optimizer.gradient_accumulation_steps or optimizer.loss_scale_factor:
        return False
    if optimizer.weight_decay and not all(optimizer._use_weight_decay(v) for v in trainable):
        return False
    # Numbers of half precision are summed in float32, which needs another vector.
    if {v.dtype for v in trainable} not in ({"float32"}, {"float64"}):
        return False
    return all(v.constraint is None and not v.overwrite_with_gradient for v in trainable)


def _vector(variables: Sequence[keras.Variable], name: str) -> keras.Variable:
    size = sum(int(np.prod(v.shape)) for v in variables)
    return keras.Variable(
        np.zeros(size), dtype=variables[0].dtype, trainable=name == "trainable", name=name
    )


def _optimizer_numbers(
    optimizer: keras.optimizers.Optimizer, of_vector: keras.optimizers.Optimizer, count: int
) -> list[list[int]] | None:
    """Which variables of `optimizer` each one of `of_vector` holds, or None if that is unclear."""
    place = {id(v): i for i, v in enumerate(optimizer.variables)}
    found: dict[int, list[int]] = {}
    for name, own in vars(of_vector).items():
        given = getattr(optimizer, name, None)
        is_slot = isinstance(own, list) and len(own) == 1 and name != "_variables"
        if is_slot and isinstance(given, list) and all(id(v) in place for v in given):
            found[id(own[0])] = [place[id(v)] for v in given]
    slots = {i for numbers in found.values() for i in numbers}
    rest = iter([i for i in range(len(optimizer.variables)) if i not in slots])
    numbers = [found.get(id(v)) or [next(rest, -1)] for v in of_vector.variables]
    shapes = [v.shape for v in optimizer.variables]
    is_clear = sorted(i for n in numbers for i in n) == list(range(len(shapes))) and all(
        len(n) == count or shapes[n[0]] == v.shape
        for n, v in zip(numbers, of_vector.variables, strict=True)
    )
    return numbers if is_clear else None
