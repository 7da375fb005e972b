"""Several fits of one model: stages freeze layers, change optimizers, and continue epochs."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(49)
rng = np.random.default_rng(49)
x = rng.normal(size=(65, 8)).astype("float32")
y = rng.integers(0, 3, 65)

inputs = keras.Input((8,))
body = layers.Dense(16, activation="relu", name="body")
neck = layers.Dense(16, activation="relu", name="neck")
head = layers.Dense(3, name="head")
model = keras.Model(inputs, head(neck(body(inputs))))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

body.trainable = neck.trainable = False
model.compile(keras.optimizers.Adam(1e-2), loss)
head_only = model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=2)

neck.trainable = True
model.compile(keras.optimizers.SGD(1e-2, momentum=0.9), loss)
with_neck = model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=2)

body.trainable = True
model.compile(keras.optimizers.Lion(1e-3), loss, metrics=["accuracy"])
everything = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=2)
# The optimizer keeps its state: this continues where the fit before ended.
continued = model.fit(x, y, batch_size=16, initial_epoch=2, epochs=4, shuffle=False, verbose=2)
steps = int(model.optimizer.iterations)
print(head_only.history, with_neck.history, everything.history, continued.history, steps)
