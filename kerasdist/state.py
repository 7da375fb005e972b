"""The variables of a run on its devices: where they are, and how values get in and out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from kerasdist import pure
from kerasdist.devices import Placement

ROLES = ("trainable", "other", "optimizer", "metrics")


class State:
    """The state of a built, compiled model: values by role.

    On one device, and on several that share their memory, it is the caller's own variables. Else it
    is a copy on each device, made in the strategy's scope; `write_back` and `refresh` move values
    to and from the caller's objects.
    """

    def __init__(self, roles: pure.Parts, placement: Placement, *, with_ema: bool):
        self._placement = placement
        self._is_mirrored = placement.strategy is not None and not placement.shares_memory
        self._owners = {role: roles.natives(role) for role in ROLES}
        self._variables = {role: self._place(owners) for role, owners in self._owners.items()}
        averages = self._owners["trainable"] if with_ema else []
        self._variables["ema"] = self._copy(averages)
        self._copies = {
            role: [self._copies_of(v) for v in variables]
            for role, variables in self._variables.items()
        }

    def __getitem__(self, role: str) -> list[tf.Variable]:
        return self._variables[role]

    def _place(self, owners: list[tf.Variable]) -> list[tf.Variable]:
        here = self._placement.names[0]
        is_here = not self._is_mirrored and all(v.device.endswith(here) for v in owners)
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

    def write_back(self, *roles: str) -> None:
        """Copies values from the devices to the caller's variables (all roles by default)."""
        for role in roles or ROLES:
            for owner, copies in zip(self._owners[role], self._copies[role], strict=True):
                if owner is not copies[0]:
                    owner.assign(copies[0])

    def refresh(self, *roles: str) -> None:
        """Copies values from the caller's variables to every device (all roles by default)."""
        for role in roles or ROLES:
            for owner, copies in zip(self._owners[role], self._copies[role], strict=True):
                for copy in copies:
                    if owner is not copy:
                        copy.assign(owner)

    def arrays(self, role: str) -> list[np.ndarray]:
        return [copies[0].numpy() for copies in self._copies[role]]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of everything a step depends on, by role and number."""
        return {
            name: array
            for role in self._variables
            for name, array in zip(self._names(role), self.arrays(role), strict=True)
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts a snapshot back, on every device and in the caller's variables."""
        for role in ROLES:
            for name, owner in zip(self._names(role), self._owners[role], strict=True):
                owner.assign(arrays[name])
        self.refresh()
        for name, copies in zip(self._names("ema"), self._copies["ema"], strict=True):
            for copy in copies:
                copy.assign(arrays[name])

    def _names(self, role: str) -> list[str]:
        return [f"{role}/{i:04d}" for i in range(len(self._variables[role]))]
