"""The variables of a run on its devices: where they are, and how values get in and out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.sums import SMALL
from kerasdist.models import pure

ROLES = ("trainable", "other", "optimizer", "metrics")


def vectors(optimizer: Any, roles: pure.Parts, placement: Placement) -> pure.Joined | None:
    """Vectors of the variables of a small model, if its optimizer allows; copies stay apart."""
    held = (*roles.trainable, *roles.other, *roles.optimizer)
    if placement.has_copies or sum(math.prod(v.shape) for v in held) > SMALL:
        return None
    with tf.device(placement.names[0]):
        return pure.join(optimizer, roles)


class State:
    """The state of a built, compiled model: values by role.

    On one device, and on several that share their memory, it is the caller's own variables, or
    vectors of them, if they are `joined`. Else it is a copy on each device, made in the strategy's
    scope. `write_back` and `refresh` move values to and from the caller's objects.
    """

    def __init__(
        self,
        roles: pure.Parts,
        placement: Placement,
        *,
        with_ema: bool,
        joined: pure.Joined | None = None,
    ):
        self._placement = placement
        self._is_mirrored = placement.has_copies
        self._owners = {role: roles.natives(role) for role in ROLES}
        self._groups = {
            role: joined.numbers[role] if joined else [[i] for i in range(len(owners))]
            for role, owners in self._owners.items()
        }
        stored = joined.roles if joined else roles
        self._variables = {role: self._place(stored.natives(role)) for role in ROLES}
        self._variables["ema"] = self._copy(stored.natives("trainable") if with_ema else [])
        for of_owners in (self._owners, self._groups):
            of_owners["ema"] = of_owners["trainable"] if with_ema else []
        self._copies = {
            role: [self._copies_of(v) for v in variables]
            for role, variables in self._variables.items()
        }
        if joined:
            self.refresh()
            self._put("ema", self._owners["ema"])

    def owners(self, role: str) -> list[tf.Variable]:
        """The caller's variables."""
        return self._owners[role]

    def is_vector(self, role: str) -> bool:
        """Whether all values of a role are in one vector."""
        return len(self._groups[role]) == 1 and len(self._owners[role]) > 1

    def apart(self, role: str, values: list) -> list:
        """The values of the model's variables, of those that are stored: in vectors, if joined."""
        found: list = [None] * len(self._owners[role])
        for numbers, value in zip(self._groups[role], values, strict=True):
            if len(numbers) == 1:
                found[numbers[0]] = value
                continue
            shapes = [self._owners[role][i].shape for i in numbers]
            parts = tf.split(value, [shape.num_elements() for shape in shapes])
            for i, part, shape in zip(numbers, parts, shapes, strict=True):
                found[i] = tf.reshape(part, shape)
        return found

    def together(self, role: str, values: list) -> list:
        """Undoes `apart`."""
        return [
            values[numbers[0]]
            if len(numbers) == 1
            else tf.concat([tf.reshape(values[i], [-1]) for i in numbers], axis=0)
            for numbers in self._groups[role]
        ]

    def _place(self, owners: list[tf.Variable]) -> list[tf.Variable]:
        here = self._placement.names[0]
        # Variables made in the scope of a strategy belong to its replicas, not to these.
        is_here = not self._is_mirrored and all(
            v.device.endswith(here) and not isinstance(v, tf.distribute.DistributedValues)
            for v in owners
        )
        return owners if is_here else self._copy(owners)

    def _copy(self, variables: list[tf.Variable]) -> list[tf.Variable]:
        if not self._is_mirrored:
            with tf.device(self._placement.names[0]):
                return [tf.Variable(v.numpy(), dtype=v.dtype, trainable=False) for v in variables]
        with self._placement.scope():
            # Each replica assigns its own copy, all of them the same value: no communication.
            return [
                tf.Variable(
                    v.numpy(),
                    dtype=v.dtype,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for v in variables
            ]

    def _copies_of(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        if self._is_mirrored and self._placement.strategy is not None:
            return self._placement.strategy.experimental_local_results(variable)
        return (variable,)

    def read(self) -> dict[str, list[tf.Tensor]]:
        """Values in a step by role, on one replica."""
        return {role: [v.read_value() for v in owned] for role, owned in self._variables.items()}

    def first(self, role: str) -> list[tf.Tensor]:
        """Values on the first device."""
        return [copies[0].read_value() for copies in self._copies[role]]

    def assign(self, values: Mapping[str, list], before: Mapping[str, list]) -> list:
        """Writes what changed in a step (None, or the value that was read before, did not)."""
        return [
            variable.assign(value)
            for role, new in values.items()
            for variable, value, old in zip(self._variables[role], new, before[role], strict=True)
            if value is not None and value is not old
        ]

    def assign_changed(
        self,
        roles: pure.Parts,
        values: Mapping[int, tf.Tensor],
        before: Mapping[str, list],
        *,
        with_weights: bool = True,
    ) -> list:
        """Writes what a pass without an update changed. `values` are by variable id.

        Not `with_weights` where the pass ran with the average of the weights.
        """
        state = {"other": [values.get(id(v)) for v in roles.other]}
        if with_weights and any(id(v) in values for v in roles.trainable):
            given = self.apart("trainable", before["trainable"])
            new = [values.get(id(v), t) for v, t in zip(roles.trainable, given, strict=True)]
            state["trainable"] = self.together("trainable", new)
        return self.assign(state, before)

    def write_back(self, *roles: str) -> None:
        """Copies values from the devices to the caller's variables (all roles by default)."""
        for role in roles or ROLES:
            for numbers, copies in zip(self._groups[role], self._copies[role], strict=True):
                owners = [self._owners[role][i] for i in numbers]
                if len(owners) == 1 and owners[0] is copies[0]:
                    continue
                values = _cut(copies[0].numpy(), owners)
                for owner, value in zip(owners, values, strict=True):
                    owner.assign(value)

    def refresh(self, *roles: str) -> None:
        """Copies values from the caller's variables to every device (all roles by default)."""
        for role in roles or ROLES:
            self._put(role, self._owners[role])

    def _put(self, role: str, values: Sequence[Any]) -> None:
        for numbers, copies in zip(self._groups[role], self._copies[role], strict=True):
            own = [_local(values[i]) for i in numbers]
            value = own[0] if len(own) == 1 else np.concatenate([np.ravel(v) for v in own])
            for copy in copies:
                if copy is not value:
                    copy.assign(value)

    def arrays(self, role: str) -> list[np.ndarray]:
        """The values on the first device, in the order of the model's variables."""
        found: dict[int, np.ndarray] = {}
        for numbers, copies in zip(self._groups[role], self._copies[role], strict=True):
            owners = [self._owners[role][i] for i in numbers]
            found |= dict(zip(numbers, _cut(copies[0].numpy(), owners), strict=True))
        return [found[i] for i in range(len(found))]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of everything a step depends on, by role and number."""
        return {
            name: array
            for role in self._variables
            for name, array in zip(self._names(role), self.arrays(role), strict=True)
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts a snapshot back, on every device and in the caller's variables.

        State that no layer owns stays as it is if the snapshot is older than the code that keeps
        it: it comes last among `other`.
        """
        for role in ROLES:
            for name, owner in zip(self._names(role), self._owners[role], strict=True):
                if role != "other" or name in arrays:
                    owner.assign(arrays[name])
        self.refresh()
        self._put("ema", [arrays[name] for name in self._names("ema")])

    def _names(self, role: str) -> list[str]:
        return [f"{role}/{i:04d}" for i in range(len(self._owners[role]))]


def _local(value: Any) -> Any:
    """A strategy's variable as an array: it cannot be read on the replicas of another."""
    return value.numpy() if isinstance(value, tf.distribute.DistributedValues) else value


def _cut(values: np.ndarray, owners: Sequence[tf.Variable]) -> list[np.ndarray]:
    """The parts of a vector; the values themselves are those of one variable."""
    if len(owners) == 1:
        return [values]
    ends = np.cumsum([owner.shape.num_elements() for owner in owners])
    parts = np.split(values, ends[:-1])
    return [part.reshape(owner.shape) for part, owner in zip(parts, owners, strict=True)]
