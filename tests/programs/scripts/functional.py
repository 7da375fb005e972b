"""A functional model with a residual connection, trained on arrays with a validation split."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x_train = rng.normal(size=(150, 12)).astype("float32")
y_train = (x_train[:, 0] + x_train[:, 1] ** 2 > 0.5).astype("int32")
x_test = rng.normal(size=(45, 12)).astype("float32")
y_test = (x_test[:, 0] + x_test[:, 1] ** 2 > 0.5).astype("int32")

inputs = keras.Input(shape=(12,), name="features")
x = layers.Dense(16, activation="relu", name="dense_1")(inputs)
skip = x
x = layers.Dense(16, activation="relu", name="dense_2")(x)
x = layers.add([x, skip])
outputs = layers.Dense(2, activation="softmax", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.summary()

model.compile(
    optimizer=keras.optimizers.RMSprop(learning_rate=1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(
    x_train, y_train, batch_size=32, epochs=3, validation_split=0.2, shuffle=False, verbose=2
)
print(history.history)

results = model.evaluate(x_test, y_test, batch_size=16, verbose=0)
print("test loss, test accuracy:", results)
predictions = model.predict(x_test[:5], verbose=0)
print("predictions shape:", predictions.shape)
