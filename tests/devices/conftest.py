"""A recipe to train on workers, and its training on one device to compare with."""

import pytest

from tests import classifier_recipe
from tests.devices.real_workers import FIT, trained


@pytest.fixture
def recipe(tmp_path):
    return classifier_recipe.write(tmp_path / "small", model=classifier_recipe.BLOCKS)


@pytest.fixture
def on_one_device(command, recipe):
    """Trains the recipe in this process: its weights and logs."""

    def train(run, *options):
        outcome = command("fit", recipe, *FIT, *options, "--devices", "cpu", "--run-dir", run)
        assert outcome.code == 0, outcome.err
        return trained(run)

    return train
