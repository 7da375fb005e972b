"""A KerasHub BERT classifier from a tiny backbone, with a tokenizer made in memory, on strings."""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(34)
rng = np.random.default_rng(34)
words = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "road", "un", "##real"]
tokenizer = keras_hub.models.BertTokenizer(
    vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lowercase=True
)
preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=10)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=tokenizer.vocabulary_size(),
    num_layers=1,
    num_heads=2,
    hidden_dim=12,
    intermediate_dim=16,
    max_sequence_length=10,
    dropout=0.0,
)
classifier = keras_hub.models.BertTextClassifier(
    backbone=backbone, num_classes=2, preprocessor=preprocessor, dropout=0.0
)
classifier.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(5e-3),
    metrics=["accuracy"],
)
features = [" ".join(rng.choice(words[:9], 6)) for _ in range(42)]
labels = np.array([int("cat" in feature) for feature in features])
history = classifier.fit(
    tf.data.Dataset.from_tensor_slices((features, labels)).batch(16), epochs=2, verbose=2
)
logits = classifier.predict(features[:5], verbose=0)
print(logits, history.history)
