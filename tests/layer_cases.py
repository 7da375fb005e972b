"""A small model for every layer and activation that Keras exports: what the tests of bits draw.

`CASES` has a function of inputs for each class of `keras.layers`; `LEFT_OUT` says why the others
have none. Inputs are named by their kind, `INPUTS` has their shapes and how they are drawn.
"""

import contextlib
import hashlib
import json
import sys
from dataclasses import dataclass

import keras
import numpy as np

import kerasdist

L = keras.layers

# A kind of input: the shape of an example, and how many values it takes (None: real numbers).
INPUTS = {
    "vector": ((8,), None),
    "sequence": ((6, 4), None),
    "image": ((8, 8, 3), None),
    "volume": ((4, 4, 4, 2), None),
    "video1": ((3, 6, 2), None),
    "video2": ((3, 5, 5, 2), None),
    "video3": ((2, 3, 3, 3, 2), None),
    "tokens": ((6,), 12),
    "number": ((1,), 12),
    "sound": ((256,), None),
    "channel": ((256, 1), None),
}


def draw_input(kind, count, random):
    shape, num_values = INPUTS[kind]
    if num_values is not None:
        return random.integers(0, num_values, size=(count, *shape)).astype("int32")
    numbers = random.normal(size=(count, *shape)).astype("float32")
    return 1 / (1 + np.exp(-numbers)) if kind == "image" else numbers  # images from 0 to 1


def _of(kind, make):
    """A layer of one input."""
    return (kind,), lambda x: make()(x)


def _merge(make):
    """A layer that merges two inputs, each after a layer with weights."""
    return ("vector", "vector"), lambda a, b: make()([L.Dense(5)(a), L.Dense(5)(b)])


def _attention(make, lists=False):
    def call(x):
        query, value = L.Dense(4)(x), L.Dense(4)(x)
        return make()([query, value]) if lists else make()(query, value)

    return ("sequence",), call


def _each(names, kind, make):
    return {name: _of(kind, lambda name=name: make(getattr(L, name))) for name in names}


def _dimensions(pattern, make, numbers="123"):
    kinds = {"1": "sequence", "2": "image", "3": "volume"}
    return {
        pattern.format(n): _of(kinds[n], lambda n=n: make(getattr(L, pattern.format(n)), int(n)))
        for n in numbers
    }


def _embedded(make):
    return ("tokens",), lambda x: make()(L.Embedding(12, 4, mask_zero=True)(x))


def _reversible(x):
    layer = L.ReversibleEmbedding(12, 4)
    return layer(layer(x), reverse=True)


def _normalization():
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(0).normal(size=(20, 8)))
    return layer


def _lookup():
    return L.IntegerLookup(vocabulary=[1, 2, 3, 5, 7], output_mode="one_hot")


