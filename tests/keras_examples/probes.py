"""Tiny Keras programs, one for each feature of the census, run on two devices by kerasdist."""

import functools
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.keras_examples import probe_models

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X[:, :1] * 2
TEXT = np.array([["good film"], ["bad film"]] * 8)


def _fitted(x=X, y=Y, model=None, compiled=None, **arguments):
    model = model or probe_models.dense()
    if not getattr(model, "compiled", False):
        model.compile(**({"optimizer": "sgd", "loss": "mse"} | (compiled or {})))
    model.fit(x, y, **({"batch_size": 8, "verbose": 0} | arguments))
    return model


def _step(kind):
    """A model with a step of its own, used by `fit` and `evaluate`."""
    model = getattr(probe_models, kind)()
    # Keras refuses compiled metrics that a step never updates.
    metrics = None if isinstance(model, probe_models.Adversarial) else ["mae"]
    model.compile(optimizer="sgd", loss="mse", metrics=metrics)
    model.fit(X, Y, batch_size=8, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)


def _callback(name):
    def make(folder):
        kind = getattr(keras.callbacks, name)
        return {
            "ModelCheckpoint": lambda: kind(f"{folder}/model.keras"),
            "BackupAndRestore": lambda: kind(f"{folder}/backup"),
            "TensorBoard": lambda: kind(folder),
            "CSVLogger": lambda: kind(f"{folder}/log.csv"),
            "LearningRateScheduler": lambda: kind(lambda epoch: 0.1),
            "EarlyStopping": lambda: kind(monitor="loss"),
            "ReduceLROnPlateau": lambda: kind(monitor="loss"),
        }.get(name, kind)()

    with tempfile.TemporaryDirectory() as folder:
        _fitted(callbacks=[make(folder)])


class _Asking(keras.callbacks.Callback):
    """Calls one of the model's methods at the end of each epoch."""

    def __init__(self, method):
        super().__init__()
        self.method = method

    def on_epoch_end(self, epoch, logs=None):
        given = (X,) if self.method == "predict" else (X, Y)
        getattr(self.model, self.method)(*given, verbose=0)


class CentralizingOptimizer(keras.optimizers.RMSprop):
    """Centralizes gradients, as an example of Keras does."""

    def apply(self, grads, trainable_variables=None):
        grads = [g - keras.ops.mean(g) if len(g.shape) > 1 else g for g in grads]
        return super().apply(grads, trainable_variables)


