"""The engine: the state of a run on its devices, and the compiled loops that change it.

For one training step, from a batch to new weights, read `train_step.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement, fetched, on_host
from kerasdist.engine import compiled_loop, finite, observations
from kerasdist.engine.compiled import parts
from kerasdist.engine.compiled.random_seeds import Seed
from kerasdist.engine.compiled_loop import (
    END_OF_DATA,
    NOT_FINITE,
    REACHED,
    Outcome,
    StepResult,
    over_batches,
)
from kerasdist.engine.inference_steps import Draws, evaluate_step, predict_step
from kerasdist.engine.own_steps.assembly import OwnSteps, roles_of
from kerasdist.engine.settings import Settings
from kerasdist.engine.shard_functions import ShardFunctions
from kerasdist.engine.shards import Number
from kerasdist.engine.state import Start, State
from kerasdist.engine.train_step import Details, first_of
from kerasdist.engine.transfer.batches import Batches, DeviceBatches, HostBatches, Source
from kerasdist.engine.transfer.replicas import on_replicas
from kerasdist.models import pure
from kerasdist.models.tensors.composites import as_result, concatenated, only_dense


class Engine:
    """Owns the state of a built, compiled model on its devices, and runs steps on it.

    Args:
        model: The model, built and compiled. To predict, it need not be compiled.
        placement: The devices.
        settings: What the step depends on besides these.
    """

    def __init__(self, model: keras.Model, placement: Placement, settings: Settings):
        self.model, self.placement, self.settings = model, placement, settings
        self.roles = roles_of(model, settings)
        self._seed_generator = pure.share_global_seed_generator()
        self.seed = Seed(settings.seed)
        self.calls = placement.calls
        self.vectors = parts.vectors(model, self.roles, placement, settings)
        self.state = State(
            model,
            self.roles,
            placement,
            seed=self.seed,
            with_ema=settings.ema is not None,
            joined=self.vectors,
        )
        self.functions = ShardFunctions(
            model,
            self.roles,
            settings,
            placement=placement,
            seed=self.seed,
            is_joined=self.vectors is not None,
            is_packed=self._is_packed(),
        )
        self.draws = Draws(settings.drawn, placement)
        self._own = OwnSteps(model, self.roles, placement, settings, self.state, self.seed)
        self._to_train, self._to_test = self._batches(), self._batches()
        self._parts = parts.step_parts(
            model, self.roles, placement, settings, self.state, self.functions
        )
        self.train_loop = compiled_loop.compiled(self._train_loop)
        self.observed_step = compiled_loop.compiled(self._observed_step)
        self.test_loop = compiled_loop.compiled(self._test_loop)
        self.predict_loop = compiled_loop.compiled(self._predict)

    def _is_packed(self) -> bool:
        """Whether the terms of a step are packed into vectors: saves operations, takes memory."""
        is_large = self.placement.is_gpu and not self.state.is_small
        return self.vectors is not None or (self.settings.shards > 1 and not is_large)

    def _batches(self) -> Batches:
        settings = self.settings
        if not self.placement.is_gpu:
            # Multi-worker batches have no known size. So deterministic runs ignore it everywhere.
            return HostBatches(of_one_size=not settings.deterministic)
        return DeviceBatches(self.placement, settings.shards, needs_whole=settings.needs_whole)

    @cached_property
    def _training(self) -> Callable[..., tuple[StepResult, Details]]:
        """Made when the model is trained: other models need not have an optimizer."""
        return parts.training(self._parts, self.roles, self.vectors)

    def ema_weights(self) -> list[Any]:
        """Arrays in the order of `model.get_weights()`, with averages for the trainable weights."""
        self.state.write_back("trainable", "other")
        owners = [id(variable) for variable in self.roles.trainable]
        averages = dict(zip(owners, self.state.arrays("ema"), strict=True))
        return [averages[id(v)] if id(v) in averages else v.numpy() for v in self.model.weights]

    @property
    def takes_one_batch_a_call(self) -> bool:
        """Whether a call may run one step only.

        Within one call, workers can gather outputs of one fixed size only (TF 2.21).
        """
        return self.settings.needs_whole and self.placement.workers is not None

    def train(self, batches: Source, num_steps: int) -> Outcome:
        """Runs up to `num_steps` steps; fewer at the end of the data or if a step is not finite."""
        source = self._to_train.source(batches)
        found = fetched(self.train_loop(source, on_host(num_steps)))
        *results, waited, staged, rate = found[:8]
        self._to_train.keep(staged)
        outcome = self._outcome(*results)
        self._own.keep_logs("train_step", outcome, found[8:])
        return replace(outcome, waited=float(waited), learning_rate=float(rate))

    def train_observed(self, batches: Source) -> Outcome:
        """Runs one step as `train` does, and returns what a summary shows of it."""
        began = time.perf_counter()
        found = self._to_train.next(batches)
        if found is None:
            return Outcome(0, 0, END_OF_DATA, 0.0)
        waited = time.perf_counter() - began
        status, examples, loss, flags, replicas = self.observed_step(found)
        done = int(status == REACHED)
        outcome = self._outcome(done, done * examples, status, loss, flags)
        if not done:
            return outcome
        # This traces nothing new: the function was just called with a batch of this kind.
        concrete = self.observed_step.get_concrete_function
        seen = observations.observation(
            self.model,
            outcome.loss,
            observations.with_other_workers(replicas, self.placement.workers),
            observations.float_weights(self.roles, self.state),
            lambda: concrete(found).graph.as_graph_def(add_shapes=True),
        )
        return replace(outcome, seen=seen, waited=waited, learning_rate=seen.learning_rate)

    def _outcome(
        self,
        steps: tf.Tensor,
        examples: tf.Tensor,
        status: tf.Tensor,
        loss: tf.Tensor,
        flags: tf.Tensor,
    ) -> Outcome:
        names: tuple[str, ...] = ()
        replica = None
        if int(status) == NOT_FINITE:
            is_own = self._own.has("train_step")
            known = self._own.checked_names() if is_own else self.functions.terms.checked_names
            names, replica = finite.not_finite(flags.numpy(), known, self.placement)
        return Outcome(int(steps), int(examples), int(status), float(loss), names, replica)

    def test(self, batches: Source, num_steps: int, *, use_ema: bool = False) -> Outcome:
        """Updates the metrics over up to `num_steps` batches. The weights do not change."""
        source = self._to_test.source(batches)
        results = fetched(self.test_loop(source, on_host(num_steps), use_ema))
        steps, examples, status, *_, staged = results[:7]
        self._to_test.keep(staged)
        outcome = Outcome(int(steps), int(examples), int(status), float("nan"))
        self._own.keep_logs("test_step", outcome, results[7:])
        return outcome

    def last_logs(self, method: str) -> Any:
        """What the model's own step returned last."""
        return self._own.last_logs.get(method)

    def predict(self, batch: Any) -> Any:
        """The outputs for one global batch, in its order, as arrays."""
        pieces = [
            keras.tree.map_structure(lambda t, n=int(count): as_result(fetched(t), n), outputs)
            for outputs, count in self.predict_loop(batch)
        ]
        own = keras.tree.map_structure(lambda *parts: concatenated(parts), *pieces)
        workers = self.placement.workers
        if workers is None:
            return own
        return keras.tree.map_structure(lambda t: workers.join_rows(only_dense(t)), own)

    def reopen(self, placement: Placement, seed: int) -> None:
        """Begins again after `close`, with another seed and the caller's newest values.

        `placement` has the same devices, and watches over the calls of the next training.
        """
        self.calls = placement.calls
        self.seed.assign(seed)
        self.state.begin()
        self._own.last_logs.clear()

    def close(self) -> None:
        """Frees batches that wait on GPUs for the next step, and copies of the state."""
        self._to_train.clear()
        self._to_test.clear()
        self.state.free_copies()

    def _train_loop(self, batches: Source, num_steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        is_own = self._own.has("train_step")
        step = self._own.step("train_step") if is_own else first_of(self._training)
        start: Callable[..., Start] = self.state.start_own if is_own else self.state.start

        def run(batch: Any) -> StepResult:
            results = self._run(step, batch, start)
            return results[0]._replace(flags=self._flags([result.flags for result in results]))

        with pure.patched():
            results = over_batches(
                batches,
                num_steps,
                run,
                self._to_train,
                times_input=self.settings.times_input,
                logs=self._own.logs("train_step"),
            )
            optimizer, values = pure.main_optimizer(self.model), self.state.first("optimizer")
            rate = compiled_loop.last_learning_rate(optimizer, self.roles.optimizer, values)
            return *results[:7], rate, *results[7:]

    def _observed_step(self, found: Any) -> tuple[Any, ...]:
        step = self._training
        observer = observations.Observer(
            self.model, self.roles, self.placement, self.functions.terms
        )

        def run(replica: Number, batch: Any, start: Start) -> tuple[StepResult, dict[str, Any]]:
            result, details = step(replica, batch, start, observed=True)
            return result, observer.look(replica, batch, start, details)

        with pure.patched():
            results = self._run(run, self._to_train.first(found), self.state.start)
        status, count, loss, *_ = results[0][0]
        flags = self._flags([result.flags for result, _ in results])
        return status, count, loss, flags, [seen for _, seen in results]

    def _flags(self, of_replicas: list[tf.Tensor]) -> tf.Tensor:
        """`[replicas, tensors]`: what is finite. Replicas that share memory return all rows."""
        return of_replicas[0] if self.placement.shares_memory else tf.concat(of_replicas, axis=0)

    def _test_loop(
        self, batches: Source, num_steps: tf.Tensor, use_ema: bool
    ) -> tuple[tf.Tensor, ...]:
        step: Callable[..., StepResult] = partial(evaluate_step, self._parts, use_ema=use_ema)
        step = self._own.step("test_step") if self._own.has("test_step") else step

        def run(batch: Any) -> StepResult:
            number, begin = self.draws.next(), self.state.start_without_update
            return self._run(step, batch, partial(begin, number=number, use_ema=use_ema))[0]

        with pure.patched():
            return over_batches(
                batches,
                num_steps,
                run,
                self._to_test,
                logs=self._own.logs("test_step"),
            )

    def _predict(self, batch: Any) -> tuple[tuple[Any, tf.Tensor], ...]:
        with pure.patched():
            own = self._own.prediction() if self._own.has("predict_step") else None
            step = own or partial(predict_step, self._parts)
            if self.placement.is_gpu:
                is_fixed = self.settings.deterministic
                shards = self.settings.shards if is_fixed else self.placement.num_replicas
                batch = DeviceBatches(self.placement, shards).parts(batch)
            start = partial(self.state.start_without_update, number=self.draws.next())
            return self._run(step, batch, start)

    def _run(
        self,
        step: Callable[[Number, Any, Start], Any],
        batch: Any,
        start: Callable[..., Start],
    ) -> tuple[Any, ...]:
        """`step(replica, batch, start)` on every replica. Returns the result of each."""
        return on_replicas(self.placement, self.state, self._seed_generator, step, batch, start)
