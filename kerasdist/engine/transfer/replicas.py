"""Runs one step on every replica of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.shards import Number
from kerasdist.engine.state import Start, State
from kerasdist.models import pure


def on_replicas(
    placement: Placement,
    state: State,
    seed_generator: keras.random.SeedGenerator,
    step: Callable[[Number, Any, Start], Any],
    batch: Any,
    start: Callable[..., Start],
) -> tuple[Any, ...]:
    """`step(replica, batch, start)` on every replica. Returns the result of each."""
    strategy = placement.strategy
    parts = batch if placement.is_gpu else [batch] * len(placement.names)
    if strategy is None:
        with tf.device(placement.names[0]):
            return (step(0, parts[0], start(state.read())),)
    stored = None
    if placement.shares_memory:  # There is one state: read it once for all replicas.
        with tf.device(placement.names[0]):
            stored = state.read()

    def on_replica() -> Any:
        pure.use_global_seed_generator(seed_generator)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        place = placement.replicas.index(int(tf.get_static_value(replica)))
        if stored is not None:
            return step(replica, parts[place], start(stored))
        if placement.is_gpu:
            replica = placement.replicas[place]
        return step(replica, parts[place], start(state.read(place), place))

    results = strategy.run(on_replica)
    columns = [strategy.experimental_local_results(r) for r in tf.nest.flatten(results)]
    return tuple(
        # A value that all replicas share comes only once.
        tf.nest.pack_sequence_as(results, [column[i % len(column)] for column in columns])
        for i in range(len(placement.names))
    )
