"""An optimizer that accumulates gradients over several steps."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(50)
rng = np.random.default_rng(50)
x = rng.normal(size=(72, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)

model = keras.Sequential([keras.Input((6,)), layers.Dense(10, activation="relu"), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3), loss="mse")
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=2)
print(history.history)
