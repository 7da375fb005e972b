"""A diffusion model: the step updates an exponential moving average of the network by hand."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(11)
rng = np.random.default_rng(11)
image_size, batch_size, ema = 8, 12, 0.9


@keras.saving.register_keras_serializable()
def sinusoidal_embedding(x):
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(100.0), 4))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, x.dtype)
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def get_network(width=8):
    noisy_images = keras.Input(shape=(image_size, image_size, 1))
    noise_variances = keras.Input(shape=(1, 1, 1))
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(noise_variances)
    e = layers.UpSampling2D(size=image_size, interpolation="nearest")(e)
    x = layers.Conv2D(width, kernel_size=1)(noisy_images)
    x = layers.Concatenate()([x, e])
    skip = layers.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
    x = layers.AveragePooling2D(pool_size=2)(skip)
    x = layers.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
    x = layers.UpSampling2D(size=2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, skip])
    x = layers.Conv2D(1, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], x, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)
        self.ema_network.set_weights(self.network.get_weights())
        self.seed_generator = keras.random.SeedGenerator(5)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def diffusion_schedule(self, diffusion_times):
        start_angle, end_angle = math.acos(0.95), math.acos(0.02)
        angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(angles), ops.cos(angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def noisy(self, images):
        count = ops.shape(images)[0]
        noises = keras.random.normal(ops.shape(images), seed=self.seed_generator)
        times = keras.random.uniform((count, 1, 1, 1), 0.0, 1.0, seed=self.seed_generator)
        noise_rates, signal_rates = self.diffusion_schedule(times)
        return noises, noise_rates, signal_rates, signal_rates * images + noise_rates * noises

    def train_step(self, images):
        images = self.normalizer(images, training=True)
        noises, noise_rates, signal_rates, noisy_images = self.noisy(images)
        with tf.GradientTape() as tape:
            pred_noises, pred_images = self.denoise(
                noisy_images, noise_rates, signal_rates, training=True
            )
            noise_loss = self.loss(noises, pred_noises)
            image_loss = self.loss(images, pred_images)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(ema * ema_weight + (1 - ema) * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        images = self.normalizer(images, training=False)
        noises, noise_rates, signal_rates, noisy_images = self.noisy(images)
        pred_noises, pred_images = self.denoise(
            noisy_images, noise_rates, signal_rates, training=False
        )
        self.image_loss_tracker.update_state(self.loss(images, pred_images))
        self.noise_loss_tracker.update_state(self.loss(noises, pred_noises))
        return {m.name: m.result() for m in self.metrics}


images = rng.random((54, image_size, image_size, 1)).astype(keras.config.floatx())
train_dataset = tf.data.Dataset.from_tensor_slices(images[:42]).batch(batch_size)
val_dataset = tf.data.Dataset.from_tensor_slices(images[42:]).batch(batch_size)
model = DiffusionModel()
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=1e-2, weight_decay=1e-4),
    loss=keras.losses.mean_absolute_error,
)
model.normalizer.adapt(train_dataset)
history = model.fit(train_dataset, epochs=2, validation_data=val_dataset, verbose=2)
print(history.history)