class _Data(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[index * 8 :][:8], Y[index * 8 :][:8]


def _batches():
    while True:
        yield X[:8], Y[:8]


def _strings():
    vectorization = keras.layers.TextVectorization(output_sequence_length=4)
    vectorization.adapt(TEXT)
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            vectorization,
            keras.layers.Embedding(20, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    data = tf.data.Dataset.from_tensor_slices((TEXT, Y)).batch(8)
    _fitted(data, None, model, batch_size=None)


def _torch_loader():
    import torch

    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    _fitted(torch.utils.data.DataLoader(data, batch_size=8), None, batch_size=None)


def _in_scope():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = probe_models.dense()
        model.compile("sgd", "mse")
    _fitted(model=model)


def _fit_in_scope():
    with tf.distribute.get_strategy().scope():
        _fitted()


def _other_backend():
    """A script that names another backend before it imports Keras, started by `kerasdist run`."""
    lines = [
        "import os",
        "os.environ['KERAS_BACKEND'] = 'jax'",
        "import keras",
        "assert keras.backend.backend() == 'tensorflow'",
    ]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text("\n".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "kerasdist", "run", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip() or "no output").splitlines()[-1])


def _mixed():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        _fitted()
    finally:
        keras.config.set_dtype_policy("float32")


def _lora():
    model = probe_models.dense()
    model.layers[0].enable_lora(2)
    _fitted(model=model)


def _stateful():
    layers = [keras.Input(batch_shape=(8, 4, 1)), keras.layers.LSTM(2, stateful=True)]
    _fitted(X[..., None], X[:, :2], keras.Sequential(layers))


def _ragged():
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(32) % 5, [1, 3] * 8)
    model = keras.Sequential(
        [
            keras.Input((None,), ragged=True, dtype="int32"),
            keras.layers.Embedding(5, 3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    _fitted(ragged, Y, model)


def _sparse():
    model = keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(1)])
    _fitted(tf.sparse.from_dense(X), Y, model)


def _ctc():
    model = keras.Sequential([keras.Input((6, 2)), keras.layers.Dense(5)])
    labels = np.random.default_rng(0).integers(1, 4, (16, 3))
    x = np.random.default_rng(1).normal(size=(16, 6, 2))
    _fitted(x, labels, model, {"loss": keras.losses.CTC()})


def _optimizer(name):
    kind = getattr(keras.optimizers, name)
    inner = {
        "LossScaleOptimizer": lambda: (keras.optimizers.SGD(),),
        "MultiOptimizer": lambda: (
            keras.optimizers.OptimizerMap(
                keras.optimizers.SGD(), {".*/bias": keras.optimizers.Adam()}
            ),
        ),
    }.get(name, tuple)
    _fitted(compiled={"optimizer": kind(*inner())})


def _normalized():
    model = keras.Sequential(
        [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
    )
    _fitted(model=model)


def _optimizer_with(**options):
    _fitted(compiled={"optimizer": keras.optimizers.SGD(0.1, **options)})


# They need a server, another package, or an optimizer with a moving average.
_NOT_TRIED = ("RemoteMonitor", "OrbaxCheckpoint", "SwapEMAWeights")

PROBES = {
    **{f"own {name}": functools.partial(_step, kind) for name, kind in probe_models.KINDS.items()},
    "several updates in a step": functools.partial(_step, "Adversarial"),
    "updates in a loop": functools.partial(_step, "Looping"),
    "an update inside tf.cond": functools.partial(_step, "Conditional"),
    "tf.random in a step": functools.partial(_step, "Noisy"),
    "a persistent tape": functools.partial(_step, "PersistentTape"),
    "compiled_loss, compiled_metrics": functools.partial(_step, "CompiledLoss"),
    "a SeedGenerator": functools.partial(_step, "Seeded"),
    "custom callback": lambda: _fitted(callbacks=[keras.callbacks.LambdaCallback()]),
    "predict in a callback": lambda: _fitted(callbacks=[_Asking("predict")]),
    "evaluate in a callback": lambda: _fitted(callbacks=[_Asking("evaluate")]),
    "custom optimizer": lambda: _fitted(compiled={"optimizer": CentralizingOptimizer()}),
    "data: PyDataset": lambda: _fitted(_Data(), None, batch_size=None),
    "data: tf.data": lambda: _fitted(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), None, batch_size=None
    ),
    "data: a generator": lambda: _fitted(_batches(), None, batch_size=None, steps_per_epoch=2),
    "data: torch DataLoader": _torch_loader,
    "data: ragged": _ragged,
    "data: sparse": _sparse,
    "layer(ragged)": _ragged,
    "layer(sparse)": _sparse,
    "layer(stateful)": _stateful,
    "layer(synchronized)": _normalized,
    "strings into the model": _strings,
    "add_loss": lambda: _fitted(model=probe_models.Penalized()),
    "enable_lora": _lora,
    "mixed precision": _mixed,
    "loss: CTC": _ctc,
    "a scope of tf.distribute": _in_scope,
    "fit inside a scope of tf.distribute": _fit_in_scope,
    "KERAS_BACKEND set to another backend": _other_backend,
    "compile(run_eagerly)": lambda: _fitted(compiled={"run_eagerly": True}),
    "compile(jit_compile)": lambda: _fitted(compiled={"jit_compile": False}),
    "compile(steps_per_execution)": lambda: _fitted(compiled={"steps_per_execution": 2}),
    "compile(auto_scale_loss)": lambda: _fitted(compiled={"auto_scale_loss": True}),
    "optimizer(gradient_accumulation_steps)": lambda: _optimizer_with(
        gradient_accumulation_steps=2
    ),
    "optimizer(use_ema)": lambda: _optimizer_with(use_ema=True),
    "optimizer(ema_overwrite_frequency)": lambda: _optimizer_with(
        use_ema=True, ema_overwrite_frequency=2
    ),
    **{
        f"optimizer: {name}": functools.partial(_optimizer, name)
        for name in sorted(vars(keras.optimizers))
        if name[0].isupper() and name not in ("Optimizer", "OptimizerMap")
    },
    **{
        f"callback: {name}": functools.partial(_callback, name)
        for name in sorted(vars(keras.callbacks))
        if name[0].isupper() and name not in ("Callback", "CallbackList", *_NOT_TRIED)
    },
}


def failure(feature):
    """Runs the program of a feature: "" if it works, else the first line of its error."""
    if feature not in PROBES:
        return "not tried by the census"
    if not hasattr(kerasdist, "enable"):
        return "this kerasdist has no `enable`"
    keras.utils.set_random_seed(0)
    try:
        with warnings.catch_warnings(), kerasdist.enable(devices=2):
            warnings.simplefilter("ignore")
            PROBES[feature]()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason.
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    return ""
