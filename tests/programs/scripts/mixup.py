"""MixUp in a tf.data pipeline: two shuffled streams are blended with seeded weights."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(69)
rng = np.random.default_rng(69)
floatx = keras.config.floatx()
images = rng.random((60, 8, 8, 1)).astype(floatx)
labels = np.eye(4)[rng.integers(0, 4, 60)].astype(floatx)


def stream(seed):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.shuffle(60, seed=seed, reshuffle_each_iteration=False).batch(14)


def mix_up(index, one, two):
    images_one, labels_one = one
    images_two, labels_two = two
    share = tf.random.stateless_uniform(
        [tf.shape(images_one)[0]], seed=[7, tf.cast(index, "int32")], dtype=images_one.dtype
    )
    x_l, y_l = tf.reshape(share, (-1, 1, 1, 1)), tf.reshape(share, (-1, 1))
    images = images_one * x_l + images_two * (1 - x_l)
    return images, labels_one * y_l + labels_two * (1 - y_l)


train_ds = tf.data.Dataset.zip((tf.data.Dataset.range(5), stream(1), stream(2)))
train_ds = train_ds.map(mix_up, num_parallel_calls=tf.data.AUTOTUNE)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, (3, 3), activation="relu", strides=2),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile(
    loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    optimizer=keras.optimizers.Adam(),
    metrics=["accuracy"],
)
history = model.fit(train_ds, validation_data=stream(3), epochs=2, verbose=2)
print(history.history)
