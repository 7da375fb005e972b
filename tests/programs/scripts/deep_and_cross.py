"""A deep and cross recommender: embeddings of hashed ids, a cross layer, and bias terms."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(63)
rng = np.random.default_rng(63)
users = rng.integers(0, 40, size=(99, 1))
items = rng.integers(0, 30, size=(99, 1))
genres = rng.integers(0, 2, size=(99, 6)).astype("float32")
ratings = ((users * 3 + items * 7) % 5 / 4).astype("float32")


class FeatureCross(layers.Layer):
    def build(self, input_shape):
        width = input_shape[0][-1]
        self.kernel = self.add_weight(shape=(width, width), initializer="truncated_normal")
        self.bias = self.add_weight(shape=(width,), initializer="zeros")

    def call(self, inputs):
        x0, x = inputs
        return x0 * (ops.matmul(x, self.kernel) + self.bias) + x


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_items, embedding_size=6, **kwargs):
        super().__init__(**kwargs)
        regularizer = keras.regularizers.l2(1e-6)
        self.user_embedding = layers.Embedding(
            num_users, embedding_size, embeddings_regularizer=regularizer
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.item_embedding = layers.Embedding(
            num_items, embedding_size, embeddings_regularizer=regularizer
        )
        self.crosses = [FeatureCross(), FeatureCross()]
        self.deep = keras.Sequential([layers.Dense(12, activation="relu"), layers.Dense(1)])

    def call(self, inputs):
        user = ops.squeeze(self.user_embedding(inputs["user"]), axis=1)
        item = ops.squeeze(self.item_embedding(inputs["item"]), axis=1)
        x0 = x = ops.concatenate([user, item, inputs["genres"]], axis=-1)
        for cross in self.crosses:
            x = cross((x0, x))
        dot = ops.sum(user * item, axis=-1, keepdims=True)
        bias = ops.squeeze(self.user_bias(inputs["user"]), axis=1)
        return ops.sigmoid(self.deep(x) + dot + bias)


model = RecommenderNet(40, 30)
model.compile(
    loss=keras.losses.BinaryCrossentropy(),
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    metrics=[keras.metrics.RootMeanSquaredError()],
)
x = {"user": users, "item": items, "genres": genres}
history = model.fit(
    x=x, y=ratings, batch_size=32, epochs=3, shuffle=False, validation_split=0.15, verbose=2
)
top = model.predict(x, verbose=0).ravel()
print(top[:5], history.history)
