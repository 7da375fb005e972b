"""The recipe learns, and gets the same weights on two devices. Run it with `python -m pytest`."""

from pathlib import Path

import numpy as np

import kerasdist

kerasdist.logical_cpus(2)
RECIPE = Path(__file__).parent


def fit(devices, **settings):
    recipe = kerasdist.load_recipe(RECIPE, **settings)
    return kerasdist.fit(
        recipe.build_model,
        recipe.build_data("train"),
        validation_data=recipe.build_data("validation"),
        batch_size=recipe.config.batch_size,
        epochs=recipe.config.epochs,
        shards=2,
        devices=devices,
        progress=False,
    )


def test_it_learns():
    assert fit(1).history["val_accuracy"][-1] > 0.8


def test_two_devices_give_the_weights_of_one():
    one, two = (fit(devices, epochs=1).model.get_weights() for devices in (1, 2))
    for found, expected in zip(two, one, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)
