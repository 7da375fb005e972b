"""Large variables: one compiled pass over memory, the same update as Keras's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.models import pure
from kerasdist.models.pure.updates import fused

optimizers = keras.optimizers
SCHEDULE = optimizers.schedules.CosineDecay(0.05, 10)
VARIANTS = {
    **{kind.__name__: kind for kind in fused._KINDS},
    "SGD momentum": lambda: optimizers.SGD(0.001, momentum=0.9, nesterov=True),
    "SGD weight_decay": lambda: optimizers.SGD(0.01, weight_decay=0.01),
    "RMSprop centered": lambda: optimizers.RMSprop(0.0001, momentum=0.5, centered=True),
    "Adam amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "Adam schedule": lambda: optimizers.Adam(SCHEDULE),
    "Adam clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.3),
    "Adam use_ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "layer_rates": lambda: optimizers.Adam(0.01),
}
SIZE = 520


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """520 x 520 numbers are a large variable here. Really large ones take too long."""
    monkeypatch.setattr(fused, "LARGE", 2**18)


def _model(name):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    wide = [layers.Dense(SIZE, activation="tanh", name=f"wide_{i}") for i in range(3)]
    wide[1].kernel_constraint = keras.constraints.MaxNorm(0.9)
    model = keras.Sequential([keras.Input((SIZE,)), *wide, layers.Dense(1)])
    optimizer = VARIANTS[name]()
    if name == "layer_rates":
        optimizer = kerasdist.layer_rates(optimizer, {wide[2]: 0.5})
    model.compile(optimizer, "mse")
    return model


def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(8, SIZE)).astype("float32")
    return x, x.mean(axis=1, keepdims=True)


@pytest.fixture
def compiled(monkeypatch):
    """The sizes of the variables whose update was compiled."""
    found = []
    make = fused._compiled

    def note(optimizer, variable, formula):
        found.append(variable.path)
        return make(optimizer, variable, formula)

    monkeypatch.setattr(fused, "_compiled", note)
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_a_fused_update_is_that_of_kerass_fit(name, compiled):
    x, y = _data()
    theirs, ours = _model(name), _model(name)
    theirs.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0)
    kerasdist.fit(ours, x, y, batch_size=8, epochs=4, shuffle=False, verbose=0)
    assert compiled
    # Where a gradient is nearly 0, the sign of it decides in Lion: the kernels differ in the last
    # bit. So a few numbers may be off by a step.
    for mine, keras_s in zip(ours.weights, theirs.weights, strict=True):
        off = np.abs(mine.numpy() - keras_s.numpy()) > 1e-5
        assert off.mean() < 2e-3, mine.path
    for mine, keras_s in zip(ours.optimizer.variables, theirs.optimizer.variables, strict=True):
        off = np.abs(mine.numpy() - keras_s.numpy()) > 1e-4
        assert off.mean() < 2e-3, mine.path


def test_variables_with_the_same_formula_share_a_function(compiled):
    x, y = _data()
    kerasdist.fit(_model("Adam"), x, y, batch_size=8, verbose=0)
    assert len(compiled) == 1
    compiled.clear()
    kerasdist.fit(_model("layer_rates"), x, y, batch_size=8, verbose=0)
    assert len(compiled) == 2  # One layer has another rate.


def test_small_variables_and_custom_formulas_are_left_to_keras(compiled):
    class Half(optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient / 2, variable, learning_rate)

    x, y = _data()
    models = [_model("SGD"), _model("SGD")]
    models[0].compile(Half(0.1), "mse")
    models[1].compile(optimizers.SGD(0.05), "mse")
    kerasdist.fit(models[0], x, y, batch_size=8, verbose=0)
    assert not compiled
    kerasdist.fit(models[1], x, y, batch_size=8, verbose=0)
    assert compiled
    for half, plain in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(half, plain, atol=1e-6)
    large, small = (keras.Variable(np.zeros((n, n))) for n in (600, 500))
    assert fused.is_fusible(optimizers.Adam(), large)
    assert not fused.is_fusible(optimizers.Adam(), small)
    assert not fused.is_fusible(optimizers.Muon(), large)


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("bfloat16", 0.02)])
def test_other_precisions(dtype, bound, compiled):
    x, y = _data()
    results = []
    for fit in (keras.Model.fit, kerasdist.fit):
        keras.config.set_dtype_policy(dtype)
        try:
            model = _model("Adam")
        finally:
            keras.config.set_dtype_policy("float32")
        fit(model, x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        results.append([np.asarray(w, "float64") for w in model.get_weights()])
    assert compiled
    for theirs, ours in zip(*results, strict=True):
        assert np.mean(np.abs(ours - theirs) > bound) < 2e-3


def test_a_step_that_is_not_finite_changes_nothing(compiled):
    x, y = _data()
    model = _model("Adam")
    before = [np.array(w) for w in model.get_weights()]
    y = y.copy()
    y[3] = 1e30
    with pytest.raises(kerasdist.KerasdistError, match="not finite"):
        kerasdist.fit(model, x, y, batch_size=8, verbose=0)
    assert compiled
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("counts", [(1, 2, 4)])
def test_deterministic_updates_have_the_same_bits_on_all_devices(counts, compiled):
    x, y = _data()
    found = set()
    for count in counts:
        model = _model("AdamW")
        kerasdist.fit(
            model, x, y, batch_size=3, epochs=2, verbose=0, devices=count, deterministic=True
        )
        found.add(b"".join(w.tobytes() for w in model.get_weights()))
    assert len(compiled) >= len(counts)
    assert len(found) == 1


def test_what_is_stored_elsewhere_is_left_alone():
    """The state of a replica has its own variables; Keras's are not written."""
    optimizer, variable = optimizers.SGD(0.5), keras.Variable(np.ones((600, 600), "float32"))
    optimizer.build([variable])
    elsewhere = tf.Variable(np.full((600, 600), 3.0, "float32"))
    numbers = {id(v): v.value for v in optimizer.variables}
    with pure.patched(), pure.InPlace({id(variable): elsewhere}, numbers, pure.Fused()):
        optimizer.apply([tf.ones((600, 600))], [variable])
    np.testing.assert_array_equal(elsewhere, np.full((600, 600), 2.5))
    np.testing.assert_array_equal(variable.numpy(), np.ones((600, 600)))


