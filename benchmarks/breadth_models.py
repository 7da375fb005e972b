"""Whole models that nobody tuned, for breadth.py: layers and data on any backend of Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = tuple[Any, Any]


@dataclass(frozen=True)
class Whole:
    """A model with data: `arrays(rows)` makes so many examples, `build()` the compiled model.

    `steps` is the length of a round. `tensorflow_only` models have a `train_step` of TensorFlow's.
    """

    meaning: str
    batch_size: int
    steps: int
    build: Callable[[], Any]
    arrays: Callable[[int], Arrays]
    tensorflow_only: bool = False


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def _images(size: int, classes: int = 10, channels: int = 3) -> Callable[[int], Arrays]:
    def arrays(rows: int) -> Arrays:
        random = _random()
        x = random.normal(size=(rows, size, size, channels)).astype("float32")
        return x, random.integers(0, classes, rows)

    return arrays


def _tokens(length: int, vocabulary: int, classes: int = 0) -> Callable[[int], Arrays]:
    """Rows of tokens, with the next tokens as targets, or with a class per row."""

    def arrays(rows: int) -> Arrays:
        random = _random()
        tokens = random.integers(0, vocabulary, (rows, length + 1)).astype("int32")
        if classes:
            return tokens[:, :-1], random.integers(0, classes, rows)
        return tokens[:, :-1], tokens[:, 1:]

    return arrays


def _compiled(model: Any, optimizer: str = "adam") -> Any:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def _mobilenet() -> Any:
    import keras

    return _compiled(
        keras.applications.MobileNetV3Small(
            input_shape=(64, 64, 3), weights=None, classes=10, classifier_activation=None
        )
    )


def _efficientnet() -> Any:
    import keras

    layers = keras.layers

    def block(x: Any, filters: int, stride: int) -> Any:
        given = x
        x = layers.Conv2D(4 * x.shape[-1], 1, use_bias=False)(x)
        x = layers.Activation("swish")(layers.BatchNormalization()(x))
        x = layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)(x)
        x = layers.Activation("swish")(layers.BatchNormalization()(x))
        channels = x.shape[-1]
        gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
        gate = layers.Conv2D(channels // 16, 1, activation="swish")(gate)
        x = x * layers.Conv2D(channels, 1, activation="sigmoid")(gate)
        x = layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(x))
        return layers.Dropout(0.1)(x) + given if given.shape == x.shape else x

    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(16, 3, 2, padding="same", activation="swish")(inputs)
    for filters, stride in ((16, 1), (24, 2), (24, 1), (40, 2), (40, 1), (80, 2), (80, 1)):
        x = block(x, filters, stride)
    x = layers.GlobalAveragePooling2D()(x)
    return _compiled(keras.Model(inputs, layers.Dense(10)(x)))


def _resnet() -> Any:
    import keras

    layers = keras.layers

    def block(x: Any, filters: int, stride: int) -> Any:
        given = x
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        if given.shape != x.shape:
            given = layers.Conv2D(filters, 1, stride)(given)
        return layers.ReLU()(x + given)

    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for filters in (16, 32, 64):
        for number in range(2):
            x = block(x, filters, 2 if filters > 16 and number == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    return _compiled(model, keras.optimizers.SGD(0.1, momentum=0.9))


def _unet() -> Any:
    import keras

    layers = keras.layers

    def two(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        return x

    inputs = keras.Input((64, 64, 3))
    x, kept = inputs, []
    for filters in (8, 16, 32):
        x = two(x, filters)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = two(x, 64)
    for filters in (32, 16, 8):
        x = layers.Conv2DTranspose(filters, 2, 2)(x)
        x = two(layers.Concatenate()([x, kept.pop()]), filters)
    return _compiled(keras.Model(inputs, layers.Conv2D(4, 1)(x)))


def _masks(rows: int) -> Arrays:
    x, _ = _images(64)(rows)
    return x, _random().integers(0, 4, (rows, 64, 64))


def _encoder(x: Any, blocks: int, *, causal: bool) -> Any:
    import keras

    layers = keras.layers
    width = x.shape[-1]
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y, use_causal_mask=causal)
        x = x + layers.Dropout(0.1)(y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(width)(y))
    return layers.LayerNormalization()(x)


def _embedded(length: int, vocabulary: int, width: int) -> tuple[Any, Any]:
    import keras

    inputs = keras.Input((length,), dtype="int32")
    places = keras.ops.arange(length)
    x = keras.layers.Embedding(vocabulary, width)(inputs)
    return inputs, x + keras.layers.Embedding(length, width)(places)


def _language_model() -> Any:
    import keras

    inputs, x = _embedded(64, 2000, 128)
    return _compiled(
        keras.Model(inputs, keras.layers.Dense(2000)(_encoder(x, 2, causal=True))), "adamw"
    )


def _bert() -> Any:
    import keras

    inputs, x = _embedded(128, 8000, 128)
    first = _encoder(x, 2, causal=False)[:, 0]
    pooled = keras.layers.Dense(128, activation="tanh")(first)
    return _compiled(keras.Model(inputs, keras.layers.Dense(2)(pooled)), "adamw")


def _mixer() -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 128))(layers.Conv2D(128, 4, 4)(inputs))
    for _ in range(4):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(64)(layers.Dense(128, activation="gelu")(y))
        x = x + layers.Permute((2, 1))(y)
        y = layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128)(y)
    x = layers.GlobalAveragePooling1D()(x)
    return _compiled(keras.Model(inputs, layers.Dense(10)(x)))


def _two_towers() -> Any:
    import keras

    layers = keras.layers
    user, item = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    one = layers.Embedding(400_000, 32)(user)
    other = layers.Embedding(400_000, 32)(item)
    model = keras.Model([user, item], layers.Dot(axes=1)([one, other]))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def _clicks(rows: int) -> Arrays:
    random = _random()
    user, item = random.integers(0, 400_000, (2, rows)).astype("int32")
    return [user, item], random.integers(0, 2, (rows, 1)).astype("float32")


def _wide() -> Any:
    import keras

    layers = keras.layers
    return _compiled(
        keras.Sequential(
            [
                keras.Input((1024,)),
                layers.Dense(4096, activation="relu"),
                layers.Dense(4096, activation="relu"),
                layers.Dense(10),
            ]
        )
    )


def _vectors(rows: int) -> Arrays:
    random = _random()
    return random.normal(size=(rows, 1024)).astype("float32"), random.integers(0, 10, rows)


def _recurrent(kind: str) -> Callable[[], Any]:
    def build() -> Any:
        import keras

        layer = getattr(keras.layers, kind)
        return _compiled(
            keras.Sequential(
                [
                    keras.Input((48, 32)),
                    layer(128, return_sequences=True),
                    layer(128),
                    keras.layers.Dense(10),
                ]
            )
        )

    return build


def _sequences(rows: int) -> Arrays:
    random = _random()
    return random.normal(size=(rows, 48, 32)).astype("float32"), random.integers(0, 10, rows)


def _dcgan() -> Any:
    """As in Keras's examples: two networks, two optimizers, an own `train_step`."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    critic = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(64, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(1),
        ]
    )
    painter = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(7 * 7 * 64),
            layers.Reshape((7, 7, 64)),
            layers.Conv2DTranspose(64, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2DTranspose(32, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(1, 5, padding="same", activation="tanh"),
        ]
    )

    class Dcgan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.critic, self.painter = critic, painter
            self.noise = keras.random.SeedGenerator(3)
            self.losses_of = [keras.metrics.Mean(name=n) for n in ("critic_loss", "painter_loss")]

        def compile(self, loss: Any) -> None:
            super().compile(loss=loss)
            self.critic_rule = keras.optimizers.Adam(2e-4, beta_1=0.5)
            self.painter_rule = keras.optimizers.Adam(2e-4, beta_1=0.5)

        @property
        def metrics(self) -> Any:
            return self.losses_of

        def train_step(self, real: Any) -> Any:
            if isinstance(real, tuple):
                real = real[0]
            count = tf.shape(real)[0]
            ones, zeros = tf.ones((count, 1)), tf.zeros((count, 1))
            fake = self.painter(keras.random.normal((count, 64), seed=self.noise))
            with tf.GradientTape() as tape:
                of_real, of_fake = (self.critic(each, training=True) for each in (real, fake))
                loss = self.loss(ones, of_real) + self.loss(zeros, of_fake)
            weights = self.critic.trainable_weights
            gradients = tape.gradient(loss, weights)
            self.critic_rule.apply_gradients(zip(gradients, weights, strict=True))
            noise = keras.random.normal((count, 64), seed=self.noise)
            with tf.GradientTape() as tape:
                answer = self.critic(self.painter(noise, training=True), training=True)
                other = self.loss(ones, answer)
            weights = self.painter.trainable_weights
            gradients = tape.gradient(other, weights)
            self.painter_rule.apply_gradients(zip(gradients, weights, strict=True))
            for metric, value in zip(self.losses_of, (loss, other), strict=True):
                metric.update_state(value)
            return {metric.name: metric.result() for metric in self.losses_of}

    model = Dcgan()
    model.compile(keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def _drawings(rows: int) -> Arrays:
    x, _ = _images(28, channels=1)(rows)
    return np.tanh(x), None


MODELS = {
    "mobilenet_v3": Whole("MobileNetV3Small, 64×64", 32, 15, _mobilenet, _images(64)),
    "efficientnet": Whole(
        "seven MBConv blocks with swish and gates, 64×64", 32, 10, _efficientnet, _images(64)
    ),
    "resnet": Whole("six residual blocks, 32×32, momentum", 64, 10, _resnet, _images(32)),
    "unet": Whole("a U-Net of three levels, 64×64", 16, 15, _unet, _masks),
    "language_model": Whole(
        "a causal transformer, 2 blocks of 128, vocabulary 2,000, AdamW",
        16,
        10,
        _language_model,
        _tokens(64, 2000),
    ),
    "bert_tiny": Whole(
        "2 blocks of 128, vocabulary 8,000, 128 tokens, AdamW", 16, 10, _bert, _tokens(128, 8000, 2)
    ),
    "mixer": Whole("an MLP-Mixer of 4 blocks, 32×32", 64, 10, _mixer, _images(32)),
    "two_tower": Whole("two embeddings of 400,000 × 32, Adam", 256, 15, _two_towers, _clicks),
    "wide_mlp": Whole("1024-4096-4096-10, Adam", 128, 6, _wide, _vectors),
    "lstm": Whole("two LSTMs of 128 over 48 time steps", 64, 15, _recurrent("LSTM"), _sequences),
    "gru": Whole("two GRUs of 128 over 48 time steps", 64, 15, _recurrent("GRU"), _sequences),
    "dcgan": Whole(
        "28×28, two networks and optimizers, an own `train_step`",
        64,
        10,
        _dcgan,
        _drawings,
        tensorflow_only=True,
    ),
}
