"""Text classification from raw strings, with TextVectorization inside an end-to-end model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(28)
rng = np.random.default_rng(28)
good = ["great", "lovely", "fine", "moving", "brilliant"]
bad = ["dull", "awful", "boring", "weak", "noisy"]
filler = ["the", "film", "was", "and", "its", "plot", "cast", "<br />", "Really,"]


def review(is_good):
    words = rng.choice(good if is_good else bad, 2).tolist() + rng.choice(filler, 5).tolist()
    rng.shuffle(words)
    return " ".join(words)


labels = rng.integers(0, 2, 74)
texts = [review(label) for label in labels]


@keras.saving.register_keras_serializable()
def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped, "[.,!?]", "")


vectorize_layer = layers.TextVectorization(
    standardize=custom_standardization,
    max_tokens=50,
    output_mode="int",
    output_sequence_length=8,
)
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).take(58).batch(16)
raw_val_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).skip(58).batch(16)
vectorize_layer.adapt(raw_train_ds.map(lambda text, label: text))

text_input = keras.Input(shape=(1,), dtype="string", name="text")
x = vectorize_layer(text_input)
x = layers.Embedding(50, 12)(x)
x = layers.Conv1D(16, 3, padding="valid", activation="relu")(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(12, activation="relu")(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(text_input, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])

expand = lambda text, label: (tf.expand_dims(text, -1), label)  # noqa: E731
train_ds, val_ds = raw_train_ds.map(expand), raw_val_ds.map(expand)
history = model.fit(train_ds, validation_data=val_ds, epochs=3, verbose=2)
results = model.evaluate(val_ds, verbose=0)
opinion = model.predict(tf.constant([["a brilliant plot"], ["the cast was awful"]]), verbose=0)
print(opinion, results)
