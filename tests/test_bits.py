"""`deterministic=True` with every layer and activation of Keras: the same bits on any devices.

Each draw is a model of three layers with their activations (`layer_cases`). A round of draws has
every layer once; float32 and mixed_bfloat16 take turns. `KERASDIST_DRAWS=400 python -m pytest -n 2
-m '' tests/test_bits.py` draws more.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from kerasdist.devices.cluster import Cluster
from kerasdist.devices.ports import free_ports
from tests import layer_cases
from tests.device_counts import those_here
from tests.layer_cases import CASES, DRAWS_A_ROUND, LEFT_OUT, Draw

NUM_DRAWS = int(os.environ.get("KERASDIST_DRAWS", DRAWS_A_ROUND))
# The quick tests train an eighth of a round. A number that is asked for is trained in full.
NUM_QUICK = NUM_DRAWS if "KERASDIST_DRAWS" in os.environ else DRAWS_A_ROUND // 8
EACH_DRAW = [
    pytest.param(number, marks=() if number < NUM_QUICK else pytest.mark.slow)
    for number in range(NUM_DRAWS)
]
# Draws of each round that two workers repeat.
WORKERS_EACH = 4 if NUM_DRAWS <= DRAWS_A_ROUND else 12


def different(one, other):
    return sorted(key for key in one | other if one.get(key) != other.get(key))


def test_every_layer_is_drawn_or_left_out_for_a_reason():
    assert set(CASES) | set(LEFT_OUT) == set(layer_cases.layer_names())
    assert not set(CASES) & set(LEFT_OUT)
    drawn = [name for number in range(DRAWS_A_ROUND) for name in Draw(number).names]
    assert sorted(drawn) == sorted(CASES)


def test_every_activation_is_drawn():
    drawn = {name for number in range(DRAWS_A_ROUND) for name in Draw(number).activations}
    assert drawn == set(layer_cases.ACTIVATIONS)
    assert {"silu", "swish", "gelu", "glu"} < drawn
    assert all(callable(getattr(keras.activations, name)) for name in drawn)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", EACH_DRAW)
def test_drawn_models_have_the_same_bits_on_1_2_and_4_devices(number):
    draw = Draw(number)
    one = draw.train(1)
    assert {"loss", "mae", "val_loss", "val_mae"} < one.keys()
    for devices in those_here(2, 4):
        assert not different(one, draw.train(devices)), f"{draw.names} {draw.activations}"


def start(first, end, **environ):
    kept = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "KERASDIST_LOGICAL_CPUS")}
    return subprocess.Popen(
        [sys.executable, layer_cases.__file__, str(first), str(end)],
        env={**kept, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results(process):
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output[-3000:]
    found = [line.split(" ", 2) for line in output.splitlines() if line.startswith("draw ")]
    return {int(number): json.loads(text) for _, number, text in found}


@pytest.mark.slow
@pytest.mark.parametrize("rounds", range(-(-NUM_DRAWS // DRAWS_A_ROUND)))
def test_drawn_models_have_the_same_bits_on_two_workers(rounds):
    first = rounds * DRAWS_A_ROUND
    end = first + WORKERS_EACH
    hosts = tuple(f"localhost:{port}" for port in free_ports(2))
    workers = [start(first, end, TF_CONFIG=Cluster(hosts, i).tf_config()) for i in range(2)]
    of_workers = [results(worker) for worker in workers]
    alone = results(start(first, end))
    assert sorted(alone) == list(range(first, end))
    for number, expected in alone.items():
        for found in of_workers:
            assert not different(expected, found[number]), Draw(number).names
