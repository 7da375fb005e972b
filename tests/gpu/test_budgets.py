"""What a step may move and hold on GPUs. `python -m tests.gpu.budgets` prints all of it."""

import json

import pytest

from tests.gpu import budgets, processes

pytestmark = processes.needs_fake_gpus
slow = pytest.mark.slow

CASES = [
    pytest.param(kind, count, marks=() if (kind, count) == ("wide", 2) else slow)
    for kind in budgets.MODELS
    for count in (1, 2, 4)
]


@pytest.mark.parametrize(("kind", "count"), CASES)
def test_a_step_keeps_to_its_budget(kind, count):
    of_keras = budgets.measure("keras", count, kind)
    found = budgets.measure("kerasdist", count, kind)
    assert found["to_device"] <= 1.05
    assert found["between"] <= 2 * (count - 1) * 1.01
    assert found["to_host_bytes"] < 2000
    assert found["to_host"] <= 2
    if (kind, count) == ("deep", 1):
        # Keras updates late layers while it still computes the gradients of earlier ones. We check
        # all gradients before the first update, so all of them are in memory.
        assert max(found["peaks"]) <= 4.15
    else:
        assert max(found["peaks"]) <= max(of_keras["peaks"])


@slow
@pytest.mark.parametrize("count", [2, 4])
def test_deterministic_steps_move_no_more(count):
    found = budgets.measure("kerasdist", count, "deep", deterministic=True)
    assert found["to_device"] <= 1.05
    assert found["between"] <= 2 * (count - 1) * 1.01
    assert found["to_host_bytes"] < 2000


@pytest.mark.slow
def test_averages_of_the_weights_take_their_own_memory_only():
    plain, averaged = (
        budgets.measure("kerasdist", 1, "deep", **options) for options in ({}, {"ema": 0.99})
    )
    assert max(averaged["peaks"]) <= max(plain["peaks"]) + 1.02


OVERLAP = """
import json
from tests.gpu import budgets
run, _ = budgets.kerasdist_steps("deep", 2, {})
run(2)
fake_gpu.start_trace()
run(8)
print(json.dumps([[r.what, r.device, r.num_bytes, r.begin, r.end] for r in fake_gpu.stop_trace()]))
"""


def test_the_next_batch_and_the_gradients_travel_while_a_step_computes():
    records = processes.result(OVERLAP, num_gpus=2)
    part = budgets.BATCH // 2 * budgets.FEATURES * 4
    for device in (0, 1):
        own = [r for r in records if r[1] == device]
        sent = [begin for what, _, size, begin, _ in own if what == "to device" and size == part]
        losses = [r[3] for r in own if r[0] == "SparseSoftmaxCrossEntropyWithLogits"]
        # The host asks whether a step is finite when all gradients are added up.
        asked = [r[3] for r in own if r[0] == "to host" and r[2] == 1]
        assert len(losses) == len(asked) == 8
        # The batch of step i + 1 begins to travel before the host knows whether step i is finite.
        assert len(sent) == 8
        ahead = sum(begin < end for begin, end in zip(sent[1:], asked, strict=False))
        assert ahead >= 6, (sent, asked)
        # Gradients of the last layers are sent before those of the first layers are computed.
        early = 0
        for begin, end in zip(losses, asked, strict=True):
            step = [r for r in own if begin < r[3] < end]
            exchanged = [r[3] for r in step if r[0] == "between" and r[2] > 1000]
            products = [r[3] for r in step if r[0] == "MatMul"]
            early += min(exchanged) < max(products)
        assert early >= 4


def test_the_table_can_be_printed(monkeypatch, capsys):
    row = {"to_device": 1, "between": 2, "to_host_bytes": 9, "to_host": 2, "peaks": [4.0, 5.0]}
    monkeypatch.setattr(budgets, "measure", lambda *given, **options: json.loads(json.dumps(row)))
    budgets.table()
    printed = capsys.readouterr().out
    row = "| wide | 2 | kerasdist, deterministic | 1.00 B | 2.0 P | 9 bytes in 2 copies | 5.0 P |"
    assert row in printed.splitlines()
