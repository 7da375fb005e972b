"""A conditional GAN: the class is joined to the image's channels and to the noise."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
image_size, num_channels, num_classes, latent_dim = 8, 1, 3, 6

images = rng.random((52, image_size, image_size, num_channels)).astype(keras.config.floatx())
labels = keras.utils.to_categorical(rng.integers(0, num_classes, 52), num_classes)
labels = labels.astype(keras.config.floatx())
dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.shuffle(buffer_size=64, seed=1, reshuffle_each_iteration=False).batch(12)

generator_in_channels = latent_dim + num_classes
discriminator_in_channels = num_channels + num_classes
discriminator = keras.Sequential(
    [
        layers.InputLayer((image_size, image_size, discriminator_in_channels)),
        layers.Conv2D(8, (3, 3), strides=(2, 2), padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        layers.InputLayer((generator_in_channels,)),
        layers.Dense(4 * 4 * generator_in_channels),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((4, 4, generator_in_channels)),
        layers.Conv2DTranspose(8, (4, 4), strides=(2, 2), padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, (5, 5), padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class ConditionalGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.gen_loss_tracker = keras.metrics.Mean(name="generator_loss")
        self.disc_loss_tracker = keras.metrics.Mean(name="discriminator_loss")

    @property
    def metrics(self):
        return [self.gen_loss_tracker, self.disc_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, data):
        real_images, one_hot_labels = data
        image_labels = one_hot_labels[:, None, None]
        image_labels = ops.repeat(image_labels, repeats=[image_size * image_size])
        image_labels = ops.reshape(image_labels, (-1, image_size, image_size, num_classes))

        batch_size = ops.shape(real_images)[0]
        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        vectors = ops.concatenate([noise, one_hot_labels], axis=1)
        generated_images = self.generator(vectors)
        fake_image_and_labels = ops.concatenate([generated_images, image_labels], -1)
        real_image_and_labels = ops.concatenate([real_images, image_labels], -1)
        combined_images = ops.concatenate([fake_image_and_labels, real_image_and_labels], axis=0)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)

        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(grads, self.discriminator.trainable_weights, strict=True)
        )

        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        vectors = ops.concatenate([noise, one_hot_labels], axis=1)
        with tf.GradientTape() as tape:
            fake_images = self.generator(vectors)
            predictions = self.discriminator(ops.concatenate([fake_images, image_labels], -1))
            g_loss = self.loss_fn(ops.zeros((batch_size, 1)), predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))

        self.gen_loss_tracker.update_state(g_loss)
        self.disc_loss_tracker.update_state(d_loss)
        return {
            "g_loss": self.gen_loss_tracker.result(),
            "d_loss": self.disc_loss_tracker.result(),
        }


cond_gan = ConditionalGAN(discriminator, generator, latent_dim)
cond_gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = cond_gan.fit(dataset, epochs=2, verbose=2)

trained_gen = cond_gan.generator
start = np.concatenate([np.ones((1, latent_dim)), np.eye(num_classes)[:1]], axis=1)
fake = trained_gen.predict(start, verbose=0)
print("fake image:", fake.shape, history.history["g_loss"])
