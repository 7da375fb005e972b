"""Tabular data: preprocessing layers are adapted, then applied in a tf.data pipeline."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(26)
rng = np.random.default_rng(26)
frame = {
    "age": rng.integers(20, 80, 93).astype("int64"),
    "cholesterol": rng.normal(240, 40, 93).astype(keras.config.floatx()),
    "thal": rng.choice(["normal", "fixed", "reversible"], 93),
    "sex": rng.integers(0, 2, 93).astype("int64"),
}
target = ((frame["age"] > 50) & (frame["thal"] != "normal")).astype("int64")


def to_dataset(rows):
    columns = {name: values[rows] for name, values in frame.items()}
    return tf.data.Dataset.from_tensor_slices((columns, target[rows]))


train_ds = to_dataset(slice(0, 70)).shuffle(70, seed=1, reshuffle_each_iteration=False).batch(16)
val_ds = to_dataset(slice(70, 93)).batch(16)

normalizer = layers.Normalization(axis=None)
normalizer.adapt(frame["cholesterol"][:70])
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(train_ds.map(lambda x, y: x["thal"]))
buckets = layers.Discretization(bin_boundaries=[30, 45, 60], output_mode="one_hot")
encoding = layers.CategoryEncoding(num_tokens=2, output_mode="one_hot")


def encode(columns, label):
    features = [
        tf.cast(buckets(columns["age"]), keras.config.floatx()),
        tf.expand_dims(normalizer(columns["cholesterol"]), -1),
        tf.cast(lookup(columns["thal"]), keras.config.floatx()),
        tf.cast(encoding(columns["sex"]), keras.config.floatx()),
    ]
    return tf.concat(features, axis=-1), label


train_ds = train_ds.map(encode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
val_ds = val_ds.map(encode).prefetch(tf.data.AUTOTUNE)
(width,) = train_ds.element_spec[0].shape[1:]

inputs = keras.Input(shape=(width,))
x = layers.Dense(16, activation="relu")(inputs)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(train_ds, epochs=3, validation_data=val_ds, verbose=2)
probability = model.predict(val_ds, verbose=0)
print(probability[:3], history.history)
