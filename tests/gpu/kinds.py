"""Small models of many kinds, and their training on 1, 2 and 4 devices or as one of some workers.

`python -m tests.gpu.kinds [KIND ...]` trains them on fake GPUs (KERASDIST_FAKE_GPUS) and prints a
line of JSON each: hashes of the deterministic trainings, and how far the others are from one CPU.
With TF_CONFIG, the process is one of some workers, and each of them trains on all of its GPUs.
"""

import hashlib
import json
import os
import sys

from tests.gpu import fake_gpu

SHARDS, BATCH, EXAMPLES = 4, 12, 31


def _images(random):
    return random.normal(size=(EXAMPLES, 8, 8, 3)).astype("float32")


def _words(random):
    lengths = random.integers(2, 7, EXAMPLES)
    return random.integers(1, 20, (EXAMPLES, 6)) * (lengths[:, None] > [0, 1, 2, 3, 4, 5])


def _texts(random):
    import numpy as np

    return np.array([["a b", "c", "d a b c a"][i] for i in random.integers(0, 3, EXAMPLES)])


def _sparse(random):
    import tensorflow as tf

    dense = random.normal(size=(EXAMPLES, 9)) * (random.random((EXAMPLES, 9)) < 0.4)
    return tf.sparse.from_dense(dense.astype("float32"))


def _ragged(random):
    import tensorflow as tf

    lengths = random.integers(1, 5, EXAMPLES)
    return tf.RaggedTensor.from_row_lengths(random.integers(0, 20, lengths.sum()), lengths)


def _classifier(layers, inputs, *, metrics=("accuracy",), optimizer=None, **options):
    import keras

    model = keras.Sequential([inputs, *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, metrics=list(metrics), **options)
    return model


def convolutions():
    import keras

    layers = keras.layers
    hidden = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
    return _classifier([*hidden, layers.Flatten(), layers.Dense(3)], keras.Input((8, 8, 3)))


def mean_iou():
    """A metric with whole numbers, beside floats."""
    import keras

    metric = keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou")
    layer = keras.layers.Conv2D(3, 3, padding="same")
    return _classifier([layer], keras.Input((8, 8, 3)), metrics=[metric])


def integer_state():
    import keras

    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.steps = self.add_weight(dtype="int32", initializer="zeros", trainable=False)
            self.more = self.add_weight(dtype="int64", initializer="ones", trainable=False)

        def call(self, x, training=False):
            if training:
                self.steps.assign(self.steps + 1)
                self.more.assign(self.more + 2)
            return x

    layers = [keras.layers.Flatten(), Counting(), keras.layers.Dense(3)]
    return _classifier(layers, keras.Input((8, 8, 3)))


def gru():
    import keras

    layers = [keras.layers.Embedding(20, 5, mask_zero=True), keras.layers.GRU(6)]
    return _classifier([*layers, keras.layers.Dense(3)], keras.Input((6,), dtype="int32"))


def attention():
    import keras

    layers = keras.layers
    words = keras.Input((6,), dtype="int64")
    hidden = layers.Embedding(20, 8)(words)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 4)(hidden, hidden))
    hidden = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(words, layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    return model


def large():
    """More weights than are few: they are not packed, and updated in place."""
    import keras

    layers = [keras.layers.Flatten(), keras.layers.Dense(500, "relu"), keras.layers.Dense(3)]
    return _classifier(layers, keras.Input((8, 8, 3)))


def strings():
    """A model that begins with lookup tables, which only the host has."""
    import keras

    vector = keras.layers.TextVectorization(
        vocabulary=["a", "b", "c"], output_sequence_length=4, output_mode="int"
    )
    layers = [vector, keras.layers.Embedding(6, 5), keras.layers.GlobalAveragePooling1D()]
    return _classifier([*layers, keras.layers.Dense(3)], keras.Input((1,), dtype="string"))


def sparse():
    import keras

    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)]
    return _classifier(layers, keras.Input((9,), sparse=True))


def ragged():
    import keras
    import tensorflow as tf

    class Mean(keras.layers.Layer):
        def call(self, x):
            return tf.reduce_mean(x, axis=1)

    layers = [keras.layers.Embedding(20, 5), Mean(), keras.layers.Dense(3)]
    return _classifier(layers, keras.Input((None,), dtype="int64", ragged=True))


# Model, data ("images", "words", "texts", "sparse", "ragged" or "maps") and Keras's policy.
KINDS = {
    "mean_iou": (mean_iou, "maps", "float32"),
    "float64": (convolutions, "images", "float64"),
    "mixed_float16": (convolutions, "images", "mixed_float16"),
    "mixed_bfloat16": (convolutions, "images", "mixed_bfloat16"),
    "integer_state": (integer_state, "images", "float32"),
    "gru": (gru, "words", "float32"),
    "attention": (attention, "words", "float32"),
    "sparse": (sparse, "sparse", "float32"),
    "ragged": (ragged, "ragged", "float32"),
    "strings": (strings, "texts", "float32"),
    "large": (large, "images", "float32"),
    "large_float16": (large, "images", "mixed_float16"),
}


def data(form):
    import numpy as np

    random = np.random.default_rng(3)
    kinds = {"words": _words, "texts": _texts, "sparse": _sparse, "ragged": _ragged}
    make = kinds.get(form, _images)
    x = make(random)
    shape = (EXAMPLES, 8, 8) if form == "maps" else (EXAMPLES,)
    return x, random.integers(0, 3, shape)


def train(kind, devices, **options):
    """Weights, optimizer and logs after two epochs with a smaller last batch."""
    import keras

    import kerasdist

    build, form, policy = KINDS[kind]
    keras.config.set_dtype_policy(policy)

    def model():
        keras.utils.set_random_seed(1)
        made.append(build())
        return made[0]

    made = []
    large = {"ema": 0.9, "clip_norm": 1.0} if kind.startswith("large") else {}
    history = kerasdist.fit(
        model,
        data(form),
        validation_data=data(form),
        batch_size=BATCH,
        epochs=2,
        shards=SHARDS,
        devices=devices,
        seed=5,
        on_nan="skip",
        progress=False,
        **large,
        **options,
    )
    arrays = made[0].get_weights() + [v.numpy() for v in made[0].optimizer.variables]
    return arrays + (history.ema_weights or []), history.history


def sha(arrays, logs):
    digest = hashlib.sha256(json.dumps(logs, sort_keys=True).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def difference(found, expected):
    """The largest difference of two trainings, by the largest number of each array."""
    import numpy as np

    return max(
        float(np.max(np.abs(a.astype("float64") - b)) / max(np.max(np.abs(b.astype("float64"))), 1))
        for a, b in zip(found[0], expected[0], strict=True)
    )


def report(kind, counts):
    shas = {str(n): sha(*train(kind, n, deterministic=True)) for n in counts}
    if "TF_CONFIG" in os.environ:
        return {"kind": kind, "shas": shas}
    on_cpu = train(kind, "cpu")
    away = {str(n): difference(train(kind, n), on_cpu) for n in counts}
    return {"kind": kind, "shas": shas, "away": away}


def main(kinds):
    fake_gpu.load()
    if "TF_CONFIG" in os.environ:
        fake_gpu.without_nccl()
    counts = ["gpu"] if "TF_CONFIG" in os.environ else [1, 2, 4]
    for kind in kinds or KINDS:
        print(json.dumps(report(kind, counts)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
