"""Adversarial training: the step attacks its own inputs by their gradient's sign (FGSM)."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(72)
rng = np.random.default_rng(72)


class AdversarialClassifier(keras.Model):
    def __init__(self, *args, epsilon=0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.epsilon = epsilon
        self.clean_tracker = keras.metrics.Mean(name="clean_loss")
        self.attacked_tracker = keras.metrics.Mean(name="attacked_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="attacked_accuracy")

    @property
    def metrics(self):
        return [self.clean_tracker, self.attacked_tracker, self.accuracy]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            attack_loss = self.compute_loss(x, y, self(x, training=False))
        attacked = tf.stop_gradient(x + self.epsilon * tf.sign(tape.gradient(attack_loss, x)))
        with tf.GradientTape() as tape:
            clean_loss = self.compute_loss(x, y, self(x, training=True))
            predictions = self(attacked, training=True)
            attacked_loss = self.compute_loss(x, y, predictions)
            total = 0.5 * clean_loss + 0.5 * attacked_loss
        gradients = tape.gradient(total, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.clean_tracker.update_state(clean_loss)
        self.attacked_tracker.update_state(attacked_loss)
        self.accuracy.update_state(y, predictions)
        return {m.name: m.result() for m in self.metrics}

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return tf.nn.softmax(self(x, training=False))


x = rng.normal(size=(63, 8)).astype("float32")
y = (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0).astype("int32")
inputs = keras.Input((8,))
model = AdversarialClassifier(inputs, layers.Dense(3)(layers.Dense(14, activation="relu")(inputs)))
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=2)
probabilities = model.predict(x, verbose=0)
print(probabilities.sum(axis=1)[:3], history.history)
