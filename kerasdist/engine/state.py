"""The variables of a run on its devices: where they are, and how to read and write them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import Placement, fetched
from kerasdist.engine.compiled.counters import Counters
from kerasdist.engine.compiled.random_seeds import OfStep, Seed
from kerasdist.engine.shards import Inputs
from kerasdist.engine.sums import SMALL, Changed
from kerasdist.engine.transfer import copies
from kerasdist.errors import KerasdistError
from kerasdist.models import pure

ROLES = ("trainable", "other", "optimizer", "metrics")

Tensors = Sequence[tf.Tensor]
# Values by role ("trainable", "ema" and so on), as the state stores them. In new values, None
# stands for a value that did not change.
Values = Mapping[str, Sequence[tf.Tensor | None]]


@dataclass(frozen=True)
class Start:
    """The values that a step starts from, on one replica.

    `stored` has them as the state stores them, in the copy with the number `copy`. `trainable` and
    `optimizer` have one value for each variable of the model and of its optimizer.
    """

    stored: Values
    trainable: Tensors
    step: tf.Tensor
    seeds: OfStep
    optimizer: Tensors = ()
    scale: tf.Tensor | None = None
    copy: int = 0

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.trainable, self.stored["other"], self.seeds, self.scale)


class State:
    """The state of a built, compiled model: values by role.

    On one device, and on several that share memory, it consists of the caller's own variables, or
    of vectors of them if they are `joined`. Otherwise there is a copy on each device. The first one
    consists of the caller's own variables, if they are on that device: memory is scarce there.
    `write_back` and `refresh` copy values to and from the caller's objects.
    """

    def __init__(
        self,
        model: keras.Model,
        roles: pure.Parts,
        placement: Placement,
        *,
        seed: Seed,
        with_ema: bool,
        joined: pure.Joined | None = None,
    ):
        self._model, self._roles, self._placement, self._seed = model, roles, placement, seed
        self._devices = placement.devices if placement.has_copies else placement.devices[:1]
        self._owners = {role: roles.natives(role) for role in ROLES}
        self._groups = {
            role: joined.numbers[role] if joined else [[i] for i in range(len(owners))]
            for role, owners in self._owners.items()
        }
        stored = joined.roles if joined else roles
        self._copies = {
            role: copies.placed(stored.natives(role), self._devices, placement.names[0])
            for role in ROLES
        }
        averaged = stored.natives("trainable") if with_ema else []
        self._copies["ema"] = copies.copied(averaged, self._devices)
        self._owners["ema"] = self._owners["trainable"] if with_ema else []
        self._groups["ema"] = self._groups["trainable"] if with_ema else []
        if joined:
            self.begin()
        if placement.workers is not None:
            _, arrays = placement.workers.arrays_of_chief(None, self.snapshot())
            self.restore(arrays)

    def begin(self) -> None:
        """Takes the values of the caller's variables, and begins new averages with them."""
        for role in (*ROLES, "ema"):
            self._put(role, self._owners[role], write=copies.fill)

    @cached_property
    def counters(self) -> Counters:
        """Made when the model is trained: other models need not have an optimizer."""
        return Counters.of(self._model.optimizer, self._roles.optimizer)

    @property
    def is_small(self) -> bool:
        """Whether it is so few numbers that each operation on it costs more than copying it."""
        sizes = [v[0].shape.num_elements() for stored in self._copies.values() for v in stored]
        return None not in sizes and sum(sizes) <= SMALL

    @property
    def is_updated_in_place(self) -> bool:
        """Whether an update writes each variable as soon as it is computed: that saves memory."""
        return not self.is_small

    def is_vector(self, role: str) -> bool:
        """Whether all values of a role are in one vector."""
        return len(self._groups[role]) == 1 and len(self._owners[role]) > 1

    def apart(self, role: str, values: Tensors) -> Tensors:
        """One value for each of the model's variables, from the stored values."""
        if all(len(numbers) == 1 for numbers in self._groups[role]):
            return values
        found: dict[int, tf.Tensor] = {}
        for numbers, value in zip(self._groups[role], values, strict=True):
            if len(numbers) == 1:
                found[numbers[0]] = value
                continue
            shapes = [self._owners[role][i].shape for i in numbers]
            parts = tf.split(value, [shape.num_elements() for shape in shapes])
            for i, part, shape in zip(numbers, parts, shapes, strict=True):
                found[i] = tf.reshape(part, shape)
        return [found[i] for i in range(len(found))]

    def together(self, role: str, values: Tensors) -> list[tf.Tensor]:
        """The values to store, from one for each of the model's variables."""
        return [
            values[numbers[0]]
            if len(numbers) == 1
            else tf.concat([tf.reshape(values[i], [-1]) for i in numbers], axis=0)
            for numbers in self._groups[role]
        ]

    def variables(self, role: str, copy: int) -> list[tf.Variable]:
        """The stored variables of a role, in the copy with this number."""
        return [placed[copy] for placed in self._copies[role]]

    def read(self, copy: int = 0) -> Values:
        """The stored values, in the copy with this number, inside a step."""
        late = ("optimizer", "ema") if self.is_updated_in_place else ()
        return {
            role: copies.Reads(self.variables(role, copy))
            if role in late
            else [v.read_value() for v in self.variables(role, copy)]
            for role in self._copies
        }

    def start(self, stored: Values, copy: int = 0) -> Start:
        """What a training step starts from."""
        trainable = self.apart("trainable", stored["trainable"])
        optimizer = self.apart("optimizer", stored["optimizer"])
        step = tf.cast(optimizer[self.counters.updates], tf.int64)
        seeds, scale = self._seed.of_step(step), self.counters.scale(optimizer)
        return Start(stored, trainable, step, seeds, optimizer, scale, copy)

    def start_own(self, stored: Values, copy: int = 0) -> Start:
        """What a `train_step` of the model's class starts from. It counts its steps itself."""
        counter = pure.step_counter(self._model)
        place = next(i for i, v in enumerate(self._roles.other) if v is counter)
        trainable, number = list(stored["trainable"]), stored["other"][place]
        seeds = self._seed.of_step(number)
        return Start(stored, trainable, number, seeds, stored["optimizer"], copy=copy)

    def start_without_update(
        self, stored: Values, copy: int = 0, *, number: tf.Tensor, use_ema: bool = False
    ) -> Start:
        """What a step of an evaluation or a prediction starts from. `number` is its batch's."""
        trainable = list(self.apart("trainable", stored["ema" if use_ema else "trainable"]))
        seeds = self._seed.of_step(number)
        return Start(stored, trainable, number, seeds, stored["optimizer"], copy=copy)

    def first(self, role: str) -> Tensors:
        """The values on the first device."""
        return self.apart(role, [placed[0].read_value() for placed in self._copies[role]])

    def assign(self, values: Values, start: Start) -> list[tf.Operation]:
        """Writes the values that changed: neither None nor the value that was read before."""
        return [
            placed[start.copy].assign(value)
            for role, new in values.items()
            if new is not start.stored[role]
            for placed, value, old in zip(self._copies[role], new, start.stored[role], strict=True)
            if value is not None and value is not old
        ]

    def assign_changed(
        self, changed: Changed, start: Start, *, with_weights: bool = True
    ) -> list[tf.Operation]:
        """Writes the variables that a forward pass changed in a step without an update.

        `with_weights` is off if the pass ran with the moving average of the weights.
        """
        roles = self._roles
        state: dict[str, list[tf.Tensor | None]] = {
            "other": [changed.get(id(v)) for v in roles.other]
        }
        if with_weights and any(id(v) in changed for v in roles.trainable):
            given = self.apart("trainable", start.stored["trainable"])
            new = [changed.get(id(v), t) for v, t in zip(roles.trainable, given, strict=True)]
            state["trainable"] = list(self.together("trainable", new))
        return self.assign(state, start)

    def free_copies(self) -> None:
        """Frees the memory of copies, vectors and averages, after a last `write_back`."""
        own = {id(owner) for role in ROLES for owner in self._owners[role]}
        copies.free(itertools.chain.from_iterable(self._copies.values()), own)

    def write_back(self, *roles: str) -> None:
        """Copies values from the devices to the caller's variables (all roles by default)."""
        for role in roles or ROLES:
            for numbers, placed in zip(self._groups[role], self._copies[role], strict=True):
                owners = [self._owners[role][i] for i in numbers]
                if len(owners) == 1 and owners[0] is placed[0]:
                    continue
                values = _cut(_array(placed[0]), owners)
                for owner, value in zip(owners, values, strict=True):
                    owner.assign(value)

    def refresh(self, *roles: str) -> None:
        """Copies values from the caller's variables to every device (all roles by default)."""
        for role in roles or ROLES:
            self._put(role, self._owners[role])

    def _put(
        self,
        role: str,
        values: Sequence[Any],
        write: Callable[[tf.Variable, Any], object] = copies.assign,
    ) -> None:
        for numbers, placed in zip(self._groups[role], self._copies[role], strict=True):
            own = [_local(values[i]) for i in numbers]
            value = own[0] if len(own) == 1 else np.concatenate([np.ravel(v) for v in own])
            for copy in placed:
                if copy is not value:
                    write(copy, value)

    def arrays(self, role: str) -> list[np.ndarray]:
        """The values on the first device, in the order of the model's variables."""
        found: dict[int, np.ndarray] = {}
        for numbers, placed in zip(self._groups[role], self._copies[role], strict=True):
            owners = [self._owners[role][i] for i in numbers]
            found |= dict(zip(numbers, _cut(_array(placed[0]), owners), strict=True))
        return [found[i] for i in range(len(found))]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of everything a step depends on, by role and number."""
        return {
            name: array
            for role in self._copies
            for name, array in zip(self._names(role), self.arrays(role), strict=True)
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies a snapshot to every device and to the caller's variables.

        A snapshot of an older version may lack state that no layer owns, which comes last among
        `other`. Such state keeps its values.
        """
        self._check(arrays)
        for role in ROLES:
            for name, owner in zip(self._names(role), self._owners[role], strict=True):
                if role != "other" or name in arrays:
                    owner.assign(arrays[name])
        self.refresh()
        self._put("ema", [arrays[name] for name in self._names("ema")])

    def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuses a snapshot of other variables before any of them is written."""
        for role in (*ROLES, "ema"):
            for name, owner in zip(self._names(role), self._owners[role], strict=True):
                found = arrays.get(name)
                if found is None and role == "other":
                    continue
                if found is None or not owner.shape.is_compatible_with(found.shape):
                    shape = "no array" if found is None else f"an array of shape {found.shape}"
                    raise KerasdistError(
                        f"The checkpoint has {shape} for {owner.name!r} ({name}) of shape "
                        f"{tuple(owner.shape)}. Expected the model that was saved. Build the model "
                        "as it was when the run started."
                    )

    def _names(self, role: str) -> list[str]:
        return [f"{role}/{i:04d}" for i in range(len(self._owners[role]))]


def _array(variable: tf.Variable) -> np.ndarray:
    return fetched(variable.read_value()).numpy()


def _local(value: Any) -> Any:
    """An array for a strategy's variable, which the replicas of another strategy cannot read."""
    return value.numpy() if isinstance(value, tf.distribute.DistributedValues) else value


def _cut(values: np.ndarray, owners: Sequence[tf.Variable]) -> list[np.ndarray]:
    """The values of each variable in a vector; one variable is not in a vector."""
    if len(owners) == 1:
        return [values]
    ends = np.cumsum([owner.shape.num_elements() for owner in owners])
    parts = np.split(values, ends[:-1])
    return [part.reshape(owner.shape) for part, owner in zip(parts, owners, strict=True)]