CASES = {
    "Activation": _of("vector", lambda: L.Activation("silu")),
    "ActivityRegularization": _of("vector", lambda: L.ActivityRegularization(0.1, 0.1)),
    **_dimensions("AdaptiveAveragePooling{}D", lambda c, n: c(2)),
    **_dimensions("AdaptiveMaxPooling{}D", lambda c, n: c(2)),
    "Add": _merge(L.Add),
    "AdditiveAttention": _attention(lambda: L.AdditiveAttention(dropout=0.1), lists=True),
    "AlphaDropout": _of("vector", lambda: L.AlphaDropout(0.3)),
    "Attention": _attention(lambda: L.Attention(use_scale=True, dropout=0.1), lists=True),
    "AugMix": _of("image", lambda: L.AugMix(value_range=(0, 1))),
    "AutoContrast": _of("image", lambda: L.AutoContrast(value_range=(0, 1))),
    "Average": _merge(L.Average),
    **_dimensions("AveragePooling{}D", lambda c, n: c(2, padding="same")),
    "BatchNormalization": _of("image", L.BatchNormalization),
    "Bidirectional": _embedded(lambda: L.Bidirectional(L.LSTM(3, return_sequences=True))),
    "CategoryEncoding": _of("tokens", lambda: L.CategoryEncoding(12, output_mode="count")),
    "CenterCrop": _of("image", lambda: L.CenterCrop(5, 6)),
    "Concatenate": _merge(L.Concatenate),
    "ContrastLimitedAdaptiveHistogramEqualization": _of(
        "image",
        lambda: L.ContrastLimitedAdaptiveHistogramEqualization(
            value_range=(0, 1), tile_grid_size=(2, 2)
        ),
    ),
    **_dimensions("Conv{}D", lambda c, n: c(4, 3, padding="same")),
    **_dimensions("Conv{}DTranspose", lambda c, n: c(3, 2, strides=2)),
    "ConvLSTM1D": _of("video1", lambda: L.ConvLSTM1D(2, 3, padding="same")),
    "ConvLSTM2D": _of("video2", lambda: L.ConvLSTM2D(2, 3, padding="same")),
    "ConvLSTM3D": _of("video3", lambda: L.ConvLSTM3D(2, 2, padding="same")),
    **_dimensions("Cropping{}D", lambda c, n: c(1)),
    "CutMix": _of("image", L.CutMix),
    "Dense": _of(
        "vector", lambda: L.Dense(7, kernel_regularizer="l2", kernel_constraint="max_norm")
    ),
    **_dimensions("DepthwiseConv{}D", lambda c, n: c(3, depth_multiplier=2), "12"),
    "Discretization": _of(
        "vector", lambda: L.Discretization([-0.5, 0.0, 0.7], output_mode="multi_hot")
    ),
    "Dot": _merge(lambda: L.Dot(axes=1, normalize=True)),
    "Dropout": _of("vector", lambda: L.Dropout(0.4)),
    "ELU": _of("vector", L.ELU),
    "EinsumDense": _of("sequence", lambda: L.EinsumDense("abc,cd->abd", (6, 5), bias_axes="d")),
    "Embedding": _of("tokens", lambda: L.Embedding(12, 4)),
    "Equalization": _of("image", lambda: L.Equalization(value_range=(0, 1), bins=16)),
    "Flatten": _of("image", L.Flatten),
    "GRU": _embedded(lambda: L.GRU(4, return_sequences=True, dropout=0.2)),
    "GRUCell": _of("sequence", lambda: L.RNN(L.GRUCell(3, reset_after=False))),
    "GaussianDropout": _of("vector", lambda: L.GaussianDropout(0.3)),
    "GaussianNoise": _of("vector", lambda: L.GaussianNoise(0.2)),
    **_dimensions("GlobalAveragePooling{}D", lambda c, n: c()),
    **_dimensions("GlobalMaxPooling{}D", lambda c, n: c()),
    "GroupNormalization": _of("image", lambda: L.GroupNormalization(groups=-1)),
    "GroupedQueryAttention": _attention(lambda: L.GroupQueryAttention(3, 4, 2)),
    "HashedCrossing": (
        ("number", "number"),
        lambda a, b: L.HashedCrossing(6, output_mode="one_hot")((a, b)),
    ),
    "Hashing": _of("number", lambda: L.Hashing(6, output_mode="one_hot")),
    "Identity": _of("vector", L.Identity),
    "InputLayer": (("vector",), lambda x: L.Dense(3)(x)),  # Every input of a model is one.
    # Keras takes its whole numbers for floats.
    "IntegerLookup": (("number",), lambda x: keras.ops.cast(_lookup()(x), "float32")),
    "LSTM": _of("sequence", lambda: L.LSTM(4, recurrent_dropout=0.1)),
    "LSTMCell": _of("sequence", lambda: L.RNN(L.LSTMCell(3))),
    "Lambda": _of("vector", lambda: L.Lambda(lambda x: x * keras.ops.sigmoid(x))),
    "LayerNormalization": _of("sequence", L.LayerNormalization),
    "LeakyReLU": _of("vector", L.LeakyReLU),
    "Masking": (("sequence",), lambda x: L.SimpleRNN(3)(L.Masking(0.5)(x))),
    **_dimensions("MaxPooling{}D", lambda c, n: c(2)),
    "Maximum": _merge(L.Maximum),
    "MelSpectrogram": _of(
        "sound",
        lambda: L.MelSpectrogram(
            fft_length=64, sequence_stride=32, num_mel_bins=8, sampling_rate=1000, max_freq=500
        ),
    ),
    "Minimum": _merge(L.Minimum),
    "MixUp": _of("image", L.MixUp),
    "MultiHeadAttention": _attention(lambda: L.MultiHeadAttention(2, 3, dropout=0.1)),
    "Multiply": _merge(L.Multiply),
    "Normalization": _of("vector", _normalization),
    "PReLU": _of("vector", lambda: L.PReLU(alpha_initializer="glorot_uniform")),
    "Permute": _of("sequence", lambda: L.Permute((2, 1))),
    "Pipeline": _of(
        "image", lambda: L.Pipeline([L.RandomFlip("horizontal"), L.RandomContrast(0.3)])
    ),
    "RMSNormalization": _of("sequence", L.RMSNormalization),
    "RNN": _of("sequence", lambda: L.RNN([L.GRUCell(3), L.SimpleRNNCell(2)])),
    "RandAugment": _of("image", lambda: L.RandAugment(value_range=(0, 1), num_ops=2)),
    "RandomBrightness": _of("image", lambda: L.RandomBrightness(0.3, value_range=(0, 1))),
    **_each(
        [
            "RandomColorDegeneration",
            "RandomHue",
            "RandomInvert",
            "RandomSharpness",
            "RandomErasing",
        ],
        "image",
        lambda c: c(0.5, value_range=(0, 1)),
    ),
    "RandomInvert": _of("image", lambda: L.RandomInvert(factor=0.5, value_range=(0, 1))),
    "RandomColorJitter": _of(
        "image",
        lambda: L.RandomColorJitter(
            value_range=(0, 1),
            brightness_factor=0.2,
            contrast_factor=0.2,
            saturation_factor=0.2,
            hue_factor=0.2,
        ),
    ),
    "RandomContrast": _of("image", lambda: L.RandomContrast(0.3, value_range=(0, 1))),
    # Without `training` it does not crop (Keras 3.15.1): the sizes of its outputs differ.
    "RandomCrop": (("image",), lambda x: L.GlobalAveragePooling2D()(L.RandomCrop(5, 5)(x))),
    "RandomElasticTransform": _of("image", lambda: L.RandomElasticTransform(value_range=(0, 1))),
    "RandomFlip": _of("image", L.RandomFlip),
    "RandomGaussianBlur": _of("image", lambda: L.RandomGaussianBlur(value_range=(0, 1))),
    "RandomGrayscale": _of("image", lambda: L.RandomGrayscale(0.5)),
    "RandomPerspective": _of("image", L.RandomPerspective),
    "RandomPosterization": _of("image", lambda: L.RandomPosterization(4, value_range=(0, 1))),
    "RandomRotation": _of("image", lambda: L.RandomRotation(0.2)),
    "RandomSaturation": _of("image", lambda: L.RandomSaturation(0.5, value_range=(0, 1))),
    "RandomShear": _of("image", lambda: L.RandomShear(0.2, 0.2)),
    "RandomTranslation": _of("image", lambda: L.RandomTranslation(0.2, 0.2)),
    "RandomZoom": _of("image", lambda: L.RandomZoom(0.2)),
    "ReLU": _of("vector", lambda: L.ReLU(negative_slope=0.1)),
    "RepeatVector": _of("vector", lambda: L.RepeatVector(3)),
    "Rescaling": _of("vector", lambda: L.Rescaling(0.3, 0.1)),
    "Reshape": _of("sequence", lambda: L.Reshape((4, 6))),
    "Resizing": _of("image", lambda: L.Resizing(5, 7)),
    "ReversibleEmbedding": (("tokens",), _reversible),
    "STFTSpectrogram": _of("channel", lambda: L.STFTSpectrogram("real", 64, 32, 64, window=None)),
    **_dimensions("SeparableConv{}D", lambda c, n: c(4, 3), "12"),
    "SimpleRNN": _of("sequence", lambda: L.SimpleRNN(4, activation="silu")),
    "SimpleRNNCell": _of("sequence", lambda: L.RNN(L.SimpleRNNCell(3), return_sequences=True)),
    "Softmax": _of("vector", L.Softmax),
    "Solarization": _of("image", lambda: L.Solarization(value_range=(0, 1))),
    **_dimensions("SpatialDropout{}D", lambda c, n: c(0.4)),
    "SpectralNormalization": _of("vector", lambda: L.SpectralNormalization(L.Dense(5))),
    "StackedRNNCells": _of(
        "sequence", lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(3), L.GRUCell(2)]))
    ),
    "Subtract": _merge(L.Subtract),
    "TimeDistributed": _of("sequence", lambda: L.TimeDistributed(L.Dense(3, activation="gelu"))),
    "UnitNormalization": _of("vector", L.UnitNormalization),
    **_dimensions("UpSampling{}D", lambda c, n: c(2)),
    **_dimensions("ZeroPadding{}D", lambda c, n: c(1)),
}

