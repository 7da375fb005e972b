"""A measuring process: its GPUs, without one, and the steps of its rounds."""

import pytest

from kerasdist.cli.bench import command, worker
from kerasdist.cli.bench.results import Measurement
from kerasdist.cli.bench.rounds import Rounds
from kerasdist.cli.bench.worker import prepare_devices
from tests.devices import fake_gpus


@pytest.mark.parametrize(
    ("names", "visible"), [(["GPU:0", "GPU:1"], [0, 1]), (["GPU:0"], [0]), (["CPU:0"], [])]
)
def test_a_process_sees_only_its_gpus_and_leaves_memory_to_others(monkeypatch, names, visible):
    done = fake_gpus.present(monkeypatch, 4)
    prepare_devices(names)
    assert done.visible == done.growth == visible


BY_INDEX = """
import keras
import numpy as np


class ByIndex(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return {"x": np.ones((8, 4), "float32"), "y": np.ones((8, 1), "float32")}


def build_data(config, split):
    return ByIndex()
"""


@pytest.mark.parametrize("is_by_index", [False, True])
@pytest.mark.parametrize("runner", ["kerasdist", "keras"])
def test_a_round_of_short_data_has_whole_epochs(runner, is_by_index, tiny):
    """What an epoch costs counts, for kerasdist as for Keras."""
    if is_by_index:
        (tiny / "data.py").write_text(BY_INDEX)
        config = (
            (tiny / "config.py")
            .read_text()
            .replace("int = field(default=8", "int|None=field(default=None")
        )
        (tiny / "config.py").write_text(config)
    request = {
        "argv": [str(tiny)],
        "runner": runner,
        "names": ["CPU:0", "CPU:1"],
        "batch_size": None,
    }
    said = []
    rounds = Rounds(lambda: True, said.append)
    epochs = []
    rounds.on_train_begin = lambda logs=None: epochs.clear()
    on_epoch_end = rounds.on_epoch_end
    rounds.on_epoch_end = lambda epoch, logs=None: (epochs.append(epoch), on_epoch_end(epoch))
    worker.Trainer(request).run(16, 3, rounds, None)  # A pass has 5.
    assert [round_["steps"] for round_ in said] == [15, 15, 15]
    assert [round_["round"] for round_ in said] == [0, 1, 2]
    assert epochs == list(range(9))


@pytest.mark.parametrize("runner", ["kerasdist", "keras"])
def test_a_round_of_long_data_is_cut(runner, tiny):
    request = {"argv": [str(tiny)], "runner": runner, "names": ["CPU:0"], "batch_size": None}
    said = []
    worker.Trainer(request).run(4, 3, Rounds(lambda: True, said.append), None)  # A pass has 5.
    assert [round_["steps"] for round_ in said] == [4, 4, 4]


class Told:
    """A measuring process whose answer is known."""

    examples_per_step = 8.0

    def __init__(self, answer):
        self.measurement = Measurement("kerasdist", 1, 8)
        self._answer = answer

    def ask(self, content):
        assert content == {"go": True}

    def answer(self):
        return self._answer


def test_only_the_steps_that_were_done_are_credited():
    told = Told({"round": 1, "steps": 5, "seconds": 2.0, "memory": 3})
    command.measure_round(told)
    assert told.measurement.rates == [5 * 8.0 / 2.0]
