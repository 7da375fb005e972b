"""A trained run, for the tests of its page."""

import pytest

from kerasdist.cli import main
from tests import classifier_recipe


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A trained run of a classifier, with averaged weights."""
    folder = tmp_path_factory.mktemp("report")
    recipe = classifier_recipe.write(folder / "small")
    path = folder / "run"
    options = ["--ema", "0.9", "--quiet", "--log-every", "2", "--run-dir", str(path)]
    assert main.main(["fit", str(recipe), *options]) == 0
    return path
