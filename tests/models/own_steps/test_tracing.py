"""A model's own step is traced no more often than it must be."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kerasdist


class Pair(keras.Model):
    """A usual GAN: without `call`, with two optimizers that Keras builds in the first step."""

    def __init__(self):
        super().__init__()
        self.first = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        self.second = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        self.traced = 0

    def compile(self, first_optimizer, second_optimizer, **given):
        super().compile(**given)
        self.first_optimizer = first_optimizer
        self.second_optimizer = second_optimizer

    def distance(self, answers):
        return ops.mean(ops.square(answers - 1))

    def train_step(self, x):
        self.traced += 1
        for part, optimizer in (
            (self.second, self.second_optimizer),
            (self.first, self.first_optimizer),
        ):
            with tf.GradientTape() as tape:
                distance = self.distance(self.second(self.first(x)))
            weights = part.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(distance, weights), weights, strict=True))
        return {"distance": distance}


class WithLoss(Pair):
    """Calls the function that `compile` got. Keras never builds its own loss and metrics then."""

    def distance(self, answers):
        return self.loss(ops.ones_like(answers), answers)


class WithCompiledLoss(Pair):
    """Keras builds the loss and the metrics in the first step."""

    def distance(self, answers):
        targets = ops.ones_like(answers)
        self.compute_metrics(None, targets, answers)
        return self.compute_loss(y=targets, y_pred=answers)


def trained(devices=None, kind=Pair):
    keras.utils.set_random_seed(0)
    model = kind()
    optimizers = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9)
    given = {} if kind is Pair else {"loss": keras.losses.MeanSquaredError()}
    if kind is WithCompiledLoss:  # Otherwise Keras's own `fit` fails.
        given["metrics"] = ["mae"]
    model.compile(*optimizers, **given)
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    if devices is None:
        model.fit(x, batch_size=8, epochs=2, shuffle=False, verbose=0)
    else:
        fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        kerasdist.fit(model, x, devices=devices, **fit)
    return model


@pytest.mark.parametrize("kind", [Pair, WithLoss])
def test_a_step_that_builds_its_optimizers_is_traced_once_to_plan_and_once_to_run(kind):
    model = trained(devices=1, kind=kind)
    assert model.traced == 2
    assert model.first_optimizer.built
    assert model.second_optimizer.built
    shapes = [v.shape for v in model.first_optimizer.variables]
    assert shapes == [v.shape for v in trained().first_optimizer.variables]


@pytest.mark.parametrize("kind", [Pair, WithLoss, WithCompiledLoss])
def test_its_weights_and_those_of_the_optimizers_are_keras(kind):
    expected = trained(kind=kind)
    for devices in (1, 2):
        found = trained(devices, kind)
        for mine, theirs in (
            (found.weights, expected.weights),
            (found.first_optimizer.variables, expected.first_optimizer.variables),
            (found.second_optimizer.variables, expected.second_optimizer.variables),
        ):
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
