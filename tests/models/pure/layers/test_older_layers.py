"""Stateful layers take batches of unknown size, also in the oldest version of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.models.pure.layers import older_layers


def layer():
    model = keras.Sequential(
        [keras.Input(batch_shape=(4, 5, 3)), keras.layers.GRU(2, stateful=True)]
    )
    return model.layers[0]


def trace(stateful):
    """A function of a batch whose size the graph does not know."""

    @tf.function(input_signature=[tf.TensorSpec((None, 5, 3))], autograph=False)
    def call(x):
        with older_layers.patched():
            return stateful(x)

    return call


def test_a_stateful_layer_knows_the_size_of_its_batch():
    assert layer()._expected_batch_size == 4


def test_a_graph_for_any_batch_gives_what_the_layer_gives():
    stateful = layer()
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32")
    expected = stateful(x).numpy()
    stateful.reset_state()
    np.testing.assert_allclose(trace(stateful)(x).numpy(), expected, rtol=1e-6)


@pytest.mark.skipif(not older_layers.NEEDS_KNOWN_BATCHES, reason="Keras 3.13 only")
def test_the_size_is_checked():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected shape"):
        trace(layer())(np.zeros((3, 5, 3), "float32"))


def test_kerass_method_is_put_back():
    before = keras.layers.RNN.call
    with older_layers.patched():
        assert (keras.layers.RNN.call is before) is not older_layers.NEEDS_KNOWN_BATCHES
    assert keras.layers.RNN.call is before
