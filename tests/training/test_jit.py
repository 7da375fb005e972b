"""Whether XLA compiles: `jit`, then `compile(jit_compile=...)`, then what Keras would decide."""

import importlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.devices import private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.training.jit import Jit, decide

CPU, GPU = (Placement((name,), None) for name in ("CPU:0", "GPU:0"))
X = np.random.default_rng(0).normal(size=(8, 4, 3)).astype("float32")


@pytest.fixture
def gpu_machine(monkeypatch):
    """Keras and TensorFlow believe that there is a GPU."""
    gpu = SimpleNamespace(name="/physical_device:GPU:0", device_type="GPU")
    listed = tf.config.list_physical_devices

    def list_physical_devices(kind=None):
        return [gpu] if kind == "GPU" else [*listed(kind), *([gpu] if kind is None else [])]

    monkeypatch.setattr(tf.config, "list_physical_devices", list_physical_devices)
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(rnn, "_is_gpu_available", lambda: True)


def compiled(*layers, jit_compile="auto"):
    model = keras.Sequential([keras.Input((4, 3)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    return model


def decided(model, placement, wanted=None, *, deterministic=False, has_xla=True):
    return decide(
        wanted, model, placement, deterministic=deterministic, has_xla=lambda: has_xla
    ).is_on


def test_auto_is_on_on_gpus_only(gpu_machine):
    model = compiled()
    assert decide(None, model, GPU, deterministic=False, has_xla=lambda: True) == Jit(True, False)
    assert not decided(model, CPU)


def test_auto_is_off_on_a_machine_with_cpus_only():
    assert decide(None, compiled(), CPU, deterministic=False) == Jit(False, False)


def test_auto_is_off_where_xla_cannot_compile_for_the_gpu(gpu_machine):
    assert not decided(compiled(), GPU, has_xla=False)


def test_auto_is_off_with_deterministic_operations(gpu_machine, monkeypatch):
    model = compiled()
    assert not decided(model, GPU, deterministic=True)
    monkeypatch.setattr(private_tensorflow, "is_op_determinism_enabled", lambda: True)
    assert not decided(model, GPU)


class Outer(keras.layers.Layer):
    """Has a recurrent layer inside."""

    def __init__(self):
        super().__init__()
        self.parts = {"inner": [keras.layers.LSTM(2)]}

    def call(self, x):
        return self.parts["inner"][0](x)


class Late(keras.Model):
    """Makes its recurrent layer after Keras decided, in `compile`."""

    def build(self, shape):
        self.inner = keras.layers.GRU(2)
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.GRU(2),
        lambda: keras.layers.LSTM(2, dropout=0.1),
        lambda: keras.layers.Bidirectional(keras.layers.GRU(2)),
        lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
        lambda: keras.layers.RNN(keras.layers.GRUCell(2)),
        lambda: keras.layers.GRU(2, use_cudnn=False),
        Outer,
        lambda: keras.Sequential([keras.layers.LSTM(2)]),
    ],
)
def test_recurrent_layers_stay_on_cudnn(layer, gpu_machine):
    model = compiled(layer())
    names = {type(v).__name__ for v in model._flatten_layers()}
    uses_cudnn = bool(names & {"GRU", "LSTM"}) and not any(
        getattr(v, "use_cudnn", None) is False for v in model._flatten_layers()
    )
    assert decided(model, GPU) is not uses_cudnn
    # As Keras decides.
    assert decided(model, GPU) is model._resolve_auto_jit_compile()


def test_a_recurrent_layer_that_is_made_late_is_found(gpu_machine):
    model = Late()
    model.compile("sgd", "mse")
    model.build((None, 4, 3))
    assert model.jit_compile
    assert not decided(model, GPU)


def test_layers_that_xla_cannot_compile(gpu_machine):
    assert not decided(compiled(keras.layers.RandomZoom(0.1)), GPU)


def test_compile_wins_over_auto(gpu_machine):
    assert decided(compiled(jit_compile=True), GPU)
    assert not decided(compiled(jit_compile=False), GPU)


def test_on_a_machine_with_cpus_only_compile_wins():
    model = compiled(jit_compile=True)
    for deterministic in (False, True):
        assert decide(None, model, CPU, deterministic=deterministic) == Jit(True, True)
    assert decide(None, compiled(jit_compile=False), CPU, deterministic=False).is_on is False


@pytest.mark.parametrize("wanted", [True, False])
def test_jit_wins_over_everything(wanted, gpu_machine):
    for placement in (CPU, GPU):
        for model in (compiled(jit_compile=not wanted), compiled(keras.layers.GRU(2))):
            found = decide(wanted, model, placement, deterministic=True, has_xla=lambda: not wanted)
            assert found == Jit(wanted, True)


def test_a_layer_that_insists_on_cudnn_is_refused(gpu_machine):
    model = compiled(keras.Sequential([keras.layers.GRU(2, use_cudnn=True, name="g")]))
    with pytest.raises(kerasdist.KerasdistError) as told:
        decided(model, GPU, True)
    assert str(told.value) == (
        "Received `jit=True` and the layer 'g' with `use_cudnn=True`. Expected one of them: XLA "
        "cannot compile cuDNN's recurrent layers. Leave out `jit`, and the layer uses cuDNN; or "
        "make the layer with `use_cudnn='auto'`."
    )
    assert not decided(model, GPU)
    assert decided(model, CPU, True)


def test_it_is_on_only_if_it_is_on_for_all_workers(gpu_machine):
    class Two(Placement):
        def of_all(self, *values):
            return np.array([values, [0]])

    assert not decided(compiled(), Two(("GPU:0",), None))


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_cpus_do_not_use_cudnn_on_a_machine_with_gpus(jit, kind, gpu_machine):
    """The dropout keeps kerasdist's version for CPUs away, so this is Keras's layer."""
    weights = []
    for is_gpu_machine in (True, False):
        keras.utils.set_random_seed(1)
        model = compiled(kind(2, dropout=1e-9), jit_compile=False)
        if not is_gpu_machine:
            model.layers[0].use_cudnn = False
        kerasdist.fit(model, (X, X[:, 0, :1]), batch_size=4, devices="cpu", jit=jit, progress=False)
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
