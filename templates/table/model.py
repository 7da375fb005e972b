"""A network for tables: a linear model, and beside it two hidden layers for what is not linear."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import kerasdist


def build_model(config) -> keras.Model:
    """The untrained network, compiled."""
    schema = kerasdist.Table.schema_of(config.schema)
    is_regression = schema.target.task == "regression"
    num_outputs = 1 if is_regression else len(schema.target.classes)
    inputs, outputs = network(config, schema, num_outputs)
    if is_regression:
        # The network computes with numbers around 0; its answers have the units of the target.
        center, scale = schema.target.center, schema.target.scale
        outputs = layers.Rescaling(scale, offset=center, dtype="float32", name="units")(outputs)
        compiled = {
            "loss": keras.losses.Huber(delta=scale),
            "loss_weights": [1 / scale**2],
            "metrics": [keras.metrics.MeanAbsoluteError(name="mae"), R2(center, scale)],
        }
    else:
        compiled = {
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        }
    model = keras.Model(inputs, outputs, name="table")
    steps = kerasdist.count_steps(config.num_train, config.batch_size, config.epochs)
    model.compile(optimizer=kerasdist.optimizer(config, total_steps=steps), **compiled)
    return model


def network(config, schema, num_outputs: int):
    """The inputs by name, and the sum of a linear and a deep part."""
    inputs, linear, deep = {}, [], []
    if "numbers" in schema.features:
        inputs["numbers"] = keras.Input((schema.num_numbers,), name="numbers")
        linear.append(layers.Dense(num_outputs, name="linear")(inputs["numbers"]))
        deep.append(inputs["numbers"])
    if "categories" in schema.features:
        inputs["categories"] = keras.Input(
            (schema.num_categories,), dtype="int32", name="categories"
        )
        # One table for all columns: each has its own range of rows.
        first = np.cumsum([0, *schema.sizes[:-1]]).astype("int32")
        # Keras makes a BiasAdd of a sum, and LiteRT has none for whole numbers (Keras 3.15.1).
        rows = ops.subtract(inputs["categories"], -first)
        total = sum(schema.sizes)
        effects = layers.Embedding(total, num_outputs, "zeros", name="effects")(rows)
        linear.append(ops.sum(effects, axis=1))
        deep.append(
            layers.Flatten()(layers.Embedding(total, config.embedding, name="values")(rows))
        )
    if "words" in schema.features:
        inputs["words"] = keras.Input((schema.num_words,), dtype="int32", name="words")
        deep.append(text(config, schema, inputs["words"]))
    x = layers.Concatenate()(deep) if len(deep) > 1 else deep[0]
    for i in (1, 2):
        x = layers.Dense(config.units, activation="relu", name=f"hidden{i}")(x)
        x = layers.Dropout(config.dropout, name=f"dropout{i}")(x)
    # It begins as the linear model, and leaves it where that helps.
    outputs = layers.Dense(num_outputs, kernel_initializer="zeros", dtype="float32", name="deep")(x)
    return inputs, layers.Add(name="outputs", dtype="float32")([outputs, *linear])


def text(config, schema, words):
    """The mean of the words' embeddings."""
    vectors = layers.Embedding(
        len(schema.vocabulary) + 2, 4 * config.embedding, name="words_known"
    )(words)
    there = ops.expand_dims(ops.cast(ops.not_equal(words, 0), vectors.dtype), -1)
    mean = ops.sum(vectors * there, axis=1) / ops.maximum(ops.sum(there, axis=1), 1)
    return layers.Dropout(config.dropout)(mean)


@keras.saving.register_keras_serializable("table")
class R2(keras.metrics.R2Score):
    """The part of the target's variance that the model explains, without loss of digits."""

    def __init__(self, center: float = 0.0, scale: float = 1.0, name: str = "r2", **kwargs):
        super().__init__(name=name, **kwargs)
        self.center, self.scale = center, scale

    def update_state(self, y_true, y_pred, sample_weight=None):
        # Squares of large numbers would lose the small differences between them.
        y_true, y_pred = (
            (ops.cast(y, "float32") - self.center) / self.scale for y in (y_true, y_pred)
        )
        return super().update_state(y_true, y_pred, sample_weight)

    def get_config(self):
        return super().get_config() | {"center": self.center, "scale": self.scale}
