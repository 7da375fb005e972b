"""One training step: its walk through the files, as docs/inside-one-step.md shows it."""

import ast
import functools
import itertools
import re
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist.devices.placement import place
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings

PACKAGE = Path(kerasdist.__file__).parent
PAGE = PACKAGE.parent / "docs" / "inside-one-step.md"
ROW = re.compile(r"^\| (\d*) ?\| `(\w+)` \| (\S+\.py) \| [^|]+ \|$", re.MULTILINE)
MOST_SWITCHES = 20
# Questions to placements and tensors, vectors of tensors, values that are read when they are
# needed, and what replaces attributes of TensorFlow for a while.
NOT_READ = (
    "devices/placement.py",
    "engine/compiled/counters.py",
    "engine/compiled/random_seeds.py",
    "engine/packing.py",
    "engine/transfer/copies.py",
    "models/tensors/composites.py",
    "models/pure/replacements.py",
    "models/pure/steps/tf_random.py",
)
MOST_LINES = 45


def properties():
    """The code of all properties of kerasdist."""
    for name, module in list(sys.modules.items()):
        for owner in vars(module).values() if name.startswith("kerasdist.") else ():
            for value in vars(owner).values() if isinstance(owner, type) else ():
                if isinstance(value, property):
                    yield value.fget.__code__
                elif isinstance(value, functools.cached_property):
                    yield value.func.__code__


def stack(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


def calls_of_a_step(devices, shards):
    """`(function, file)` of what runs from a batch to new weights, each at its first call."""
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(20_000)(inputs)))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    engine = Engine(model, place(devices), Settings(shards=shards, joins=True))
    data = tf.data.Dataset.from_tensors((np.ones((8, 6), "float32"), np.ones((8, 3), "float32")))
    left_out, found = set(properties()), {}

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        is_read = code.co_name[0] != "<" and code.co_name != "__init__" and code not in left_out
        is_read = is_read and not code.co_filename.endswith(NOT_READ)
        # What Keras calls back is not in the text of the step.
        if is_read and not any("/keras/src/" in f.f_code.co_filename for f in stack(frame)):
            file = str(Path(code.co_filename).relative_to(PACKAGE))
            found.setdefault((code.co_name, file))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        engine.train_loop.get_concrete_function(iter(data), tf.constant(1, tf.int64))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    calls = list(found)
    first = calls.index(("run", "engine/engine.py"))
    return calls[first : calls.index(("assign", "engine/state.py")) + 1]


def visits(calls):
    """`(file, functions)`: neighbours in the same file are one visit."""
    groups = itertools.groupby(calls, key=lambda call: call[1])
    return [(file, [name for name, _ in group]) for file, group in groups]


def test_the_page_shows_the_walk_of_a_step():
    rows = ROW.findall(PAGE.read_text())
    shown = visits([(name, file) for _, name, file in rows])
    walk = visits(calls_of_a_step(devices=2, shards=4))
    assert [file for file, _ in shown] == [file for file, _ in walk], walk
    for (file, listed), (_, called) in zip(shown, walk, strict=True):
        assert [name for name in called if name in listed] == listed, file
    assert [int(number) for number, *_ in rows if number] == list(range(1, len(shown) + 1))
    assert len(shown) - 1 <= MOST_SWITCHES
    assert f"It has {len(shown)} visits to files, so {len(shown) - 1} switches" in PAGE.read_text()


def test_on_one_device_the_walk_is_shorter():
    switches = len(visits(calls_of_a_step(devices=1, shards=1))) - 1
    assert f"{switches} switches." in PAGE.read_text()


def test_the_step_fits_on_one_screen():
    tree = ast.parse((PACKAGE / "engine" / "train_step.py").read_text())
    (step,) = (node for node in tree.body if getattr(node, "name", "") == "train_step")
    assert step.end_lineno - step.body[1].lineno < MOST_LINES
