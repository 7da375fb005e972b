"""What is known about a model's own step before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

# How a value that a step returns is computed from those of the shards. RESULT: it is the result of
# a metric, which is computed again from the metric's new state. MEAN: the mean, weighted by
# examples. SAME: it does not depend on the examples.
RESULT, MEAN, SAME = "result", "mean", "same"


@dataclass(frozen=True)
class StepPlan:
    """What a trace of a step found.

    Attributes:
        method: "train_step", "test_step" or "predict_step".
        meetings: For each time that the step takes gradients for weights: which of them exist.
        num_denominators: How many losses divide by something else than the number of examples.
        changed: Ids of the variables that it changes, without those of metrics.
        same: Those of them whose new values do not depend on the examples, but through gradients.
        returned: `tf.TensorSpec`s in the structure of what the step returns.
        kinds: `RESULT`, `MEAN` or `SAME` for each leaf of it.
        results: The metric of a `RESULT`, and the number of the value among the metric's results.
        needs_logs: Whether the step returns other values than the model's list of metrics has.
        gradient_names: The names of the gradients that are added up.
        random_operations: Names of the operations that draw from a random state in TensorFlow.
        synchronizes: Whether a layer asks for the statistics of all replicas.
        must_be_whole: Why the step cannot be cut into shards; "" if it can.
        is_compared: Whether a batch was compared with parts of it to tell that.
    """

    method: str
    meetings: tuple[tuple[bool, ...], ...]
    num_denominators: int
    changed: tuple[int, ...]
    same: frozenset[int]
    returned: Any
    kinds: tuple[str, ...]
    results: Mapping[int, tuple[keras.metrics.Metric, int]] = field(default_factory=dict)
    needs_logs: bool = True
    gradient_names: tuple[str, ...] = ()
    random_operations: tuple[str, ...] = ()
    synchronizes: bool = False
    must_be_whole: str = ""
    is_compared: bool = False

    @property
    def leaves(self) -> list[tf.TensorSpec]:
        return tf.nest.flatten(self.returned)

    @property
    def loss_place(self) -> int | None:
        """The number of the returned value that is shown as the loss of a step."""
        if not isinstance(self.returned, Mapping):
            return None
        names = sorted(self.returned)  # The order of `tf.nest`.
        scalars = [n for n in names if getattr(self.returned[n], "shape", None) == ()]
        losses = [n for n in scalars if "loss" in n] or scalars
        chosen = "loss" if "loss" in scalars else next(iter(losses), None)
        if chosen is None or len(tf.nest.flatten(self.returned)) != len(names):
            return None
        return names.index(chosen)
