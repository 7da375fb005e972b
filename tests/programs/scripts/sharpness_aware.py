"""Sharpness-aware minimisation: weights move up, a second gradient, weights move back."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(71)
rng = np.random.default_rng(71)


class SAMModel(keras.Model):
    def __init__(self, network, rho=0.05):
        super().__init__()
        self.network = network
        self.rho = rho

    def call(self, inputs):
        return self.network(inputs)

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self.network(images, training=True))
        weights = self.network.trainable_variables
        gradients = tape.gradient(loss, weights)
        norm = tf.norm([tf.norm(gradient) for gradient in gradients])
        scale = self.rho / (norm + 1e-12)
        climbs = [gradient * scale for gradient in gradients]
        for weight, climb in zip(weights, climbs, strict=True):
            weight.assign_add(climb)
        with tf.GradientTape() as tape:
            predictions = self.network(images, training=True)
            loss = self.compute_loss(y=labels, y_pred=predictions)
        sam_gradients = tape.gradient(loss, weights)
        for weight, climb in zip(weights, climbs, strict=True):
            weight.assign_sub(climb)
        self.optimizer.apply_gradients(zip(sam_gradients, weights, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, predictions)
        return {m.name: m.result() for m in self.metrics}


x = rng.normal(size=(66, 7)).astype("float32")
y = keras.utils.to_categorical(rng.integers(0, 3, 66), 3)
network = keras.Sequential(
    [keras.Input((7,)), layers.Dense(12, activation="relu"), layers.Dense(3, activation="softmax")]
)
model = SAMModel(network)
model.compile(optimizer="sgd", loss="categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=2)
test = model.evaluate(x, y, verbose=0)
print(test, history.history)
