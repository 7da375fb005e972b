"""The table of networks agrees with `keras.applications`."""

import inspect

import keras
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.recipes.own_data.backbones import APPLICATIONS


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_each_network_is_in_keras(name):
    found = APPLICATIONS[name]
    build = getattr(keras.applications, found.kind)
    assert {"input_shape", "include_top", "weights", "pooling"} <= set(
        inspect.signature(build).parameters
    )
    assert callable(getattr(keras.applications, found.module).preprocess_input)


def test_the_table_has_all_networks_of_keras():
    classes = {
        name for name, value in vars(keras.applications).items() if inspect.isfunction(value)
    }
    assert classes == {found.kind for found in APPLICATIONS.values()}


def test_sizes_and_names_are_checked():
    assert kerasdist.backbone_size("mobilenet_v3_small") == 224
    assert kerasdist.backbone_size("mobilenet_v3_small", 96) == 96
    with pytest.raises(KerasdistError, match=r"at least 71 x 71"):
        kerasdist.backbone_size("xception", 50)
    with pytest.raises(KerasdistError, match=r"Did you mean 'efficientnet_b0'"):
        kerasdist.backbone_size("efficientnetb0")