LEFT_OUT = {
    "FlaxLayer": "needs the JAX backend",
    "JaxLayer": "needs JAX",
    "Layer": "the base class, which computes nothing",
    "MaxNumBoundingBoxes": "changes bounding boxes alone, no numbers that a loss could see",
    "StringLookup": "strings have their own tests: tests/training/test_strings.py",
    "TFSMLayer": "loads a SavedModel from a file",
    "TextVectorization": "strings have their own tests: tests/training/test_strings.py",
    "TorchModuleWrapper": "needs the torch backend",
    "Wrapper": "a base class; Bidirectional, TimeDistributed and SpectralNormalization are cases",
}

# These fail in Keras 3.15.1 with bfloat16: there they are float32 amid the rest.
FLOAT32_ALONE = {
    *{"ActivityRegularization", "AugMix", "CutMix", "Discretization", "RandAugment"},
    *{"RandomPerspective", "RandomRotation", "RandomShear", "RandomTranslation", "RandomZoom"},
    "STFTSpectrogram",
}
# A layer before it makes Keras 3.15.1 see a cycle in the model.
FIRST_ALONE = {"Equalization"}

ACTIVATIONS = sorted(
    name
    for name in dir(keras.activations)
    # `threshold` is no activation by name: it needs two more arguments.
    if name[0] != "_" and name not in ("deserialize", "get", "serialize", "threshold")
)


