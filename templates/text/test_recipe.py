"""The recipe learns, and gets the same weights on two devices. Run it with `python -m pytest`."""

from pathlib import Path

import numpy as np

import kerasdist

kerasdist.logical_cpus(2)
RECIPE = Path(__file__).parent


def fit(devices, epochs):
    """Trains on the data of config.py, in epochs of at most ten steps."""
    recipe = kerasdist.load_recipe(RECIPE, epochs=epochs)
    return kerasdist.fit(
        recipe.build_model,
        recipe.build_data("train"),
        batch_size=recipe.config.batch_size,
        epochs=epochs,
        steps_per_epoch=10,
        seed=0,
        shards=2,
        devices=devices,
        progress=False,
    )


def test_it_learns():
    """The loss falls. How well it can learn depends on the data."""
    losses = fit("cpu", epochs=20).history["loss"]
    assert losses[-1] < losses[0]


def test_two_devices_give_the_weights_of_one():
    one, two = (fit(devices, epochs=1).model.get_weights() for devices in ("cpu", "cpu:2"))
    for found, expected in zip(two, one, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)
