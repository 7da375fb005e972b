"""LoRA: a trained model gets low-rank adapters by `enable_lora`, and only these learn."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(32)
rng = np.random.default_rng(32)
tokens = rng.integers(0, 25, size=(72, 9))
labels = tokens[:, 0] % 3

inputs = keras.Input((9,), dtype="int32")
embedding = layers.Embedding(25, 12)
x = embedding(inputs)
attention = layers.MultiHeadAttention(2, 6)
x = x + attention(x, x)
x = layers.GlobalAveragePooling1D()(x)
hidden = layers.Dense(16, activation="relu")
outputs = layers.Dense(3)(hidden(x))
model = keras.Model(inputs, outputs)


def compile_and_fit(epochs):
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, weight_decay=1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model.fit(tokens, labels, batch_size=16, epochs=epochs, shuffle=False, verbose=0)


pretraining = compile_and_fit(1)
embedding.enable_lora(rank=2)
hidden.enable_lora(rank=4)
for layer in model.layers:
    if layer not in (embedding, hidden):
        layer.trainable = False
trainable = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
print("trainable parameters:", trainable)
finetuning = compile_and_fit(2)
print(pretraining.history, finetuning.history)
