"""Wide and deep: a linear part over crossed categories beside a deep part over embeddings."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(62)
rng = np.random.default_rng(62)
rows = 88
soil = rng.choice(["clay", "sand", "loam", "rock"], rows)
area = rng.choice(["north", "south"], rows)
numbers = rng.normal(size=(rows, 4)).astype(keras.config.floatx())
cover = (numbers[:, 0] > 0).astype("int64") + (soil == "clay")

features = {"soil": soil, "area": area, "numbers": numbers}
dataset = tf.data.Dataset.from_tensor_slices((features, cover))
train_dataset = dataset.take(66).batch(20)
test_dataset = dataset.skip(66).batch(20)

inputs = {
    "soil": keras.Input((), name="soil", dtype="string"),
    "area": keras.Input((), name="area", dtype="string"),
    "numbers": keras.Input((4,), name="numbers"),
}
soil_index = layers.StringLookup(vocabulary=["clay", "sand", "loam", "rock"])(inputs["soil"])
area_index = layers.StringLookup(vocabulary=["north", "south"])(inputs["area"])
crossed = layers.HashedCrossing(num_bins=8, output_mode="one_hot")((soil_index, area_index))
wide = layers.Dense(3, use_bias=False)(crossed)

deep = layers.Concatenate()(
    [
        layers.Embedding(5, 3)(soil_index),
        layers.Embedding(3, 2)(area_index),
        inputs["numbers"],
    ]
)
for units in (16, 8):
    deep = layers.Dense(units)(deep)
    deep = layers.LayerNormalization()(deep)
    deep = layers.ReLU()(deep)
outputs = layers.Softmax()(layers.Add()([wide, layers.Dense(3)(deep)]))
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=keras.optimizers.Ftrl(learning_rate=0.05),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(train_dataset, epochs=3, verbose=2)
_, accuracy = model.evaluate(test_dataset, verbose=0)
print(f"Test accuracy: {round(accuracy * 100, 2)}%", history.history)
