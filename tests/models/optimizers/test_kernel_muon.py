"""Muon for the kernels of convolutions, against NumPy."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.models.optimizers.kernel_muon import KernelMuon, orthogonal


def numpy_orthogonal(kernel, rounds):
    a, b, c = 3.4445, -4.7750, 2.0315
    matrix = kernel.reshape(-1, kernel.shape[-1])
    matrix = matrix / np.linalg.norm(matrix)
    for _ in range(rounds):
        # On the singular values alone, which is what the matrix products do.
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        matrix = (u * (a * s + b * s**3 + c * s**5)) @ v
    return matrix.reshape(kernel.shape)


@pytest.mark.parametrize("shape", [(3, 3, 2, 5), (1, 1, 3, 8), (3, 3, 4, 4), (5, 2, 3)])
def test_a_step_is_made_orthogonal(shape):
    kernel = np.random.default_rng(0).normal(size=shape)
    found = np.asarray(orthogonal(kernel, 3))
    np.testing.assert_allclose(found, numpy_orthogonal(kernel, 3), atol=1e-6)
    values = np.linalg.svd(found.reshape(-1, shape[-1]), compute_uv=False)
    before = np.linalg.svd(kernel.reshape(-1, shape[-1]), compute_uv=False)
    assert values.max() / values.min() <= before.max() / before.min()


def convolution(dtype="float64"):
    layers = [
        keras.Input((4, 4, 2), dtype=dtype),
        keras.layers.Conv2D(3, 2, dtype=dtype, name="conv"),
        keras.layers.Flatten(dtype=dtype),
        keras.layers.Dense(1, dtype=dtype, name="out"),
    ]
    model = keras.Sequential(layers)
    random = np.random.default_rng(2)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


X = np.random.default_rng(3).normal(size=(8, 4, 4, 2))
Y = np.random.default_rng(4).normal(size=(8, 1))


def gradients(weights):
    """Of the mean squared error, by NumPy."""
    kernel, bias, last, last_bias = weights
    patches = np.stack([X[:, i : i + 3, j : j + 3] for i in (0, 1) for j in (0, 1)], axis=3)
    flat = patches.reshape(8, 3, 3, 8)  # two by two pixels of two channels
    hidden = flat @ kernel.reshape(8, 3) + bias
    error = 2 * (hidden.reshape(8, 27) @ last + last_bias - Y) / 8
    back = (error @ last.T).reshape(8, 3, 3, 3)
    of_kernel = np.einsum("nijp,nijf->pf", flat, back).reshape(kernel.shape)
    return [of_kernel, back.sum((0, 1, 2)), hidden.reshape(8, 27).T @ error, error.sum(0)]


@pytest.mark.parametrize("devices", [1, 2])
def test_steps_are_those_of_numpy(devices):
    """Two steps: kernels by Muon, the rest by Nesterov with its own rate, decay on one weight."""
    model = convolution()
    weights = model.get_weights()
    velocities = [np.zeros_like(w) for w in weights]
    rate = 0.05
    for _ in range(2):
        for i, gradient in enumerate(gradients([w.copy() for w in weights])):
            momentum = 0.7 if i == 0 else 0.6
            velocities[i] = momentum * velocities[i] + gradient
            step = gradient + momentum * velocities[i]
            if i == 0:
                scaled = weights[0] * (3**0.5 / np.linalg.norm(weights[0]))
                weights[0] = scaled - rate * numpy_orthogonal(step, 3)
            else:
                decayed = weights[i] * (1 - rate * 0.5) if i == 2 else weights[i]
                weights[i] = decayed - rate * 2.0 * step
    model.compile(
        kerasdist.optimizer(
            "kernel_muon",
            learning_rate=rate,
            weight_decay=0.5,
            weight_decay_on="out/kernel",
            arguments={"others_rate": 2.0, "others_momentum": 0.6},
        ),
        "mse",
    )
    kerasdist.fit(model, (X, Y), batch_size=8, epochs=2, devices=devices, progress=False)
    for ours, theirs in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_it_is_saved_and_loaded():
    optimizer = kerasdist.optimizer(
        "kernel_muon", learning_rate_factors={"bias": 3.0}, arguments={"rounds": 4}
    )
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, KernelMuon)
    assert again.get_config() == optimizer.get_config()
    assert (again.rounds, again.learning_rate_factors) == (4, {"bias": 3.0})
