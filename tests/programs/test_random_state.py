"""The states of random generators: taken, and restored."""

import random

import keras
import numpy as np
import tensorflow as tf

from kerasdist.programs.random_state import RandomState


def draw(model):
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.normal(),
        keras.random.normal((2,)).numpy().tolist(),
        tf.random.normal((2,)).numpy().tolist(),
        model(np.ones((1, 64)), training=True).numpy().tolist(),
    ]


def test_the_same_numbers_come_again():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5)])
    draw(model)
    keeper = RandomState(model)
    state = {name: getattr(keeper, name) for name in RandomState.remembered}
    first = draw(model)
    assert draw(model) != first
    for name, arrays in state.items():
        setattr(keeper, name, arrays)
    assert draw(model) == first
