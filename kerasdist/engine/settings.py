"""The settings of a compiled step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import keras

from kerasdist.models.own_steps.plans import StepPlan
from kerasdist.models.whole_batch.separation import Separation


@dataclass(frozen=True)
class Settings:
    """What a step depends on besides the model and the devices.

    Attributes:
        shards: The number of shards that a global batch is cut into.
        seed: For dropout and other random layers.
        deterministic: Whether the bits must not depend on the number of devices and workers.
        clip_norm: The largest global norm of the gradients; None does not clip.
        ema: The decay of the moving average of the weights; None keeps no average.
        class_weight: The weight of each class, as in Keras's `fit`.
        gather_metrics: Whether the metrics need the outputs for the whole batch at once, because
            they do not add up over shards.
        num_denominators: How many losses divide by something else than the number of examples.
        num_test_denominators: The same, in an evaluation.
        times_input: Whether to measure how long the loop waits for batches.
        jit: Whether XLA compiles the forward and backward pass.
        joins: Whether a small model may train as one vector.
        state_rules: How a variable that the forward pass changes adds up over shards, by its id.
        test_state_rules: The same, in evaluation and prediction.
        synchronizes: Whether layers take statistics over all replicas. Then a replica runs one
            shard.
        synchronizes_all: Whether every BatchNormalization does.
        own_steps: What is known about the steps that the model's class overrides, by method.
        whole_loss: How to compute a loss over the whole batch; None if the loss adds up over
            shards.
        whole_test_loss: The same, in an evaluation.
        drawn: The states of the seed generators that an evaluation or a prediction draws from.
    """

    shards: int
    seed: int = 0
    deterministic: bool = False
    clip_norm: float | None = None
    ema: float | None = None
    class_weight: dict[int, float] | None = None
    gather_metrics: bool = False
    num_denominators: int = 0
    num_test_denominators: int = 0
    times_input: bool = False
    jit: bool = False
    joins: bool = False
    state_rules: Mapping[int, str] = field(default_factory=dict)
    test_state_rules: Mapping[int, str] = field(default_factory=dict)
    synchronizes: bool = False
    synchronizes_all: bool = False
    own_steps: Mapping[str, StepPlan] = field(default_factory=dict)
    whole_loss: Separation | None = None
    whole_test_loss: Separation | None = None
    drawn: tuple[keras.Variable, ...] = ()

    @property
    def needs_whole(self) -> bool:
        """Whether each replica needs all rows of a batch."""
        losses = (self.whole_loss, self.whole_test_loss)
        return self.gather_metrics or any(loss is not None for loss in losses)
