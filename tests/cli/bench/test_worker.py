"""The GPUs of a measuring process, without one."""

import pytest

from kerasdist.cli.bench.worker import prepare_devices
from tests.devices import fake_gpus


@pytest.mark.parametrize(
    ("names", "visible"), [(["GPU:0", "GPU:1"], [0, 1]), (["GPU:0"], [0]), (["CPU:0"], [])]
)
def test_a_process_sees_only_its_gpus_and_leaves_memory_to_others(monkeypatch, names, visible):
    done = fake_gpus.present(monkeypatch, 4)
    prepare_devices(names)
    assert done.visible == done.growth == visible
