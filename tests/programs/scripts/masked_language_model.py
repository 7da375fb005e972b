"""Masked language modelling: `train_step` with sample weights that choose the masked tokens."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(23)
rng = np.random.default_rng(23)
vocab_size, max_len, embed_dim, mask_token = 20, 10, 16, 19
tokens = rng.integers(1, 19, size=(62, max_len))
tokens[:, 7:] *= rng.integers(0, 2, size=(62, 3))


def get_masked_input_and_labels(encoded_texts):
    chosen = (rng.random(encoded_texts.shape) < 0.3) & (encoded_texts > 0)
    masked = np.where(chosen & (rng.random(encoded_texts.shape) < 0.9), mask_token, encoded_texts)
    return masked, encoded_texts, chosen.astype(keras.config.floatx())


loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
loss_tracker = keras.metrics.Mean(name="loss")


class MaskedLanguageModel(keras.Model):
    def train_step(self, inputs):
        features, labels, sample_weight = inputs
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = loss_fn(labels, predictions, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        loss_tracker.update_state(loss, sample_weight=sample_weight)
        return {"loss": loss_tracker.result()}

    @property
    def metrics(self):
        return [loss_tracker]


inputs = layers.Input((max_len,), dtype="int64")
positions = keras.ops.arange(0, max_len)
x = layers.Embedding(vocab_size, embed_dim, name="word_embedding")(inputs)
x = x + layers.Embedding(max_len, embed_dim, name="position_embedding")(positions)
attention = layers.MultiHeadAttention(num_heads=2, key_dim=8, name="attention")(x, x, x)
x = layers.LayerNormalization(epsilon=1e-6)(x + attention)
ffn = layers.Dense(embed_dim)(layers.Dense(24, activation="relu")(x))
encoder_output = layers.LayerNormalization(epsilon=1e-6)(x + ffn)
outputs = layers.Dense(vocab_size, name="mlm_cls", activation="softmax")(encoder_output)
mlm_model = MaskedLanguageModel(inputs, outputs, name="masked_bert_model")
mlm_model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001))

mlm_ds = tf.data.Dataset.from_tensor_slices(get_masked_input_and_labels(tokens)).batch(16)
history = mlm_model.fit(mlm_ds, epochs=2)
predictions = mlm_model.predict(tokens[:4], verbose=0)
print(predictions.shape, history.history)
