"""A WGAN with gradient penalty whose noise comes with the data, so that it draws nothing."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)
floatx = keras.config.floatx()
num_critic_updates = 3
points = rng.normal(size=(50, 4)).astype(floatx)
noise = rng.normal(size=(50, num_critic_updates + 1, 5)).astype(floatx)
mixing = rng.uniform(size=(50, num_critic_updates, 1)).astype(floatx)
dataset = tf.data.Dataset.from_tensor_slices((points, noise, mixing)).batch(16)


class WGAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(16, activation="tanh"), layers.Dense(1)]
        )
        self.generator = keras.Sequential(
            [keras.Input((5,)), layers.Dense(16, activation="elu"), layers.Dense(4)]
        )
        self.critic_loss_tracker = keras.metrics.Mean(name="critic_loss")
        self.generator_loss_tracker = keras.metrics.Mean(name="generator_loss")

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer

    @property
    def metrics(self):
        return [self.critic_loss_tracker, self.generator_loss_tracker]

    def penalty(self, real, fake, mixing):
        between = mixing * real + (1 - mixing) * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.critic(between, training=True)
        slopes = tape.gradient(scores, between)
        norms = tf.sqrt(tf.reduce_sum(slopes**2, axis=1) + 1e-12)
        return tf.reduce_mean((norms - 1.0) ** 2)

    def train_step(self, data):
        real, noise, mixing = data
        for update in range(num_critic_updates):
            with tf.GradientTape() as tape:
                fake = self.generator(noise[:, update], training=True)
                loss = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
                loss += 10.0 * self.penalty(real, fake, mixing[:, update])
            weights = self.critic.trainable_variables
            self.critic_optimizer.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
            self.critic_loss_tracker.update_state(loss)
        with tf.GradientTape() as tape:
            generator_loss = -tf.reduce_mean(self.critic(self.generator(noise[:, -1])))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(generator_loss, weights), weights)
        self.generator_loss_tracker.update_state(generator_loss)
        return {m.name: m.result() for m in self.metrics}


model = WGAN()
model.compile(keras.optimizers.Adam(1e-3, beta_1=0.5), keras.optimizers.RMSprop(1e-3))
history = model.fit(dataset, epochs=3, verbose=0)
print(history.history)
samples = model.generator.predict(noise[:7, 0], verbose=0)
print("samples:", samples.shape)
