"""Sequence to sequence with attention and teacher forcing: reverses numbers, step by step."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(22)
rng = np.random.default_rng(22)
num_tokens, length, start = 9, 5, 8
source = rng.integers(1, 8, size=(66, length))
target = source[:, ::-1]
decoder_input = np.concatenate([np.full((66, 1), start), target[:, :-1]], axis=1)

encoder_inputs = keras.Input(shape=(None,), dtype="int32", name="encoder_inputs")
encoder_embedding = layers.Embedding(num_tokens, 8)(encoder_inputs)
encoder_outputs, state_h, state_c = layers.LSTM(
    12, return_sequences=True, return_state=True, name="encoder"
)(encoder_embedding)

decoder_inputs = keras.Input(shape=(None,), dtype="int32", name="decoder_inputs")
decoder_embedding = layers.Embedding(num_tokens, 8)(decoder_inputs)
decoder_lstm = layers.LSTM(12, return_sequences=True, return_state=True, name="decoder")
decoder_outputs, _, _ = decoder_lstm(decoder_embedding, initial_state=[state_h, state_c])
context = layers.Attention()([decoder_outputs, encoder_outputs])
decoder_outputs = layers.Concatenate()([decoder_outputs, context])
decoder_outputs = layers.Dense(num_tokens, activation="softmax")(decoder_outputs)

model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)
model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    [source, decoder_input],
    target,
    batch_size=16,
    epochs=2,
    validation_split=0.2,
    shuffle=False,
)

decoded = np.full((3, 1), start)
for _ in range(length):
    probabilities = model.predict([source[:3], decoded], verbose=0)
    decoded = np.concatenate([decoded, probabilities[:, -1].argmax(-1)[:, None]], axis=1)
print(decoded, history.history)
