"""Barlow Twins: the cross-correlation of two views over the batch, as a loss class."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(16)
rng = np.random.default_rng(16)


class BarlowLoss(keras.losses.Loss):
    def __init__(self, batch_size):
        super().__init__()
        self.lambda_amt = 5e-3
        self.batch_size = batch_size

    def normalize(self, output):
        return (output - tf.reduce_mean(output, axis=0)) / (
            tf.math.reduce_std(output, axis=0) + 1e-4
        )

    def call(self, z_a, z_b):
        cross = tf.matmul(self.normalize(z_a), self.normalize(z_b), transpose_a=True)
        cross = cross / self.batch_size
        identity = tf.eye(tf.shape(cross)[0], dtype=cross.dtype)
        difference = tf.square(cross - identity)
        weights = identity + (1 - identity) * self.lambda_amt
        return tf.reduce_sum(difference * weights)


class BarlowModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(6, 3, strides=2, activation="relu", use_bias=False),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10, kernel_regularizer=keras.regularizers.L2(1e-3)),
            ]
        )
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, batch):
        y_a, y_b = batch
        with tf.GradientTape() as tape:
            z_a = self.encoder(y_a, training=True)
            z_b = self.encoder(y_b, training=True)
            loss = self.loss(z_a, z_b)
        grads_model = tape.gradient(loss, self.encoder.trainable_variables)
        self.optimizer.apply_gradients(
            zip(grads_model, self.encoder.trainable_variables, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


batch_size = 16
images = rng.random((64, 8, 8, 3)).astype(keras.config.floatx())
view_a = tf.data.Dataset.from_tensor_slices(images).map(lambda image: image[:, ::-1])
view_b = tf.data.Dataset.from_tensor_slices(images).map(lambda image: 1 - image)
dataset = tf.data.Dataset.zip((view_a, view_b)).batch(batch_size, drop_remainder=True)

bm = BarlowModel()
bm.compile(optimizer=keras.optimizers.Adam(1e-3), loss=BarlowLoss(batch_size))
history = bm.fit(dataset, epochs=3)
print(history.history)
