"""Supervised contrastive learning: a compiled loss over all pairs, then a classifier."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(17)
rng = np.random.default_rng(17)
num_classes = 4
x_train = rng.normal(size=(70, 14)).astype("float32")
y_train = rng.integers(0, num_classes, size=(70, 1))
x_train[:, :num_classes] += 2 * np.eye(num_classes)[y_train[:, 0]]


class SupervisedContrastiveLoss(keras.losses.Loss):
    def __init__(self, temperature=1, name=None):
        super().__init__(name=name)
        self.temperature = temperature

    def __call__(self, labels, feature_vectors, sample_weight=None):
        feature_vectors = ops.normalize(feature_vectors, axis=1)
        logits = ops.matmul(feature_vectors, ops.transpose(feature_vectors)) / self.temperature
        labels = ops.reshape(labels, (-1, 1))
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), logits.dtype)
        targets = same / ops.sum(same, axis=1, keepdims=True)
        log_probabilities = logits - ops.logsumexp(logits, axis=1, keepdims=True)
        return -ops.mean(ops.sum(targets * log_probabilities, axis=1))


def create_encoder():
    inputs = keras.Input(shape=(14,))
    x = layers.Dense(16, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(12, activation="relu")(x), name="encoder")


def create_classifier(encoder, trainable=True):
    for layer in encoder.layers:
        layer.trainable = trainable
    inputs = keras.Input(shape=(14,))
    features = layers.Dense(16, activation="relu")(encoder(inputs))
    outputs = layers.Dense(num_classes, activation="softmax")(features)
    model = keras.Model(inputs=inputs, outputs=outputs, name="classifier")
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


encoder = create_encoder()
projection = keras.Sequential([keras.Input((14,)), encoder, layers.Dense(8, activation="relu")])
projection.compile(
    optimizer=keras.optimizers.Adam(1e-2), loss=SupervisedContrastiveLoss(temperature=0.05)
)
projection_history = projection.fit(
    x=x_train, y=y_train, batch_size=20, epochs=2, shuffle=False, verbose=2
)
classifier = create_classifier(encoder, trainable=False)
history = classifier.fit(x=x_train, y=y_train, batch_size=20, epochs=2, shuffle=False, verbose=2)
accuracy = classifier.evaluate(x_train, y_train, verbose=0)[1]
print(f"accuracy: {round(accuracy * 100, 2)}%")
