"""A GAN as an old tutorial has it: a loop of `train_on_batch` with a frozen discriminator."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(43)
rng = np.random.default_rng(43)
latent_dim, batch_size = 5, 14
real = np.stack([np.cos(t := rng.uniform(0, 6.28, 70)), np.sin(t)], axis=1)

generator = keras.Sequential(
    [keras.Input((latent_dim,)), layers.Dense(12, activation="relu"), layers.Dense(2)]
)
discriminator = keras.Sequential(
    [keras.Input((2,)), layers.Dense(12, activation="relu"), layers.Dense(1, activation="sigmoid")]
)
discriminator.compile("adam", "binary_crossentropy", metrics=["accuracy"])

discriminator.trainable = False
gan_input = keras.Input((latent_dim,))
gan = keras.Model(gan_input, discriminator(generator(gan_input)))
gan.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy")

d_losses, a_losses = [], []
for step in range(8):
    noise = rng.normal(size=(batch_size, latent_dim))
    generated = generator.predict(noise, verbose=0)
    rows = np.arange(step * batch_size, (step + 1) * batch_size) % len(real)
    combined = np.concatenate([generated, real[rows]])
    labels = np.concatenate([np.ones((batch_size, 1)), np.zeros((batch_size, 1))])

    discriminator.trainable = True
    d_loss, _ = discriminator.train_on_batch(combined, labels)
    discriminator.trainable = False

    noise = rng.normal(size=(batch_size, latent_dim))
    a_loss = gan.train_on_batch(noise, np.zeros((batch_size, 1)))
    d_losses.append(float(d_loss))
    a_losses.append(float(a_loss))
print("discriminator:", d_losses)
print("adversarial:", a_losses)
