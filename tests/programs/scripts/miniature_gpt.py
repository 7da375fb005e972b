"""A miniature GPT: causal attention, padding masked in the loss, text generated in a callback."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(25)
rng = np.random.default_rng(25)
vocab_size, maxlen, embed_dim = 24, 10, 16


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim // num_heads)
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="gelu"), layers.Dense(embed_dim)]
        )
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        seq_len = ops.shape(inputs)[1]
        positions = ops.arange(seq_len)
        causal_mask = positions[:, None] >= positions[None, :]
        x = self.layernorm1(inputs + self.att(inputs, inputs, attention_mask=causal_mask[None]))
        return self.layernorm2(x + self.ffn(x))


def create_model():
    inputs = layers.Input(shape=(maxlen,), dtype="int32")
    token = layers.Embedding(vocab_size, embed_dim)(inputs)
    position = layers.Embedding(maxlen, embed_dim)(ops.arange(maxlen))
    x = TransformerBlock(embed_dim, 2, 24)(token + position)
    return keras.Model(inputs=inputs, outputs=[layers.Dense(vocab_size)(x), x])


class TextGenerator(keras.callbacks.Callback):
    def __init__(self, start_tokens, max_tokens=3):
        super().__init__()
        self.start_tokens = start_tokens
        self.max_tokens = max_tokens

    def on_epoch_end(self, epoch, logs=None):
        tokens = list(self.start_tokens)
        for _ in range(self.max_tokens):
            x = np.array([tokens + [0] * (maxlen - len(tokens))])
            logits, _ = self.model.predict(x, verbose=0)
            tokens.append(int(np.argmax(logits[0][len(tokens) - 1])))
        print(f"epoch {epoch}:", tokens)


loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
texts = rng.integers(1, vocab_size, size=(54, maxlen + 1))
for row, length in enumerate(rng.integers(4, maxlen + 2, 54)):
    texts[row, length:] = 0
text_ds = tf.data.Dataset.from_tensor_slices(texts).batch(16)
text_ds = text_ds.map(lambda tokens: (tokens[:, :-1], tokens[:, 1:])).prefetch(2)

model = create_model()
model.compile("adam", loss=[loss_fn, None])
history = model.fit(text_ds, verbose=2, epochs=2, callbacks=[TextGenerator([3, 5])])
print(history.history)
