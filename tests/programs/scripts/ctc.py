"""Handwriting-like recognition: a recurrent network with Keras's CTC loss and padded labels."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(21)
rng = np.random.default_rng(21)
num_characters, max_length = 6, 4
features = rng.normal(size=(46, 14, 5)).astype("float32")
lengths = rng.integers(2, max_length + 1, 46)
# Class 0 is CTC's blank, and pads the labels.
labels = rng.integers(1, num_characters, (46, max_length))
labels[np.arange(max_length)[None] >= lengths[:, None]] = 0

inputs = keras.Input((14, 5), name="image_columns")
x = layers.Conv1D(12, 3, padding="same", activation="relu")(inputs)
x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
outputs = layers.Dense(num_characters, name="logits")(x)
model = keras.Model(inputs, outputs, name="recognizer")
model.compile(optimizer=keras.optimizers.Adam(5e-3), loss=keras.losses.CTC())

history = model.fit(
    features[:36],
    labels[:36],
    validation_data=(features[36:], labels[36:]),
    batch_size=16,
    epochs=2,
    shuffle=False,
    verbose=2,
)
logits = model.predict(features[36:], verbose=0)
greedy = logits.argmax(axis=-1)
print(greedy[:2], history.history["val_loss"])
