"""Skip-grams of random walks: one shared embedding, a dot product and weighted pairs."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(74)
rng = np.random.default_rng(74)
num_nodes, num_pairs = 25, 105
targets = rng.integers(0, num_nodes, num_pairs)
contexts = (targets + rng.integers(0, 4, num_pairs)) % num_nodes
labels = (rng.random(num_pairs) < 0.6).astype("int64")
weights = rng.integers(1, 5, num_pairs).astype(keras.config.floatx())


def create_dataset(batch_size=24):
    inputs = {"target": targets, "context": contexts}
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels, weights))
    dataset = dataset.shuffle(num_pairs, seed=4, reshuffle_each_iteration=False)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


inputs = {
    "target": layers.Input(name="target", shape=(), dtype="int32"),
    "context": layers.Input(name="context", shape=(), dtype="int32"),
}
embed_item = layers.Embedding(
    input_dim=num_nodes,
    output_dim=8,
    embeddings_initializer="he_normal",
    embeddings_regularizer=keras.regularizers.l2(1e-6),
    name="item_embeddings",
)
logits = layers.Dot(axes=1, normalize=False)(
    [embed_item(inputs["target"]), embed_item(inputs["context"])]
)
model = keras.Model(inputs=inputs, outputs=logits)
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = model.fit(create_dataset(), epochs=3, verbose=0)
embeddings = model.get_layer("item_embeddings").get_weights()[0]
similar = np.argsort(-(embeddings @ embeddings[0]))[:3]
print("similar to node 0:", similar, history.history)
