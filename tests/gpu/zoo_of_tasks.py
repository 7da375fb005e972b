"""More of the audit's zoo: models for usual tasks, with their losses and metrics."""

from collections.abc import Callable

import keras
import numpy as np

from tests.gpu.zoo import Case, classifier, integers, normal, uniform

L, ops = keras.layers, keras.ops
TASKS: dict[str, Callable[[], Case]] = {}


def entry(make):
    TASKS[make.__name__] = make
    return make


def compiled(model, optimizer, loss, **more):
    model.compile(optimizer, loss, **more)
    return model


@entry
def unet_mean_iou():
    def build():
        x = keras.Input((16, 16, 3))
        a = L.Conv2D(8, 3, padding="same", activation="relu")(x)
        b = L.Conv2D(8, 3, padding="same", activation="relu")(L.MaxPooling2D()(a))
        up = L.Concatenate()([L.Conv2DTranspose(8, 2, strides=2)(b), a])
        outputs = L.Conv2D(4, 1, activation="softmax", dtype="float32")(up)
        metrics = [keras.metrics.MeanIoU(4, sparse_y_pred=False), "accuracy"]
        return compiled(
            keras.Model(x, outputs), "adam", "sparse_categorical_crossentropy", metrics=metrics
        )

    return Case(build, (uniform(16, 16, 3), integers(4, 16, 16)))


@entry
def transformer_encoder():
    def build():
        x = keras.Input((8,), dtype="int32")
        h = L.Embedding(30, 16, mask_zero=True)(x) + L.Embedding(8, 16)(ops.arange(8))
        a = L.MultiHeadAttention(2, 8, dropout=0.1)(h, h)
        h = L.LayerNormalization()(h + a)
        h = L.LayerNormalization()(h + L.Dense(16)(L.Dense(32, activation="gelu")(h)))
        outputs = L.Dense(3, activation="softmax", dtype="float32")(L.GlobalAveragePooling1D()(h))
        loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
        metrics = ["accuracy", keras.metrics.F1Score(), keras.metrics.TopKCategoricalAccuracy(2)]
        return compiled(keras.Model(x, outputs), "adamw", loss, metrics=metrics)

    return Case(build, (integers(30, 8), np.eye(3, dtype="float32")[integers(3)]))


@entry
def causal_lm():
    def build():
        x = keras.Input((8,), dtype="int32")
        embedding = L.ReversibleEmbedding(30, 16, mask_zero=True)
        h = L.RMSNormalization()(embedding(x))
        h = h + L.GroupQueryAttention(8, 4, 2)(h, h, use_causal_mask=True)
        h = h + L.MultiHeadAttention(2, 8)(h, h, use_causal_mask=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model = keras.Model(x, L.Activation("linear", dtype="float32")(embedding(h, reverse=True)))
        return compiled(model, "adam", loss, weighted_metrics=["accuracy"])

    tokens = integers(30, 9, low=0)
    return Case(build, (tokens[:, :-1], tokens[:, 1:]))


class Sampling(L.Layer):
    """The latent variable of a VAE, with its part of the loss."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        terms = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        # Keras 3.15 cannot add 16-bit numbers to a loss of float32.
        self.add_loss(ops.cast(-0.5 * ops.mean(terms), "float32"))
        noise = keras.random.normal(ops.shape(mean), dtype=self.compute_dtype, seed=self.seed)
        return mean + ops.exp(0.5 * log_variance) * noise


@entry
def vae_add_loss():
    def build():
        x = keras.Input((12,))
        h = L.Dense(16, activation="elu")(x)
        z = Sampling()([L.Dense(2)(h), L.Dense(2)(h)])
        outputs = L.Dense(12, activation="sigmoid", dtype="float32")(L.Dense(16)(z))
        return compiled(keras.Model(x, outputs), "adam", "binary_crossentropy", metrics=["mse"])

    x = uniform(12)
    return Case(build, (x, x))


@entry
def siamese():
    def build():
        a, b = keras.Input((8,)), keras.Input((8,))
        tower = keras.Sequential([L.Dense(16, activation="relu"), L.Dense(4)])
        distance = ops.abs(tower(a) - tower(b))
        outputs = L.Dense(1, activation="sigmoid", dtype="float32")(distance)
        metrics = [keras.metrics.AUC(), "accuracy", keras.metrics.Precision()]
        return compiled(
            keras.Model([a, b], outputs), "adam", "binary_crossentropy", metrics=metrics
        )

    return Case(build, ((normal(8), uniform(8)), integers(2, 1)))


@entry
def two_tower():
    def build():
        user, item = keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")
        a = L.Flatten()(L.Embedding(20, 8, embeddings_regularizer="l2")(user))
        b = L.Flatten()(L.Embedding(20, 8)(item))
        outputs = L.Activation("linear", dtype="float32")(L.Dot(1, normalize=True)([a, b]))
        return compiled(
            keras.Model([user, item], outputs), "adam", "mse", metrics=["mae", "cosine_similarity"]
        )

    return Case(build, ((integers(20, 1), integers(19, 1)), uniform(1)))


@entry
def multi_output():
    def build():
        x = keras.Input((8,))
        h = L.Dense(16, activation="selu")(x)
        names = {"kind": (4, "softmax"), "flag": (1, "sigmoid"), "value": (2, None)}
        outputs = {n: L.Dense(k, a, name=n, dtype="float32")(h) for n, (k, a) in names.items()}
        m = keras.metrics
        metrics = {
            "kind": [m.SparseTopKCategoricalAccuracy(2), m.SparseCategoricalCrossentropy()],
            "flag": [
                *(m.AUC(curve="PR"), m.Precision(), m.Recall(), m.F1Score(threshold=0.5)),
                *(m.BinaryIoU(), m.SensitivityAtSpecificity(0.5), m.FalsePositives(), "accuracy"),
            ],
            "value": [m.RootMeanSquaredError(), m.R2Score(), m.MeanAbsolutePercentageError()],
        }
        losses = {"kind": "sparse_categorical_crossentropy", "flag": "binary_focal_crossentropy"}
        return compiled(
            keras.Model(x, outputs), "adam", losses | {"value": "huber"}, metrics=metrics
        )

    labels = {"kind": integers(4), "flag": integers(2, 1).astype("float32"), "value": normal(2)}
    return Case(build, (normal(8), labels))


@entry
def ctc():
    def build():
        x = keras.Input((12, 4))
        outputs = L.Dense(6, dtype="float32")(L.GRU(8, return_sequences=True)(x))
        return compiled(keras.Model(x, outputs), "adam", keras.losses.CTC())

    return Case(build, (normal(12, 4), integers(6, 4, low=1)))


@entry
def other_losses():
    def build():
        x = keras.Input((8,))
        h = L.Dense(16, activation="tanh")(x)
        losses = ["kl_divergence", "poisson", "log_cosh", "hinge", "cosine_similarity"]
        outputs = [L.Dense(3, "softmax", dtype="float32")(h) for _ in losses]
        return compiled(keras.Model(x, outputs), "adam", losses)

    return Case(build, (normal(8), [np.eye(3, dtype="float32")[integers(3)]] * 5))


@entry
def sample_weights():
    case = classifier(lambda: [L.Dense(16)], normal(8), metrics=())

    def build():
        model = case.build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return compiled(model, "adam", loss, weighted_metrics=["accuracy"])

    return Case(build, (*case.data, uniform()))
