"""Stages of one training: after some epochs the model is changed, compiled again and trained on.

For example, a backbone is frozen first. Each stage has its own optimizer and compiled step. All of
them are one run: one count of steps and epochs, one history, one folder.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasdist.devices.placement import Placement
from kerasdist.errors import KerasdistError
from kerasdist.recipes.recipe import Recipe
from kerasdist.runs.checkpoints.inherited import kept_stage
from kerasdist.runs.lock import RunLock
from kerasdist.training.epochs.plan import Position
from kerasdist.training.options import ModelSource, Stage, TrainingOptions


@dataclass(frozen=True)
class TakenOver:
    """What a stage takes over from the one before it, besides the model.

    Attributes:
        at: Where the training is.
        history: The logs of the epochs so far.
        epochs: The epochs so far.
        best: The monitored value of best.keras.
    """

    at: Position
    history: dict[str, list[Any]]
    epochs: list[int]
    best: float | None


# Trains one stage. Returns what the next one takes over and the model, or the final history.
TrainStage = Callable[
    [TrainingOptions, Placement, TakenOver | None],
    tuple[keras.callbacks.History, TakenOver],
]


def stages_of(recipe: Recipe) -> list[Stage]:
    """The later stages that a recipe's `build_stages(config)` returns, checked."""
    found = recipe.build_stages()
    try:
        stages = [Stage(after, change) for after, change in found]
    except (TypeError, ValueError):
        raise KerasdistError(
            f"Received {found!r} from `build_stages` of the recipe {recipe.name!r}. Expected pairs "
            "of a number of epochs and a function, such as [(3, unfreeze)]. Correct the function."
        ) from None
    check_stages(stages)
    return stages


def check_stages(stages: Sequence[Stage]) -> None:
    """Each must begin after the one before it."""
    before = 0
    for stage in stages:
        is_whole = isinstance(stage.after, int) and not isinstance(stage.after, bool)
        if not is_whole or stage.after <= before or not callable(stage.change):
            raise KerasdistError(
                f"Received the stage ({stage.after!r}, {stage.change!r}). Expected after how many "
                "epochs it begins, more than for the stage before it, and a function that changes "
                "the model and compiles it. Correct `build_stages` of the recipe."
            )
        before = stage.after


def train_in_stages(
    options: TrainingOptions, placement: Placement, train_stage: TrainStage
) -> keras.callbacks.History:
    """Trains all stages that are left, from the one of the newest checkpoint on."""
    keeping = options.keeping
    own = kept_stage(keeping.earlier) if keeping.earlier and placement.is_chief else 0
    (first,) = placement.of_chief(min(own, len(options.stages)))
    # A stage that would begin at the end, or later, is not entered: with more epochs, the run goes
    # on where it is.
    stages = [s for i, s in enumerate(options.stages) if i < first or options.plan.reaches(s.after)]
    options = replace(options, stages=stages)
    source, taken = options.source, None
    if first:  # The checkpoint has all weights.
        source = ModelSource(_changed(source.model, stages[:first]), source.precision)
    with contextlib.ExitStack() as stack:
        if keeping.folder is not None:
            stack.enter_context(RunLock(keeping.folder.path))  # Of all stages together.
            keeping = replace(keeping, is_locked=True)
        for number in range(first, len(stages) + 1):
            stage = replace(options, source=source, keeping=keeping, stage=number)
            if number < len(stages):
                plan = options.plan
                last = min(stages[number].after, plan.max_epochs or stages[number].after)
                stage = replace(stage, plan=replace(plan, max_epochs=last))
            history, taken = train_stage(stage, placement, taken)
            if options.plan.has_all_steps(taken.at.step):
                break
            if number < len(stages):
                model = history.model
                stages[number].change(model)
                _check_compiled(model, number)
                source = ModelSource(model, source.precision)
    return history


def _changed(build: Any, stages: Sequence[Stage]) -> Callable[[], keras.Model]:
    """The function that builds the model as it is in a later stage."""

    def build_changed() -> keras.Model:
        model = build() if callable(build) and not isinstance(build, keras.Model) else build
        for number, stage in enumerate(stages):
            stage.change(model)
            _check_compiled(model, number)
        return model

    return build_changed


def _check_compiled(model: keras.Model, number: int) -> None:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or optimizer.built:
        raise KerasdistError(
            f"The function of stage {number + 2} did not compile the model again. Expected "
            "`model.compile` with a new optimizer: the old one has the state of other weights. "
            "Compile the model in the function."
        )


def seed_of_stage(seed: int, stage: int) -> int:
    """The seed for dropout and the like. Each stage counts its steps from 0."""
    if not stage:
        return seed
    digest = hashlib.sha256(f"{seed} stage {stage}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
