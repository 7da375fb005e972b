"""Tabular data: preprocessing layers are part of the model, which takes raw columns by name."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(27)
rng = np.random.default_rng(27)
rows = 85
columns = {
    "hours": rng.normal(40, 10, (rows, 1)).astype("float32"),
    "income": rng.exponential(3, (rows, 1)).astype("float32"),
    "education": rng.choice(["school", "college", "doctor"], (rows, 1)).astype(object),
    "region": rng.integers(0, 5, (rows, 1)),
}
label = ((columns["hours"] > 40) ^ (columns["education"] == "school")).astype("int32")

inputs = {}
encoded = []
for name in ("hours", "income"):
    inputs[name] = keras.Input(shape=(1,), name=name)
    normalizer = layers.Normalization(name=f"{name}_scaled")
    normalizer.adapt(columns[name])
    encoded.append(normalizer(inputs[name]))

inputs["education"] = keras.Input(shape=(1,), name="education", dtype="string")
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(columns["education"].astype(str))
encoded.append(lookup(inputs["education"]))

inputs["region"] = keras.Input(shape=(1,), name="region", dtype="int64")
index = layers.IntegerLookup(vocabulary=[0, 1, 2, 3], num_oov_indices=1)
encoded.append(
    layers.CategoryEncoding(num_tokens=5, output_mode="one_hot")(index(inputs["region"]))
)

x = layers.Concatenate()(encoded)
x = layers.Dense(16, activation="relu")(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "binary_crossentropy", metrics=["accuracy", "auc"])

dataset = tf.data.Dataset.from_tensor_slices(
    (columns | {"education": columns["education"].astype(str)}, label)
)
history = model.fit(
    dataset.take(64).batch(20), validation_data=dataset.skip(64).batch(20), epochs=2
)
one = {
    "hours": tf.constant([[38.0]]),
    "income": tf.constant([[2.5]]),
    "education": tf.constant([["doctor"]]),
    "region": tf.constant([[7]]),
}
answer = model.predict(one, verbose=0)
print(answer, history.history)
