"""Unpaired translation: four networks, two optimizers with clipnorm, cycle and identity losses."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(56)
rng = np.random.default_rng(56)
floatx = keras.config.floatx()


def get_generator(name):
    inputs = layers.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(1, 3, padding="same", activation="tanh")(x)
    return keras.Model(inputs, layers.Add()([inputs, x]), name=name)


def get_discriminator(name):
    inputs = layers.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = layers.LeakyReLU(0.2)(x)
    return keras.Model(inputs, layers.Conv2D(1, 3, padding="same")(x), name=name)


class CycleGan(keras.Model):
    def __init__(self, generator_g, generator_f, discriminator_x, discriminator_y):
        super().__init__()
        self.gen_g, self.gen_f = generator_g, generator_f
        self.disc_x, self.disc_y = discriminator_x, discriminator_y
        self.lambda_cycle, self.lambda_identity = 10.0, 0.5

    def call(self, inputs):
        return self.gen_g(inputs), self.gen_f(inputs)

    def compile(self, gen_optimizer, disc_optimizer):
        super().compile()
        self.gen_optimizer = gen_optimizer
        self.disc_optimizer = disc_optimizer
        self.cycle_loss_fn = keras.losses.MeanAbsoluteError()
        self.adv_loss_fn = keras.losses.MeanSquaredError()

    def discriminator_loss(self, real, fake):
        real_loss = self.adv_loss_fn(tf.ones_like(real), real)
        return 0.5 * (real_loss + self.adv_loss_fn(tf.zeros_like(fake), fake))

    def train_step(self, batch_data):
        real_x, real_y = batch_data
        with tf.GradientTape(persistent=True) as tape:
            fake_y = self.gen_g(real_x, training=True)
            fake_x = self.gen_f(real_y, training=True)
            cycled_x = self.gen_f(fake_y, training=True)
            cycled_y = self.gen_g(fake_x, training=True)
            same_x = self.gen_f(real_x, training=True)
            same_y = self.gen_g(real_y, training=True)
            disc_fake_x = self.disc_x(fake_x, training=True)
            disc_fake_y = self.disc_y(fake_y, training=True)
            gen_loss = self.adv_loss_fn(tf.ones_like(disc_fake_y), disc_fake_y)
            gen_loss += self.adv_loss_fn(tf.ones_like(disc_fake_x), disc_fake_x)
            cycle_loss = self.cycle_loss_fn(real_x, cycled_x) + self.cycle_loss_fn(real_y, cycled_y)
            id_loss = self.cycle_loss_fn(real_x, same_x) + self.cycle_loss_fn(real_y, same_y)
            gen_total = gen_loss + self.lambda_cycle * (cycle_loss + self.lambda_identity * id_loss)
            disc_x_loss = self.discriminator_loss(self.disc_x(real_x), disc_fake_x)
            disc_y_loss = self.discriminator_loss(self.disc_y(real_y), disc_fake_y)
            disc_total = disc_x_loss + disc_y_loss

        gen_weights = self.gen_g.trainable_variables + self.gen_f.trainable_variables
        disc_weights = self.disc_x.trainable_variables + self.disc_y.trainable_variables
        grads_gen = tape.gradient(gen_total, gen_weights)
        grads_disc = tape.gradient(disc_total, disc_weights)
        self.gen_optimizer.apply_gradients(zip(grads_gen, gen_weights, strict=True))
        self.disc_optimizer.apply_gradients(zip(grads_disc, disc_weights, strict=True))
        return {"G_loss": gen_total, "D_X_loss": disc_x_loss, "D_Y_loss": disc_y_loss}


horses = tf.data.Dataset.from_tensor_slices(rng.uniform(-1, 1, (21, 8, 8, 1)).astype(floatx))
zebras = tf.data.Dataset.from_tensor_slices(rng.uniform(-1, 1, (24, 8, 8, 1)).astype(floatx))
data = tf.data.Dataset.zip((horses.batch(6), zebras.batch(6).take(3)))
model = CycleGan(
    get_generator("generator_G"),
    get_generator("generator_F"),
    get_discriminator("discriminator_X"),
    get_discriminator("discriminator_Y"),
)
model.compile(
    gen_optimizer=keras.optimizers.Adam(2e-4, beta_1=0.5, clipnorm=1.0),
    disc_optimizer=keras.optimizers.Adam(2e-4, beta_1=0.5, global_clipnorm=0.5),
)
history = model.fit(data, epochs=2, verbose=2)
print(history.history)
