"""Data from a PyTorch DataLoader, trained by Keras on TensorFlow."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(77)
rng = np.random.default_rng(77)
torch.manual_seed(77)
dtype = torch.float64 if keras.config.floatx() == "float64" else torch.float32
x = torch.tensor(rng.normal(size=(59, 6)), dtype=dtype)
y = torch.tensor(rng.integers(0, 2, (59, 1)), dtype=dtype)
train = torch.utils.data.TensorDataset(x, y)
train_dataloader = torch.utils.data.DataLoader(train, batch_size=16, shuffle=False)

inputs = keras.Input((6,))
outputs = layers.Dense(1, activation="sigmoid")(layers.Dense(10, activation="relu")(inputs))
model = keras.Model(inputs, outputs)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(train_dataloader, epochs=2, validation_data=train_dataloader, verbose=2)
scores = model.evaluate(train_dataloader, verbose=0)
print(scores, history.history)
