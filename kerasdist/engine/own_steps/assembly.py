"""Chooses the steps of a model: Keras's, or those that its class overrides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled.random_seeds import Seed
from kerasdist.engine.compiled_loop import Outcome, StepResult
from kerasdist.engine.own_steps.functions import StepFunctions
from kerasdist.engine.own_steps.steps import OwnParts, own_predict_step, own_step
from kerasdist.engine.settings import Settings
from kerasdist.engine.state import State
from kerasdist.engine.sums import AddUpShards, looped
from kerasdist.engine.transfer import exchange
from kerasdist.models import pure


def roles_of(model: keras.Model, settings: Settings) -> pure.Parts:
    """The model's variables. A step of its own may use more of them than Keras's steps do."""
    return pure.own_parts(model) if settings.own_steps else pure.parts(model)


class OwnSteps:
    """The steps that a model's class overrides, by method. Each is compiled when it is used."""

    def __init__(
        self,
        model: keras.Model,
        roles: pure.Parts,
        placement: Placement,
        settings: Settings,
        state: State,
        seed: Seed,
    ):
        self._model, self._roles, self._placement = model, roles, placement
        self._settings, self._state, self._seed = settings, state, seed
        self._made: dict[str, OwnParts] = {}
        # What each step returned last.
        self.last_logs: dict[str, Any] = {}

    def has(self, method: str) -> bool:
        return method in self._settings.own_steps

    def step(self, method: str) -> Callable[..., StepResult]:
        """`step(replica, batch, start)` of a `train_step` or `test_step`."""
        return partial(own_step, self._parts(method))

    def prediction(self) -> Callable[..., tuple[Any, tf.Tensor]]:
        """`step(replica, batch, start)` of a `predict_step`."""
        return partial(own_predict_step, self._parts("predict_step"))

    def logs(self, method: str) -> list[tf.TensorSpec]:
        """The leaves that a step gives to the loop."""
        plan = self._settings.own_steps.get(method)
        return plan.leaves if plan is not None and plan.needs_logs else []

    def keep_logs(self, method: str, outcome: Outcome, leaves: Sequence[tf.Tensor]) -> None:
        """Remembers what the last step of a call returned."""
        if leaves and outcome.num_steps:
            plan = self._settings.own_steps[method]
            self.last_logs[method] = tf.nest.pack_sequence_as(plan.returned, list(leaves))

    def checked_names(self) -> tuple[str, ...]:
        """The names of everything that must be finite before a step is written."""
        plan = self._settings.own_steps["train_step"]
        paths = {id(v): v.path for v in (*self._roles.trainable, *self._roles.other)}
        state = [paths[key] for key in plan.changed if key not in plan.same and key in paths]
        return (*plan.gradient_names, *(f"state {path}" for path in state))

    def _parts(self, method: str) -> OwnParts:
        if method not in self._made:
            settings, placement = self._settings, self._placement
            plan = settings.own_steps[method]
            fixed = settings.deterministic
            add_up: AddUpShards = partial(looped, fixed_order=fixed, host=placement.host)
            self._made[method] = OwnParts(
                self._model,
                self._roles,
                placement,
                settings,
                self._state,
                StepFunctions(self._model, self._roles, settings, plan, placement, self._seed),
                add_up,
                exchange.reduction(placement, fixed_order=fixed),
            )
        return self._made[method]
