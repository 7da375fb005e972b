"""A resumed run keeps the shards it started with."""

import numpy as np
import pytest

import kerasdist
from kerasdist.runs.checkpoints.inherited import kept_shards
from tests.runs.checkpoints.stopped_runs import StopAt, fit


def test_a_run_keeps_its_shards_on_any_number_of_devices(tmp_path):
    options = {"deterministic": True, "shards": None, "epochs": 2}
    whole = fit(tmp_path / "whole", devices="cpu:2", **options)
    assert kept_shards(tmp_path / "whole") == 4
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", devices="cpu:2", callbacks=[StopAt(5)], **options)
    with pytest.raises(
        kerasdist.KerasdistError, match=r"`shards=4` on 3 devices.*with 4 shards\.$"
    ):
        fit(tmp_path / "run", devices="cpu:3", **options)
    for devices, epochs_ in (("cpu:1", 1), ("cpu:4", 2)):
        other = fit(tmp_path / "run", devices=devices, **options | {"epochs": epochs_})
    for expected, found in zip(whole.model.get_weights(), other.model.get_weights(), strict=True):
        np.testing.assert_array_equal(expected, found)


@pytest.mark.parametrize(("begun", "goes_on"), [("cpu:2", "cpu:1"), ("cpu:2", "cpu:2")])
def test_fewer_devices_need_no_option(tmp_path, begun, goes_on):
    fit(tmp_path, devices=begun, shards=None, epochs=1)
    assert kept_shards(tmp_path) == 2
    assert len(fit(tmp_path, devices=goes_on, shards=None, epochs=2).history["loss"]) == 2


def test_shards_of_no_run_are_unknown(tmp_path):
    assert kept_shards(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    assert kept_shards(tmp_path) is None
