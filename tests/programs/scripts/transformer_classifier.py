"""Text classification with a transformer block as a layer, with dropout."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(24)
rng = np.random.default_rng(24)
vocab_size, maxlen, embed_dim = 40, 12, 16


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        attn_output = self.dropout1(self.att(inputs, inputs))
        out1 = self.layernorm1(inputs + attn_output)
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        positions = ops.arange(start=0, stop=ops.shape(x)[-1], step=1)
        return self.token_emb(x) + self.pos_emb(positions)


lengths = rng.integers(3, 16, 80)
sequences = [rng.integers(1, vocab_size, length).tolist() for length in lengths]
x = keras.utils.pad_sequences(sequences, maxlen=maxlen)
y = (x.max(axis=1) > 36).astype("int64")

inputs = layers.Input(shape=(maxlen,))
embedding_layer = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)
h = TransformerBlock(embed_dim, num_heads=2, ff_dim=16)(embedding_layer(inputs))
h = layers.GlobalAveragePooling1D()(h)
h = layers.Dropout(0.1)(h)
h = layers.Dense(20, activation="relu")(h)
h = layers.Dropout(0.1)(h)
model = keras.Model(inputs=inputs, outputs=layers.Dense(2, activation="softmax")(h))
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    x[:60], y[:60], batch_size=16, epochs=2, shuffle=False, validation_data=(x[60:], y[60:])
)
print(history.history)
