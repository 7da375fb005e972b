"""A bidirectional LSTM on padded sequences: the embedding's mask reaches loss and layers."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(37)
rng = np.random.default_rng(37)
max_features, maxlen = 30, 11
sequences = [rng.integers(1, max_features, length) for length in rng.integers(2, maxlen, 64)]
x_train = keras.utils.pad_sequences(sequences, maxlen=maxlen, padding="post")
y_tags = x_train % 4

inputs = keras.Input(shape=(None,), dtype="int32")
x = layers.Embedding(max_features, 10, mask_zero=True)(inputs)
x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(x)
x = layers.Bidirectional(layers.GRU(6, return_sequences=True), merge_mode="sum")(x)
outputs = layers.TimeDistributed(layers.Dense(4, activation="softmax"))(x)
tagger = keras.Model(inputs, outputs)
tagger.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
history = tagger.fit(x_train, y_tags, batch_size=18, epochs=2, shuffle=False, verbose=2)
loss, accuracy = tagger.evaluate(x_train, y_tags, batch_size=18, verbose=0)
print(loss, accuracy, history.history)
