"""Mixed precision: bfloat16 activations with float32 weights and outputs."""

import keras
import numpy as np
from keras import layers

keras.mixed_precision.set_global_policy("mixed_bfloat16")
keras.utils.set_random_seed(54)
rng = np.random.default_rng(54)
x_train = rng.normal(size=(70, 20)).astype("float32")
y_train = rng.integers(0, 4, 70)

inputs = keras.Input(shape=(20,), name="digits")
x = layers.Dense(32, activation="relu", name="dense_1")(inputs)
x = layers.Dense(32, activation="relu", name="dense_2")(x)
x = layers.Dense(4, name="dense_logits")(x)
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
print("outputs dtype:", outputs.dtype, "weights dtype:", model.weights[0].dtype)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.RMSprop(),
    metrics=["accuracy"],
)
history = model.fit(
    x_train, y_train, batch_size=16, epochs=2, validation_split=0.2, shuffle=False, verbose=2
)
print(history.history)
