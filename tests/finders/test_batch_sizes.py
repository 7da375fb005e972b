"""`kerasdist.find_batch_size`, with real steps."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.errors import KerasdistError
from kerasdist.finders import api, host_memory

X = np.random.default_rng(0).normal(size=(100, 6)).astype("float32")


def build():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    monkeypatch.setattr(api, "TRIAL_SECONDS", 0.05)


def test_sizes_are_doubled_up_to_the_data_and_the_model_is_as_before():
    model = build()
    model.fit(X, X[:, :1], verbose=0)
    before = [np.array(v) for v in (*model.weights, *model.optimizer.variables)]
    found = kerasdist.find_batch_size(model, X, X[:, :1], batch_size=25, devices=2, seed=0)
    assert [trial.batch_size for trial in found.trials] == [25, 50, 100]
    assert all(trial.examples_per_second > 0 and trial.memory > 0 for trial in found.trials)
    assert found.largest == 100
    assert found.fastest in (25, 50, 100)
    after = [np.array(v) for v in (*model.weights, *model.optimizer.variables)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_more_than_the_free_memory_is_not_tried(monkeypatch):
    class Wide:
        """One example takes a megabyte."""

        def __len__(self):
            return 4096

        def __getitem__(self, index):
            return np.full(2**18, index % 7, "float32"), np.float32(0)

    def wide():
        model = keras.Sequential([keras.Input((2**18,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    room = 200 * 2**20
    base = host_memory.resident()
    monkeypatch.setattr(host_memory, "free", lambda: int(room / 0.8 - used()))
    used = lambda: (host_memory.resident() - base) / 0.8  # noqa: E731
    found = kerasdist.find_batch_size(wide, Wide(), batch_size=4)
    assert found.largest < 400
    assert "would need about" in found.ended
    assert max(t.memory for t in found.trials if t.fits) < base + 1.5 * room


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "`batch_size=0`"),
        ({"seconds": -1}, "`seconds=-1`"),
        ({"batchsize": 3}, "has no argument `batchsize`.* Did you mean 'batch_size'"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message, not_compiled):
    with pytest.raises(KerasdistError, match=message):
        kerasdist.find_batch_size(build, X, X[:, :1], **wrong)


def test_data_with_batches_is_refused():
    batches = [(X[:8], X[:8, :1])] * 3
    with pytest.raises(KerasdistError, match="already has batches"):
        kerasdist.find_batch_size(build, lambda: iter(batches))


def test_the_memory_of_a_container_counts(tmp_path):
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    group.mkdir()
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    assert host_memory.free(proc, group) == 800 * 1024
    (group / "memory.max").write_text("500000\n")
    (group / "memory.current").write_text("300000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert host_memory.free(proc, group) == 300_000
    (group / "memory.max").write_text("max\n")
    assert host_memory.free(proc, group) == 800 * 1024
    assert host_memory.free(tmp_path, tmp_path) is None
    assert host_memory.free() > 0


def test_the_peak_of_this_process_can_be_measured_again():
    host_memory.reset_peak()
    before = host_memory.peak()
    block = np.ones(64 * 2**20, "uint8")
    assert host_memory.peak() >= before + 60 * 2**20
    assert host_memory.resident() > 0
    assert host_memory.resident(2**22 + 1) == 0
    del block