def layer_names():
    """Names of the layers that Keras exports, without second names of the same class."""
    classes = {}
    for name in sorted(dir(L)):
        found = getattr(L, name)
        if isinstance(found, type) and issubclass(found, L.Layer):
            classes.setdefault(found, found.__name__)
    return sorted(classes.values())


def branch(name, activation, inputs):
    """Weights, the layer, the activation, weights: forwards and backwards through the layer."""
    kinds, call = CASES[name]
    if name not in FIRST_ALONE:
        inputs = [_weighed(x, kind) for x, kind in zip(inputs, kinds, strict=True)]
    hidden = call(*inputs)
    return L.Dense(2)(L.Flatten()(_activated(_real(hidden), activation)))


def _weighed(x, kind):
    """Real numbers after a layer with weights; those of an image stay between 0 and 1."""
    if INPUTS[kind][1] is not None:
        return x
    return L.Dense(x.shape[-1], activation="sigmoid" if kind == "image" else None)(x)


def _real(x):
    return x if "float" in x.dtype else keras.ops.cast(x, keras.config.floatx())


def _activated(x, activation):
    if activation != "glu":
        return L.Activation(activation)(x)
    # One half of the channels times the other: `Activation` takes it for the same shape.
    return keras.activations.glu(L.Concatenate()([x, x]) if x.shape[-1] % 2 else x)


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@dataclass(frozen=True)
class Draw:
    """One drawn model and how it is trained, by number: the same in every process."""

    number: int

    @property
    def _random(self):
        return np.random.default_rng([self.number, 5])

    @property
    def names(self):
        """Three layers; a round of draws has every layer once."""
        names = sorted(CASES)
        rounds, place = divmod(self.number, DRAWS_A_ROUND)
        order = np.random.default_rng([rounds, 3]).permutation(names)
        return order[place::DRAWS_A_ROUND].tolist()

    @property
    def activations(self):
        """As many; about three rounds have every activation with a third of the layers."""
        shift = 3 * self.number + self.number // len(ACTIVATIONS)
        return [ACTIVATIONS[(shift + i) % len(ACTIVATIONS)] for i in range(len(self.names))]

    @property
    def precision(self):
        return ("float32", "mixed_bfloat16")[self.number % 2]

    def build(self):
        keras.utils.set_random_seed(self.number)
        inputs, outputs = [], []
        for name, activation in zip(self.names, self.activations, strict=True):
            own = [
                keras.Input(INPUTS[kind][0], dtype="int32" if INPUTS[kind][1] else "float32")
                for kind in CASES[name][0]
            ]
            inputs += own
            with policy("float32" if name in FLOAT32_ALONE else self.precision):
                outputs.append(branch(name, activation, own))
        sums = L.Add(dtype="float32")(outputs)
        model = keras.Model(inputs, sums)
        random = self._random
        optimizer = str(random.choice(["sgd", "adam", "adamw", "rmsprop", "lion", "muon"]))
        loss = str(random.choice(["mse", "mae", "huber", "log_cosh"]))
        # Keras 3.13 does not know it by name.
        chosen = keras.optimizers.Muon() if optimizer == "muon" else optimizer
        model.compile(chosen, loss, metrics=["mae"])
        return model

    @property
    def batch_size(self):
        return int(self._random.choice([5, 7, 9, 11, 13]))

    def data(self):
        """Three batches, the last smaller: shards of sizes that differ, and empty ones."""
        random, count = self._random, 2 * self.batch_size + self.number % 4 + 1
        kinds = [kind for name in self.names for kind in CASES[name][0]]
        x = [draw_input(kind, count, random) for kind in kinds]
        return (tuple(x) if len(x) > 1 else x[0]), random.normal(size=(count, 2)).astype("float32")

    def options(self):
        random = self._random
        return {
            "batch_size": self.batch_size,
            "clip_norm": float(random.choice([0.5, 0])) or None,
            "ema": float(random.choice([0.9, 0])) or None,
            "seed": self.number,
        }

    def train(self, devices):
        """Digests of every variable by its path, and the logs, after an epoch on `devices`."""
        x, y = self.data()
        validation = tuple(a[:7] for a in x) if isinstance(x, tuple) else x[:7]
        history = kerasdist.fit(
            self.build,
            (x, y),
            validation_data=(validation, y[:7]),
            devices=devices,
            shards=4,
            deterministic=True,
            progress=False,
            **self.options(),
        )
        variables = (*history.model.weights, *history.model.optimizer.variables)
        # By number: Keras counts on in names, from model to model.
        found = {f"variable {i}": v.numpy() for i, v in enumerate(variables)}
        found |= {f"ema/{i}": w for i, w in enumerate(history.ema_weights or ())}
        digests = {k: hashlib.sha256(a.tobytes()).hexdigest()[:16] for k, a in found.items()}
        return {**digests, **{k: v for k, v in history.history.items() if "second" not in k}}


# As many as have three or four layers each.
DRAWS_A_ROUND = len(CASES) // 3


def main():
    """`python layer_cases.py FIRST END`: results of draws on one device, or on this cluster."""
    first, end = (int(word) for word in sys.argv[1:])
    for number in range(first, end):
        print(f"draw {number} {json.dumps(Draw(number).train(1), sort_keys=True)}", flush=True)


if __name__ == "__main__":
    main()
