"""The engine: the state of a run on its devices, and the compiled step that changes it.

The only module that calls `strategy.run`. Read `_train_replica` for one step, from batch to update.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.rows import Rows
from kerasdist.devices.placement import Placement
from kerasdist.engine import compiled_loop, observations, sums, updates
from kerasdist.engine.compiled_loop import END_OF_DATA, NOT_FINITE, REACHED, Outcome, over_batches
from kerasdist.engine.settings import Settings
from kerasdist.engine.shard_functions import ShardFunctions
from kerasdist.engine.shards import Cut, Piece, Seeds
from kerasdist.engine.state import State, vectors
from kerasdist.models import pure
from kerasdist.models.class_weights import weigh_classes
from kerasdist.models.fields import Example, read


class Engine:
    """Owns the replicated state of a built, compiled model and runs steps on it."""

    def __init__(self, model: keras.Model, placement: Placement, settings: Settings):
        self.model = model
        self.placement = placement
        self.settings = settings
        self.roles = pure.parts(model)
        self._seed_generator = pure.share_global_seed_generator()
        # Other bits than with each variable by itself, as workers have them.
        may_join = settings.joins and not settings.deterministic
        self._joined = vectors(model.optimizer, self.roles, placement) if may_join else None
        with_ema = settings.ema is not None
        self.state = State(self.roles, placement, with_ema=with_ema, joined=self._joined)
        self._checked_names: tuple[str, ...] = ()
        self.functions = ShardFunctions(
            model,
            self.roles,
            seed=settings.seed,
            packed=settings.shards > 1 or self._joined is not None,
            state_rules=settings.state_rules,
            test_state_rules=settings.test_state_rules,
            on_cpu=not placement.is_gpu,
            gather_outputs=settings.gather_metrics,
            sealed=settings.deterministic,
            jit=settings.jit,
        )
        self.train_loop = compiled_loop.compiled(self._train_loop)
        self.observed_step = compiled_loop.compiled(self._observed_step)
        self.test_loop = compiled_loop.compiled(self._test_loop)
        self.predict_loop = compiled_loop.compiled(self._predict)

    def ema_weights(self) -> list[Any]:
        """Arrays in the order of `model.get_weights()`, with the averages of the trainable ones."""
        self.state.write_back("trainable", "other")
        owners = [id(variable) for variable in self.roles.trainable]
        averages = dict(zip(owners, self.state.arrays("ema"), strict=True))
        return [averages[id(v)] if id(v) in averages else v.numpy() for v in self.model.weights]

    @property
    def takes_one_batch_a_call(self) -> bool:
        """Within one call workers can gather rows of one number only (TF 2.21)."""
        return self.settings.gather_metrics and self.placement.workers is not None

    def train(self, batches, num_steps: int) -> Outcome:
        """Runs up to `num_steps` steps; fewer at the end of the data, or if one is not finite."""
        *results, waited, rate = self.train_loop(batches, tf.constant(num_steps, tf.int64))
        return replace(self._outcome(*results), waited=float(waited), learning_rate=float(rate))

    def train_observed(self, batches) -> Outcome:
        """One step as `train` runs it, with what a summary shows of it, if it was written."""
        began = time.perf_counter()
        found = compiled_loop.next_batch(batches)
        if found is None:
            return Outcome(0, 0, END_OF_DATA, 0.0)
        waited = time.perf_counter() - began
        status, examples, loss, finite, replicas = self.observed_step(found)
        done = int(status == REACHED)
        outcome = self._outcome(done, done * examples, status, loss, finite)
        if not done:
            return outcome
        # No new trace: the function has been called with one of this kind.
        concrete = self.observed_step.get_concrete_function
        seen = observations.observation(
            self.model,
            outcome.loss,
            observations.of_all(replicas, self.placement.workers),
            observations.float_weights(self.roles, self.state),
            lambda: concrete(found).graph.as_graph_def(add_shapes=True),
        )
        return replace(outcome, seen=seen, waited=waited, learning_rate=seen.learning_rate)

    def _outcome(self, steps, examples, status, loss, finite) -> Outcome:
        names: tuple[str, ...] = ()
        replica = None
        if int(status) == NOT_FINITE:
            bad = ~finite.numpy()
            if self.placement.workers is not None:
                bad = self.placement.workers.join_rows(bad)
            replica = int(np.argmax(bad.any(axis=1))) if bad.any() else None
            pairs = zip(self._checked_names, bad[replica or 0], strict=True)
            names = tuple(name for name, is_bad in pairs if is_bad) or ("sum over the replicas",)
        return Outcome(int(steps), int(examples), int(status), float(loss), names, replica)

    def test(self, batches, num_steps: int, *, use_ema: bool = False) -> Outcome:
        """Updates the metrics over up to `num_steps` batches; the weights stay as they are."""
        steps, examples, status, *_ = self.test_loop(
            batches, tf.constant(num_steps, tf.int64), use_ema
        )
        return Outcome(int(steps), int(examples), int(status), float("nan"))

    def predict(self, batch) -> Any:
        """The outputs for one global batch, in its order, as arrays."""
        pieces = [
            keras.tree.map_structure(lambda t, n=int(count): t.numpy()[:n], outputs)
            for outputs, count in self.predict_loop(batch)
        ]
        own = keras.tree.map_structure(lambda *parts: sums.join(parts), *pieces)
        workers = self.placement.workers
        return own if workers is None else keras.tree.map_structure(workers.join_rows, own)

    def _train_loop(self, batches, num_steps):
        with pure.patched():
            source, timed = self._source(batches), self.settings.times_input
            results = over_batches(source, num_steps, self._train_batch, times_input=timed)
            values = self.state.apart("optimizer", self.state.first("optimizer"))
            return *results, compiled_loop.last_learning_rate(
                self.model.optimizer, self.roles.optimizer, values
            )

    def _train_batch(self, batch):
        results = self._run(self._train_replica, batch)
        status, count, loss, _ = results[0]
        return status, count, loss, self._flags([flags for _, _, _, flags in results])

    def _observed_step(self, found):
        def run(replica, batch, before):
            observer = observations.Observer(self.model, self.roles)
            return *self._train_replica(replica, batch, before, observer), observer.seen

        with pure.patched():
            results = self._run(run, compiled_loop.first_of(self._source(found)))
        status, count, loss, *_ = results[0]
        flags = self._flags([flags for *_, flags, _ in results])
        return status, count, loss, flags, [seen for *_, seen in results]

    def _flags(self, of_replicas: list[tf.Tensor]) -> tf.Tensor:
        """`[replicas, tensors]`: what is finite."""
        return of_replicas[0] if self.placement.shares_memory else tf.concat(of_replicas, axis=0)

    def _test_loop(self, batches, num_steps, use_ema):
        def run(batch):
            return self._run(partial(self._test_replica, use_ema=use_ema), batch)[0]

        with pure.patched():
            return over_batches(self._source(batches), num_steps, run)

    def _source(self, batches):
        """Workers never know sizes; the same bits with and without them take what they know."""
        if isinstance(batches, Rows):
            return batches._replace(of_one_size=not self.settings.deterministic)
        return batches

    def _predict(self, batch):
        with pure.patched():
            return self._run(self._predict_replica, batch)

    def _run(self, function: Callable, batch) -> tuple:
        """`function(replica, batch, values of the state)` on every replica: their results."""
        strategy = self.placement.strategy
        if strategy is None:
            with tf.device(self.placement.names[0]):
                return (function(0, batch, self.state.read()),)
        before = None
        if self.placement.shares_memory:  # One state, read once for all of them.
            with tf.device(self.placement.names[0]):
                before = self.state.read()

        def on_replica(batch):
            pure.use_global_seed_generator(self._seed_generator)
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return function(replica, batch, before or self.state.read())

        results = strategy.run(on_replica, args=(batch,))
        columns = [strategy.experimental_local_results(r) for r in tf.nest.flatten(results)]
        return tuple(
            # What is the same for all of them comes once.
            tf.nest.pack_sequence_as(results, [column[i % len(column)] for column in columns])
            for i in range(len(self.placement.names))
        )

    def _cut(self, example: Example, replica, span) -> Cut:
        shards, known = self.settings.shards, not self.settings.deterministic
        return Cut(example, shards, self.placement, replica, span, known=known)

    def _apart(self, batch) -> tuple[Any, Any]:
        """`(batch, span)`: a worker's part of a batch comes with its place in it."""
        return (batch, None) if self.placement.workers is None else batch

    def _train_replica(
        self, replica, batch, before: dict[str, list], observer: observations.Observer | None = None
    ):
        """One step on one replica: shards, reduction, finite check, clipping, update, EMA."""
        settings = self.settings
        batch, span = self._apart(batch)
        example = weigh_classes(read(self.model, batch), settings.class_weight)
        cut = self._cut(example, replica, span)
        trainable = self.state.apart("trainable", before["trainable"])
        of_optimizer = self.state.apart("optimizer", before["optimizer"])
        optimizer = updates.Update(self.model.optimizer, self.roles, of_optimizer)
        state = (trainable, before["other"], optimizer.step, optimizer.scale)
        held = (*trainable, *before["other"])
        denominators = self._global_denominators(cut, state, training=True)
        terms_of_step = self.functions.terms

        def shard_terms(local_index):
            """What adds up over the shards, and the rows of outputs where metrics need them."""
            piece = cut.shard(local_index, denominators)
            terms, added, rows = self.functions.train(*state, piece)
            if observer is not None:
                terms = terms + observer.terms(added)
            return terms, rows

        own, rows = self._over_shards(shard_terms, cut.per_replica)
        if observer is not None:
            own = observer.take_terms(own)

        def finish(totals, sums_of_replicas, rows):
            loss, gradients, changed, deltas = terms_of_step.split(totals, held)
            joined = self._joined if terms_of_step.is_joined else None
            vector = deltas_vector = None
            if joined is not None:
                loss, vector, deltas_vector = terms_of_step.blocks(totals)
            gradients = [None if g is None else optimizer.unscale(g) for g in gradients]
            self._checked_names, checked = updates.to_check(self.roles, loss, gradients, changed)
            is_as_summed = not optimizer.is_scaled and all(t.dtype.size > 2 for t in checked)
            vectors = terms_of_step.checked_vectors(totals) if is_as_summed else None
            check = updates.Check(checked, vectors)

            def new_state():
                update, roles, given, of_step = optimizer, self.roles, trainable, gradients
                averages = self.state.apart("ema", before["ema"])
                if joined is not None:
                    update = updates.Update(joined.optimizer, joined.roles, before["optimizer"])
                    roles, given, of_step = joined.roles, before["trainable"], [vector]
                    averages = before["ema"]
                pairs = zip(roles.trainable, given, strict=True)
                new = [changed.get(id(v), t) for v, t in pairs]
                clipped = updates.clip(of_step, settings.clip_norm)
                new, new_optimizer = update.update(roles, clipped, new)
                averages = updates.average(averages, new, settings.ema, update.step)
                stored = {"trainable": new, "optimizer": new_optimizer, "ema": averages}
                if joined is None:
                    stored = {r: self.state.together(r, values) for r, values in stored.items()}
                return {
                    **stored,
                    "other": [changed.get(id(v)) for v in self.roles.other],
                    "metrics": self._new_metrics(
                        before["metrics"], deltas, deltas_vector, example, rows
                    ),
                }

            def flags():
                """Of the replicas' own sums: that tells where it arose."""
                if is_as_summed and terms_of_step.is_small:
                    return terms_of_step.flags(sums_of_replicas, len(checked))
                if sums_of_replicas[0] is totals:
                    return check.flags[tf.newaxis]
                parts = [terms_of_step.split(own, held)[:3] for own in sums_of_replicas]
                of_parts = [updates.to_check(self.roles, *part)[1] for part in parts]
                return tf.stack([updates.Check(tensors).flags for tensors in of_parts])

            left = before
            if optimizer.is_scaled:
                left = {**before, "optimizer": optimizer.backed_off()}
            written, all_flags = updates.if_finite(
                check.finite, new_state, left, flags, lambda new: self.state.assign(new, before)
            )
            with tf.control_dependencies([all_flags, *written]):
                status = tf.where(check.finite, REACHED, NOT_FINITE)
            return status, tf.cast(loss, tf.float64), all_flags, gradients

        status, loss, flags, gradients = self._over_replicas(own, rows, finish)
        if observer is not None:
            own_loss, *_ = terms_of_step.split(own, held)
            where = (replica, self.placement.num_replicas)
            observer.look(batch, span, *where, own_loss, gradients, trainable, optimizer.values)
        return status, cut.num_global, loss, flags

    def _over_replicas(self, own: list, rows: list, finish: Callable) -> Any:
        """`finish(totals, sums of replicas, rows of all)`, on every replica or once for all."""
        if self.placement.num_replicas == 1:
            return finish(own, [own], rows)
        context = tf.distribute.get_replica_context()
        if not self.placement.shares_memory:
            fixed_order, count = self.settings.deterministic, self.placement.num_replicas
            totals = sums.over_replicas(own, count, fixed_order=fixed_order)
            rows = [None if t is None else context.all_gather(t, axis=0) for t in rows]
            return finish(totals, [own], rows)

        def merge(strategy, own, rows):
            with tf.device(self.placement.names[0]):
                columns = [
                    [tf.identity(v) for v in strategy.experimental_local_results(vector)]
                    for vector in own
                ]
                totals = sums.of_all(columns)
                joined = [
                    None if t is None else tf.concat(strategy.experimental_local_results(t), axis=0)
                    for t in rows
                ]
                return finish(totals, [list(row) for row in zip(*columns, strict=True)], joined)

        return context.merge_call(merge, args=(own, rows))

    def _test_replica(self, replica, batch, before: dict[str, list], *, use_ema: bool):
        """One batch of an evaluation on one replica: adds to the metrics."""
        batch, span = self._apart(batch)
        example = read(self.model, batch)
        cut = self._cut(example, replica, span)
        trainable = self.state.apart("trainable", before["ema" if use_ema else "trainable"])
        state = (trainable, before["other"], tf.constant(0, tf.int64), None)
        held = (*trainable, *before["other"])
        denominators = self._global_denominators(cut, state, training=False)

        def shard_terms(local_index):
            return self.functions.test(*state, cut.shard(local_index, denominators))

        own, rows = self._over_shards(shard_terms, cut.per_replica)

        def finish(totals, _, rows):
            changed = self.functions.changed_by_test
            end = len(totals) - len(changed)
            totals, of_state = totals[:end], totals[end:]
            deltas = self.functions.metrics.unpack(totals)
            vector = totals[0] if len(totals) == 1 else None
            metrics = self._new_metrics(before["metrics"], deltas, vector, example, rows)
            new = self.functions.test_state.new_values(changed, of_state, held)
            written = self.state.assign({"metrics": metrics}, before)
            written += self.state.assign_changed(self.roles, new, before, with_weights=not use_ema)
            with tf.control_dependencies(written):
                return tf.constant(REACHED) + 0

        status = self._over_replicas(own, rows, finish)
        return status, cut.num_global, tf.constant(0.0, tf.float64), tf.ones((0, 0), tf.bool)

    def _predict_replica(self, replica, batch, before: dict[str, list]):
        batch, span = self._apart(batch)
        example = read(self.model, batch, need_targets=False)
        example = Example(example.args, example.x, None, None)
        cut = Cut(example, self.placement.num_replicas, self.placement, replica, span)
        piece = cut.shard(0)
        seeds = Seeds(self.settings.seed, tf.constant(0, tf.int64), len(self.roles.seeds))
        trainable = self.state.apart("trainable", before["trainable"])
        state = (trainable, before["other"], seeds.of_shard(piece.index))
        forward = pure.predict(self.model, self.roles, state, piece.example)
        shard = piece.shard(on_cpu=False)
        count = tf.convert_to_tensor(shard.num_examples)
        if not forward.changed:
            return forward.outputs, count
        held, terms = (*trainable, *before["other"]), self.functions.test_state
        own = terms.of_shard(forward.changed, shard, piece.index, held)

        def finish(totals, _, __):
            new = terms.new_values(list(forward.changed), totals, held)
            with tf.control_dependencies(self.state.assign_changed(self.roles, new, before)):
                return tf.constant(REACHED) + 0

        with tf.control_dependencies([self._over_replicas(own, [], finish)]):
            return tf.nest.map_structure(tf.identity, forward.outputs), tf.identity(count)

    def _over_shards(self, shard_terms: Callable, num_shards: int):
        """Adds up a replica's shards, one after the other."""
        first, rows = shard_terms(0)
        if not self.settings.gather_metrics:
            fixed = self.settings.deterministic
            compute = lambda i: shard_terms(i)[0]  # noqa: E731
            return sums.over_shards(compute, first, num_shards, fixed_order=fixed), ()
        # Outputs of every shard are kept anyway for the metrics: unrolled, and chained.
        results = [(first, rows)]
        for i in range(1, num_shards):
            with tf.control_dependencies(results[-1][0]):
                results.append(shard_terms(tf.constant(i)))
        totals = [sums.pairwise(column) for column in zip(*(t for t, _ in results), strict=True)]
        columns = zip(*(r for _, r in results), strict=True)
        return totals, [None if c[0] is None else tf.concat(c, axis=0) for c in columns]

    def _global_denominators(self, cut: Cut, state: tuple, *, training: bool):
        """Sums of the losses' own denominators (masks, sample weights) over the global batch.

        They depend on data, not on weights, as a rule: the rest of this forward pass is pruned.
        """
        settings = self.settings
        count = settings.num_denominators if training else settings.num_test_denominators
        if not count:
            return None

        def of_shard(local_index):
            return self.functions.denominators[training](*state, cut.shard(local_index))

        if cut.per_replica == 1:
            table = of_shard(0)[tf.newaxis]
        else:
            table = tf.map_fn(
                of_shard,
                tf.range(cut.per_replica),
                fn_output_signature=tf.float64,
                parallel_iterations=1,
            )
        if self.placement.num_replicas > 1:
            table = tf.distribute.get_replica_context().all_gather(table, axis=0)
        # The same table on every replica and for every number of them: the same bits.
        return tf.unstack(tf.reduce_sum(table, axis=0), count)

    def _new_metrics(self, before, deltas, vector, example: Example, rows):
        """`vector` is all of the `deltas`, if they are of one type."""
        if (
            vector is not None
            and self.state.is_vector("metrics")
            and not self.settings.gather_metrics
        ):
            return [before[0] + vector]
        before = self.state.apart("metrics", before)
        values = [v + d for v, d in zip(before, deltas, strict=True)]
        if self.settings.gather_metrics:
            whole = Piece(0, example.args, example.y, example.sample_weight, None, 0, None)
            values = self.functions.update_metrics(values, whole, rows)
        return self.state.together("metrics", values)
