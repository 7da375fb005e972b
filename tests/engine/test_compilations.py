"""How often XLA compiles: once for each shape of a shard, whatever the shard's number or device."""

import json
import subprocess
import sys

import pytest

from tests.devices.real_workers import environment

# Each fit has batches of 16 examples and 4 shards, so full batches have shards of 4. XLA writes
# a file for each module that it compiles.
FITS = """
import json, pathlib, sys
import keras
import numpy as np
import kerasdist

class Largest(keras.metrics.Metric):
    # Does not add up over shards, so the outputs for the whole batch are gathered.
    def __init__(self, **options):
        super().__init__(**options)
        self.value = self.add_weight(initializer="zeros")

    def update_state(self, y, outputs, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(outputs)))

    def result(self):
        return self.value + 0

def compilations(examples, devices, metrics=(), **options):
    before = len(list(pathlib.Path(sys.argv[1]).glob("*before_optimizations.txt")))
    random = np.random.default_rng(0)
    data = random.normal(size=(examples, 5)), random.normal(size=(examples, 2))
    dense = keras.layers.Dense
    model = keras.Sequential([dense(4), keras.layers.Dropout(0.2), dense(2)])
    model.compile("adam", "mse", metrics=list(metrics))
    kerasdist.fit(
        model, data, batch_size=16, epochs=2, devices=devices, shards=4, jit=True, progress=False,
        **options,
    )
    return len(list(pathlib.Path(sys.argv[1]).glob("*before_optimizations.txt"))) - before

found = {}
for devices in (1, 2):
    for examples in (32, 40, 34):
        found[f"plain {devices} {examples}"] = compilations(examples, devices)
    found[f"deterministic {devices} 40"] = compilations(40, devices, deterministic=True)
    found[f"gathered {devices} 34"] = compilations(34, devices, metrics=[Largest()])
    found[f"observed {devices} 32"] = compilations(
        32, devices, summary_every=1, run_dir=f"{sys.argv[1]}/{devices}"
    )
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compilations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xla")
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    done = subprocess.run(
        [sys.executable, "-c", FITS, str(folder)],
        env=environment(XLA_FLAGS=flags, KERASDIST_LOGICAL_CPUS="2"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("kind", "examples", "shapes"),
    [
        ("plain", 32, 1),  # Full batches.
        ("plain", 40, 2),  # The last batch is smaller: shards of 2.
        ("plain", 34, 2),  # The last batch has two shards of 1. Empty shards borrow an example.
        ("deterministic", 40, 2),
        ("gathered", 34, 2),
        ("observed", 32, 1),
    ],
)
def test_each_shape_is_compiled_once(compilations, kind, devices, examples, shapes):
    assert compilations[f"{kind} {devices} {examples}"] == shapes
