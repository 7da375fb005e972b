"""Decides which examples come when: the shuffled order of a pass, a worker's part of a batch."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import Share


def shuffled_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The numbers from 0 to `count` in the order of a pass. Depends on (seed, epoch) alone."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def own_rows(share: Share, first: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A worker's rows of a batch that reaches from `first` to `end`: `Share.rows` for tensors."""
    n = tf.cast(end - first, tf.int64)
    begin, last = share.rows(n, tf.minimum, tf.maximum)
    return first + begin, first + last
