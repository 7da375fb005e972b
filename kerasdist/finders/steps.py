"""Training steps on trial, by the real engine: nothing is kept, the model is as it was before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from kerasdist.data.feed import Feed
from kerasdist.devices.placement import Placement
from kerasdist.engine import sums
from kerasdist.engine.compiled_loop import END_OF_DATA, Outcome
from kerasdist.engine.engine import Engine
from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.training import preparation
from kerasdist.training.epochs.validation import reset_metrics
from kerasdist.training.options import TrainingOptions


class Steps:
    """Trains step after step, in as many passes over the data as it takes.

    Attributes:
        num_examples: The examples of a pass; None if that is not known.
        batch_size: Examples per step; None if the data has batches of its own.
        num_passes: How many passes are over.
    """

    def __init__(self, engine: Engine, feed: Feed):
        self._engine, self._feed = engine, feed
        self._reports_means = pure.overrides(engine.model, "train_step")
        self.num_examples = feed.stream.num_examples
        self.batch_size = feed.stream.batch_size
        self.num_passes = 0
        feed.open(0)

    def run(self, num_steps: int) -> Outcome:
        """Runs up to `num_steps` steps in one call. None at all: the data can be read only once."""
        for _ in range(2):
            passes = self.num_passes
            outcome = self.run_in_pass(num_steps)
            is_used_up = self.num_passes > passes and self._feed.stream.is_one_shot
            if outcome.num_steps or outcome.status != END_OF_DATA or is_used_up:
                return outcome
        return outcome

    def run_in_pass(self, num_steps: int) -> Outcome:
        """The same, but without steps of the next pass. That one is opened if this one is over."""
        if self._reports_means:  # A `train_step` returns means since the last reset.
            reset_metrics(self._engine)
        calls = self._engine.placement.calls
        calls.begin("train")
        outcome = self._engine.train(self._feed.batches, num_steps)
        calls.end(outcome.num_steps)
        self._feed.advance(outcome.num_steps)
        if outcome.status == END_OF_DATA and self._feed.is_over():
            self.num_passes += 1
            if not self._feed.stream.is_one_shot:
                self._feed.open(self._feed.epoch + 1)
        return outcome

    def restart_pass(self) -> bool:
        """Begins a pass without anything that was read ahead; False if the data cannot do that."""
        stream = self._feed.stream
        if stream.is_one_shot or stream.is_forward_only:
            return False
        self._feed.open(self._feed.epoch + 1)
        return True

    @property
    def num_batches(self) -> int | None:
        """The batches of a pass; None if that is not known."""
        return self._feed.stream.num_batches

    @property
    def has_loss_scale(self) -> bool:
        """Whether a step may be not finite because a float16 loss scale is too large."""
        kind = keras.optimizers.LossScaleOptimizer
        return any(isinstance(each, kind) for each in pure.optimizers_of(self._engine.model))

    def leave_out_short_batch(self) -> None:
        """Goes to the next pass if all that is left of this one is a batch of fewer examples."""
        feed, size, count = self._feed, self.batch_size, self.num_examples
        if feed.stream.is_one_shot or not size or not count:
            return
        whole, rest = divmod(count, size)
        if whole and rest and feed.position >= whole:
            feed.open(feed.epoch + 1)

    def skip(self) -> None:
        """Leaves out the batch of a step that was not finite."""
        self._feed.advance(1)


@contextlib.contextmanager
def steps_of(
    options: TrainingOptions,
    placement: Placement,
    before: Callable[[keras.Model], None] | None = None,
) -> Iterator[Steps]:
    """The steps of a training. Afterwards, a model that the caller gave has its values again.

    Args:
        options: The training. What it would keep and show is ignored.
        placement: The devices.
        before: Changes the model, which is built and compiled, before anything else is made of it.
    """
    if placement.workers is not None:
        raise KerasdistError(
            "The finders were started on several workers. Expected one process: they try things "
            "out on the devices of one machine. Start them without `launch`, and use what they "
            "find with `launch`."
        )
    with placement.guarded(), contextlib.ExitStack() as stack:
        given = options.source.model
        if pure.is_model(given):
            stack.enter_context(_compiled_as_before(given))
        prepared = preparation.prepare(stack, options, placement)
        if before is not None:
            before(prepared.model)
        stack.enter_context(sums.fixed_graphs(options.step.deterministic, placement.is_gpu))
        settings = preparation.settings(options, prepared)
        engine = Engine(prepared.model, prepared.placement, settings)
        if pure.is_model(given):
            stack.enter_context(_values_as_before(given))
        stack.callback(engine.close)
        yield Steps(engine, prepared.data.feed)


@contextlib.contextmanager
def _compiled_as_before(model: keras.Model) -> Iterator[None]:
    optimizer = getattr(model, "optimizer", None)
    try:
        yield
    finally:
        if optimizer is not None:
            model.optimizer = optimizer


@contextlib.contextmanager
def _values_as_before(model: keras.Model) -> Iterator[None]:
    variables: dict[int, Any] = {}
    owned = [*model.variables, *model.metrics_variables]
    for optimizer in pure.optimizers_of(model):
        owned += optimizer.variables
    for variable in owned:
        variables.setdefault(id(variable), (variable, np.array(variable)))
    try:
        yield
    finally:
        for variable, value in variables.values():
            variable.assign(value)
