"""The layers around each weight of a model."""

import keras
import numpy as np

from kerasdist.models import pure


def test_the_outer_layers_of_a_model_in_a_model_are_known():
    """Keras's own path of such a weight lacks them."""
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="line")], name="inner")
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.BatchNormalization(name="b")])
    places = pure.places(model)
    assert [place.variable for place in places] == model.weights
    assert [place.names for place in places] == [
        ("inner", "line", "kernel"),
        ("inner", "line", "bias"),
        *[("b", leaf) for leaf in ("gamma", "beta", "moving_mean", "moving_variance")],
    ]


class Custom(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(2, name=f"block{i}") for i in range(2)]
        self.scale = self.add_weight(shape=(), name="scale")

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x * self.scale


def test_weights_of_the_model_itself_are_in_no_layer():
    model = Custom()
    model(np.ones((1, 2)))
    names = {place.names for place in pure.places(model)}
    assert ("scale",) in names
    assert ("block1", "bias") in names
    assert len(names) == 5


def test_automatic_names_are_those_of_keras():
    layer = keras.layers.DepthwiseConv2D(3)
    assert layer.name.startswith(pure.automatic_name(layer))
    assert pure.automatic_name(keras.layers.Conv2D(1, 1, name="mine")) == "conv2d"
