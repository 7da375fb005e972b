"""A variational autoencoder whose layers add the KL loss and a metric, with the usual `fit`."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(9)
rng = np.random.default_rng(9)
original_dim = 20


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(42)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


class Encoder(layers.Layer):
    def __init__(self, latent_dim=4, intermediate_dim=16, **kwargs):
        super().__init__(**kwargs)
        self.dense_proj = layers.Dense(intermediate_dim, activation="relu")
        self.dense_mean = layers.Dense(latent_dim)
        self.dense_log_var = layers.Dense(latent_dim)
        self.sampling = Sampling()

    def call(self, inputs):
        x = self.dense_proj(inputs)
        z_mean = self.dense_mean(x)
        z_log_var = self.dense_log_var(x)
        kl_loss = -0.5 * ops.mean(z_log_var - ops.square(z_mean) - ops.exp(z_log_var) + 1)
        self.add_loss(0.1 * kl_loss)
        return self.sampling((z_mean, z_log_var))


class VariationalAutoEncoder(keras.Model):
    def __init__(self, original_dim, **kwargs):
        super().__init__(**kwargs)
        self.encoder = Encoder()
        self.decoder = keras.Sequential(
            [layers.Dense(16, activation="relu"), layers.Dense(original_dim, activation="sigmoid")]
        )

    def call(self, inputs):
        return self.decoder(self.encoder(inputs))


x_train = rng.random((110, original_dim)).astype("float32")
vae = VariationalAutoEncoder(original_dim, name="vae")
vae.compile(keras.optimizers.Adam(learning_rate=1e-3), loss=keras.losses.MeanSquaredError())
history = vae.fit(x_train, x_train, epochs=2, batch_size=32, shuffle=False, verbose=2)
print(history.history)
