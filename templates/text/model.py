"""A network for texts: the mean of all words, and the strongest patterns of three words."""

from __future__ import annotations

import keras
from keras import layers, ops

import kerasdist


def build_model(config) -> keras.Model:
    """The untrained network, compiled."""
    schema = kerasdist.Table.schema_of(config.schema)
    words = keras.Input((schema.num_words,), dtype="int32", name="words")
    logits = layers.Dense(len(config.class_names), dtype="float32", name="logits")
    model = keras.Model({"words": words}, logits(features(config, schema, words)), name="text")
    steps = kerasdist.count_steps(config.num_train, config.batch_size, config.epochs)
    model.compile(
        optimizer=kerasdist.optimizer(config, total_steps=steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def features(config, schema, words):
    """The words' mean, and of each pattern where in the text it fits best."""
    # 0 fills up short texts, 1 stands for words that are not in the vocabulary.
    vectors = layers.Embedding(len(schema.vocabulary) + 2, config.embedding, name="words_known")(
        words
    )
    there = ops.expand_dims(ops.cast(ops.not_equal(words, 0), vectors.dtype), -1)
    vectors = vectors * there
    found = [ops.sum(vectors, axis=1) / ops.maximum(ops.sum(there, axis=1), 1)]
    if config.filters:
        patterns = layers.Conv1D(config.filters, 3, padding="same", activation="relu")(vectors)
        found.append(ops.max(patterns * there, axis=1))
    x = layers.Concatenate()(found) if len(found) > 1 else found[0]
    return layers.Dropout(config.dropout)(x)
