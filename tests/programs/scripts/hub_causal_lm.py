"""A KerasHub GPT-2 CausalLM from a tiny backbone, fine-tuned on token ids without preprocessor."""

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(35)
rng = np.random.default_rng(35)
backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=30,
    num_layers=2,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=24,
    max_sequence_length=12,
    dropout=0.0,
)
causal_lm = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
token_ids = rng.integers(1, 30, size=(45, 13))
lengths = rng.integers(5, 13, size=(45, 1))
padding_mask = np.arange(12)[None] < lengths
x = {"token_ids": token_ids[:, :-1] * padding_mask, "padding_mask": padding_mask}
y = token_ids[:, 1:]

causal_lm.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
    sampler="greedy",
)
history = causal_lm.fit(
    x=x, y=y, sample_weight=padding_mask, batch_size=16, epochs=2, shuffle=False, verbose=2
)
losses = causal_lm.evaluate(x, y, sample_weight=padding_mask, batch_size=16, verbose=0)
print(history.history, losses)
