"""The end of an evaluation's step with a loss over the whole batch."""

from __future__ import annotations

import tensorflow as tf

from kerasdist.engine.compiled_loop import REACHED
from kerasdist.engine.state import Start, State
from kerasdist.engine.sums import Deltas, Reduction, Sums
from kerasdist.engine.updates import Metrics
from kerasdist.engine.whole_batch.whole_loss import Gathered
from kerasdist.models.fields import Example


def write_whole(
    gathered: Gathered,
    example: Example,
    start: Start,
    *,
    state: State,
    reduction: Reduction,
    metrics: Metrics,
    use_ema: bool,
) -> tf.Tensor:
    """Writes the metrics and the changed state. Replicas that share memory do it once."""

    def finish(_: Sums) -> tf.Tensor:
        pairs = zip(gathered.metrics, gathered.loss.metrics, strict=True)
        deltas = Deltas([of_call + of_loss for of_call, of_loss in pairs], None)
        new = metrics.new_values(start, deltas, example, gathered.rows)
        written = state.assign({"metrics": new}, start)
        written += state.assign_changed(gathered.changed, start, with_weights=not use_ema)
        with tf.control_dependencies(written):
            return tf.constant(REACHED) + 0

    # Every replica has all sums already: only a number to wait for is added up.
    return reduction.run([tf.zeros((1,))], [], finish)