def test_a_formula_that_reads_a_tensor_is_left_to_keras(compiled):
    """Keras takes a constant tensor for `beta_1`."""

    def trained(fit, **options):
        model = _model("Adam")
        model.compile(optimizers.Adam(0.01, beta_1=tf.constant(0.8)), "mse", jit_compile=False)
        fit(model, *_data(), batch_size=8, verbose=0, **options)
        return model.get_weights()

    for mine, keras_s in zip(trained(kerasdist.fit), trained(keras.Model.fit), strict=True):
        assert (np.abs(mine - keras_s) > 1e-5).mean() < 2e-3
    assert not compiled


def test_a_large_weight_that_call_assigns_is_decayed(compiled):
    """`SpectralNormalization` writes the kernel in `call`, and the optimizer writes it twice."""

    def trained(fit, **options):
        keras.utils.set_random_seed(1)
        inner = keras.layers.Dense(512, activation="tanh")
        model = keras.Sequential(
            [keras.Input((512,)), keras.layers.SpectralNormalization(inner), keras.layers.Dense(1)]
        )
        model.compile(optimizers.AdamW(1e-3, weight_decay=0.01), "mse", jit_compile=False)
        x = np.random.default_rng(0).normal(size=(16, 512)).astype("float32")
        fit(model, x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0, **options)
        return model.get_weights()

    for mine, keras_s in zip(trained(kerasdist.fit), trained(keras.Model.fit), strict=True):
        assert (np.abs(mine - keras_s) > 1e-4).mean() < 5e-3
    assert compiled


def test_what_is_large_pays(monkeypatch):
    """XLA took 67 MB for the million numbers of a small transformer's embedding, and saved none."""
    monkeypatch.undo()
    embedding, kernel = (keras.Variable(np.zeros(shape)) for shape in ((8000, 128), (2048, 1024)))
    assert not fused.is_fusible(optimizers.AdamW(), embedding)
    assert fused.is_fusible(optimizers.AdamW(), kernel)
