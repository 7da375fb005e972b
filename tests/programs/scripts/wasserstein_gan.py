"""A WGAN with gradient penalty: three critic updates per step, noise by tf.random."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
noise_dim = 6
train_images = rng.uniform(-1, 1, size=(44, 8, 8, 1)).astype(keras.config.floatx())


def get_discriminator():
    image = layers.Input(shape=(8, 8, 1))
    x = layers.Conv2D(6, 3, strides=2, padding="same")(image)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.Flatten()(x)
    return keras.Model(image, layers.Dense(1)(x), name="discriminator")


def get_generator():
    noise = layers.Input(shape=(noise_dim,))
    x = layers.Dense(4 * 4 * 6, use_bias=False)(noise)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.Reshape((4, 4, 6))(x)
    x = layers.UpSampling2D((2, 2))(x)
    x = layers.Conv2D(1, 3, padding="same", activation="tanh")(x)
    return keras.Model(noise, x, name="generator")


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim, discriminator_extra_steps=3):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_steps = discriminator_extra_steps
        self.gp_weight = 10.0

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, batch_size, real_images, fake_images):
        alpha = tf.random.uniform([batch_size, 1, 1, 1], 0.0, 1.0, dtype=real_images.dtype)
        interpolated = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real_images):
        if isinstance(real_images, tuple):
            real_images = real_images[0]
        batch_size = tf.shape(real_images)[0]
        shape = (batch_size, self.latent_dim)
        for _ in range(self.d_steps):
            latent = tf.random.normal(shape=shape, dtype=real_images.dtype)
            with tf.GradientTape() as tape:
                fake_images = self.generator(latent, training=True)
                fake_logits = self.discriminator(fake_images, training=True)
                real_logits = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real_logits, fake_img=fake_logits)
                gp = self.gradient_penalty(batch_size, real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(
                zip(d_gradient, self.discriminator.trainable_variables, strict=True)
            )

        latent = tf.random.normal(shape=shape, dtype=real_images.dtype)
        with tf.GradientTape() as tape:
            generated_images = self.generator(latent, training=True)
            gen_img_logits = self.discriminator(generated_images, training=True)
            g_loss = self.g_loss_fn(gen_img_logits)
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(
            zip(gen_gradient, self.generator.trainable_variables, strict=True)
        )
        return {"d_loss": d_loss, "g_loss": g_loss}


def discriminator_loss(real_img, fake_img):
    return tf.reduce_mean(fake_img) - tf.reduce_mean(real_img)


def generator_loss(fake_img):
    return -tf.reduce_mean(fake_img)


wgan = WGAN(get_discriminator(), get_generator(), latent_dim=noise_dim)
wgan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9),
    g_loss_fn=generator_loss,
    d_loss_fn=discriminator_loss,
)
history = wgan.fit(train_images, batch_size=12, epochs=2, shuffle=False, verbose=2)
print(history.history)
