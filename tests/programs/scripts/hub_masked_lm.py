"""A KerasHub BERT MaskedLM from a tiny backbone: mask positions and padded weights."""

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(75)
rng = np.random.default_rng(75)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=30,
    num_layers=1,
    num_heads=2,
    hidden_dim=12,
    intermediate_dim=16,
    max_sequence_length=10,
    dropout=0.0,
)
masked_lm = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
token_ids = rng.integers(5, 30, size=(36, 10))
mask_positions = np.sort(rng.permuted(np.tile(np.arange(10), (36, 1)), axis=1)[:, :3], axis=1)
labels = np.take_along_axis(token_ids, mask_positions, axis=1)
np.put_along_axis(token_ids, mask_positions, 4, axis=1)
features = {
    "token_ids": token_ids,
    "segment_ids": np.zeros_like(token_ids),
    "padding_mask": np.ones_like(token_ids),
    "mask_positions": mask_positions,
}
weights = (rng.random((36, 3)) < 0.8).astype("float32")

masked_lm.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(1e-3),
    weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = masked_lm.fit(
    features, labels, sample_weight=weights, batch_size=10, epochs=2, shuffle=False, verbose=2
)
print(history.history)
