"""Three named inputs, one of them a sequence, merged into one prediction."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(31)
rng = np.random.default_rng(31)
num_words, num_tags = 30, 4
title_data = rng.integers(num_words, size=(66, 6))
body_data = rng.integers(num_words, size=(66, 11))
tags_data = rng.integers(2, size=(66, num_tags)).astype(keras.config.floatx())
targets = rng.random((66, 1)).astype(keras.config.floatx())

title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.GRU(8)(layers.Embedding(num_words, 8)(title_input))
body_features = layers.LSTM(8)(layers.Embedding(num_words, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
x = layers.Dense(8, activation="swish")(x)
score = layers.Dense(1, activation="sigmoid", name="score")(x)
model = keras.Model(inputs=[title_input, body_input, tags_input], outputs=score)
model.compile(optimizer="nadam", loss="mse", metrics=["mae"])

features = {"title": title_data, "body": body_data, "tags": tags_data}
first = model.fit(features, targets, epochs=1, batch_size=16, shuffle=False, verbose=2)
dataset = tf.data.Dataset.from_tensor_slices((features, targets)).batch(20)
second = model.fit(dataset, epochs=2, steps_per_epoch=3, verbose=2)
guesses = model.predict([title_data[:5], body_data[:5], tags_data[:5]], verbose=0)
print(guesses.ravel(), first.history, second.history)
