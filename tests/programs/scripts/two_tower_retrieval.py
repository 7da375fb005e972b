"""Two-tower retrieval: `compute_loss` is a softmax over the other items of the batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(18)
rng = np.random.default_rng(18)
num_users, num_movies = 30, 25
users = rng.integers(0, num_users, 90)
movies = (users + rng.integers(0, 5, 90)) % num_movies


class RetrievalModel(keras.Model):
    def __init__(self, num_users, num_candidates, embedding_dimension=8):
        super().__init__()
        self.user_embedding = layers.Embedding(num_users, embedding_dimension)
        self.candidate_embedding = layers.Embedding(num_candidates, embedding_dimension)
        self.loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)

    def call(self, inputs):
        return {
            "user": self.user_embedding(inputs["user_id"]),
            "candidate": self.candidate_embedding(inputs["movie_id"]),
        }

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scores = ops.matmul(y_pred["user"], ops.transpose(y_pred["candidate"]))
        labels = ops.eye(ops.shape(scores)[0])
        return self.loss_fn(labels, scores, sample_weight)


dataset = tf.data.Dataset.from_tensor_slices({"user_id": users, "movie_id": movies})
train = dataset.take(70).batch(20).cache()
test = dataset.skip(70).batch(20).cache()
model = RetrievalModel(num_users, num_movies)
model.compile(optimizer=keras.optimizers.Adagrad(learning_rate=0.1))
history = model.fit(train, validation_data=test, validation_freq=2, epochs=4, verbose=0)
print(history.history)
test_loss = model.evaluate(test, return_dict=True, verbose=0)
print(test_loss)
