"""A siamese network: a layer computes distances of triplets, the model its own loss."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, metrics, ops

keras.utils.set_random_seed(19)
rng = np.random.default_rng(19)
target_shape = (8, 8)


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        ap_distance = ops.sum(tf.square(anchor - positive), -1)
        an_distance = ops.sum(tf.square(anchor - negative), -1)
        return (ap_distance, an_distance)


embedding = keras.Sequential(
    [
        keras.Input(shape=(*target_shape, 3)),
        layers.Conv2D(8, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(12, activation="relu"),
        layers.LayerNormalization(),
        layers.Dense(6),
    ],
    name="Embedding",
)
anchor_input = layers.Input(name="anchor", shape=(*target_shape, 3))
positive_input = layers.Input(name="positive", shape=(*target_shape, 3))
negative_input = layers.Input(name="negative", shape=(*target_shape, 3))
distances = DistanceLayer()(
    embedding(anchor_input), embedding(positive_input), embedding(negative_input)
)
siamese_network = keras.Model(
    inputs=[anchor_input, positive_input, negative_input], outputs=distances
)


class SiameseModel(keras.Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.siamese_network.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._compute_loss(data))
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        loss = tf.maximum(ap_distance - an_distance + self.margin, 0.0)
        return ops.mean(loss)

    @property
    def metrics(self):
        return [self.loss_tracker]


def images(count):
    return tf.data.Dataset.from_tensor_slices(
        rng.random((count, *target_shape, 3)).astype(keras.config.floatx())
    )


dataset = tf.data.Dataset.zip((images(54), images(54), images(54)))
train_dataset = dataset.take(40).batch(12, drop_remainder=False)
val_dataset = dataset.skip(40).batch(12, drop_remainder=False)

siamese_model = SiameseModel(siamese_network)
siamese_model.compile(optimizer=keras.optimizers.Adam(0.001), weighted_metrics=[])
history = siamese_model.fit(train_dataset, epochs=2, validation_data=val_dataset, verbose=2)

anchor, positive, negative = next(iter(train_dataset))
cosine_similarity = metrics.CosineSimilarity()
positive_similarity = cosine_similarity(embedding(anchor), embedding(positive)).numpy()
print("positive similarity:", positive_similarity)
