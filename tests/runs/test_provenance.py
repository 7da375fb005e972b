"""What a run was made with."""

import os

import tensorflow as tf

from kerasdist.runs.provenance import made_with


def test_the_threads_are_those_that_tensorflow_takes(monkeypatch):
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5})
        assert made_with()["threads"] == 3
    chosen = tf.config.threading
    monkeypatch.setattr(chosen, "get_intra_op_parallelism_threads", lambda: 7)
    assert made_with()["threads"] == 7
