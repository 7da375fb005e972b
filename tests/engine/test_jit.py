"""`jit`: XLA compiles forward pass and gradient; the maths stays."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.training import session

RANDOM = np.random.default_rng(5)
IMAGES = RANDOM.normal(size=(21, 8, 8, 3)).astype("float32")
LABELS = RANDOM.integers(0, 4, 21)


def build(dropout):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(8, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    return model


def fit(dropout=0.2, **options):
    model = build(dropout)
    history = kerasdist.fit(
        model, (IMAGES, LABELS), batch_size=8, epochs=2, progress=False, **options
    )
    return model.get_weights(), history.history


@pytest.mark.parametrize("jit", [False, True])
def test_xla_compiles_only_if_it_is_on(jit, monkeypatch):
    engines = []

    class Recorded(session.Engine):
        def __init__(self, *args):
            super().__init__(*args)
            engines.append(self)

    monkeypatch.setattr(session, "Engine", Recorded)
    fit(devices=1, jit=jit)
    (traced,) = engines[0].train_loop._list_all_concrete_functions()
    functions = traced.graph.as_graph_def().library.function
    assert any(f.attr["_XlaMustCompile"].b for f in functions) is jit


def test_it_is_the_same_maths():
    # XLA draws other random numbers.
    plain, compiled = (fit(0.0, devices=1, jit=jit) for jit in (False, True))
    for a, b in zip(plain[0], compiled[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert plain[1]["accuracy"] == compiled[1]["accuracy"]


def test_deterministic_bits_do_not_depend_on_the_devices():
    one, two = (fit(devices=n, jit="on", shards=2, deterministic=True) for n in (1, 2))
    for a, b in zip(one[0], two[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert one[1] == two[1]


def test_a_wrong_value_is_an_error_before_anything_is_built():
    with pytest.raises(kerasdist.KerasdistError, match="Received `jit='yes'`"):
        fit(jit="yes")


def test_a_run_resumes_only_with_the_same_jit(tmp_path):
    fit(devices=1, jit=True, run_dir=tmp_path)
    with pytest.raises(kerasdist.KerasdistError, match="jit"):
        fit(devices=1, run_dir=tmp_path)
