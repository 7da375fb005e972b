"""`jit`: XLA compiles forward pass and gradient; the maths stays."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.training import preparation
from kerasdist.training.jit import Jit

# About a minute in all: `.ci/full` runs them.
pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(5)
IMAGES = RANDOM.normal(size=(21, 8, 8, 3)).astype("float32")
LABELS = RANDOM.integers(0, 4, 21)


def build(dropout, compiled="auto"):
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
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"], jit_compile=compiled)
    return model


def fit(dropout=0.2, compiled="auto", **options):
    model = build(dropout, compiled)
    history = kerasdist.fit(
        model, (IMAGES, LABELS), batch_size=8, epochs=2, progress=False, **options
    )
    return model.get_weights(), history.history


def is_compiled(engine):
    (traced,) = engine.train_loop._list_all_concrete_functions()
    functions = traced.graph.as_graph_def().library.function
    return any(f.attr["_XlaMustCompile"].b for f in functions)


@pytest.mark.parametrize("jit", [False, True])
def test_xla_compiles_only_if_it_is_on(jit, engines):
    fit(devices=1, jit=jit)
    assert is_compiled(engines[0]) is jit


@pytest.mark.parametrize(
    ("compiled", "options", "expected"),
    [
        ("auto", {}, False),  # On CPUs.
        (True, {}, True),
        (False, {}, False),
        (True, {"jit": False}, False),
        (False, {"jit": True}, True),
    ],
)
def test_compile_decides_unless_fit_does(compiled, options, expected, engines):
    fit(devices=1, compiled=compiled, **options)
    assert is_compiled(engines[0]) is expected


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
    with pytest.raises(kerasdist.KerasdistError) as told:
        fit(jit="yes")
    assert str(told.value) == (
        "Received `jit='yes'`. Expected 'auto', True, False, 'on' or 'off'. Leave it out for the "
        "default, 'auto'."
    )


@pytest.mark.parametrize("first", [{"jit": True}, {"compiled": True}])
def test_a_run_resumes_only_with_the_same_choice(tmp_path, first):
    fit(devices=1, run_dir=tmp_path, **first)
    for other in ({}, {"jit": False}):
        with pytest.raises(kerasdist.KerasdistError, match="jit was True and is None"):
            fit(devices=1, run_dir=tmp_path, **other)


def test_off_and_not_chosen_are_the_same_run(tmp_path):
    fit(devices=1, jit=False, run_dir=tmp_path)
    fit(devices=1, run_dir=tmp_path)
    with pytest.raises(kerasdist.KerasdistError, match="jit was None and is True"):
        fit(devices=1, jit=True, run_dir=tmp_path)


def test_another_decision_on_other_devices_is_a_warning(tmp_path, monkeypatch, capsys):
    """As if a GPU had decided for XLA, and the run was then resumed on a CPU."""
    model = build(0.0)
    options = {"batch_size": 8, "devices": 1, "run_dir": tmp_path, "progress": "lines"}
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "decide", lambda *_, **__: Jit(is_on=True, is_chosen=False))
        kerasdist.fit(model, (IMAGES, LABELS), epochs=1, **options)
        assert "jit was" not in capsys.readouterr().out
    kerasdist.fit(build(0.0), (IMAGES, LABELS), epochs=2, **options)
    assert "jit was True and is False. It continues" in "".join(capsys.readouterr())
