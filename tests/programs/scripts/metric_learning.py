"""Metric learning: batches of one anchor and one positive per class from a PyDataset."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(20)
rng = np.random.default_rng(20)
num_classes = 8
x_train = rng.normal(size=(120, 8, 8, 3)).astype(keras.config.floatx())
y_train = np.arange(120) % num_classes
class_idx_to_train_idxs = [np.flatnonzero(y_train == label) for label in range(num_classes)]


class AnchorPositivePairs(keras.utils.PyDataset):
    def __init__(self, num_steps):
        super().__init__()
        self.num_steps = num_steps

    def __len__(self):
        return self.num_steps

    def __getitem__(self, index):
        x = np.empty((2, num_classes, 8, 8, 3), dtype=keras.config.floatx())
        draw = np.random.default_rng(index)
        for class_idx in range(num_classes):
            anchor, positive = draw.choice(class_idx_to_train_idxs[class_idx], 2, replace=False)
            x[0, class_idx] = x_train[anchor]
            x[1, class_idx] = x_train[positive]
        return x


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        # The first axis of a batch is anchors and positives: not the examples.
        if isinstance(data, tuple):
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            similarities = ops.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings)
            similarities /= 0.2
            loss = self.compiled_metrics_free_loss(similarities)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(ops.arange(num_classes), similarities)
        return {m.name: m.result() for m in self.metrics}

    def compiled_metrics_free_loss(self, similarities):
        return self.compute_loss(y=ops.arange(num_classes), y_pred=similarities)


inputs = layers.Input(shape=(8, 8, 3))
x = layers.Conv2D(filters=8, kernel_size=3, strides=2, activation="relu")(inputs)
x = layers.GlobalAveragePooling2D()(x)
embeddings = layers.UnitNormalization()(layers.Dense(units=8)(x))
model = EmbeddingModel(inputs, embeddings)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(AnchorPositivePairs(num_steps=5), epochs=2, shuffle=False, verbose=2)
gram_matrix = np.einsum("ae,be->ab", *[model.predict(x_train[:9], verbose=0)] * 2)
print(gram_matrix.shape, history.history)
