"""A vision transformer: patches, position embeddings, and the best weights from a checkpoint."""

import os
import tempfile

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(73)
rng = np.random.default_rng(73)
image_size, patch_size, projection_dim, num_classes = 12, 4, 16, 3
num_patches = (image_size // patch_size) ** 2
x_train = rng.random((52, image_size, image_size, 3)).astype("float32")
y_train = rng.integers(0, num_classes, (52, 1))


class Patches(layers.Layer):
    def __init__(self, patch_size):
        super().__init__()
        self.patch_size = patch_size

    def call(self, images):
        patches = ops.image.extract_patches(images, size=self.patch_size)
        return ops.reshape(patches, (-1, num_patches, patch_size * patch_size * 3))


class PatchEncoder(layers.Layer):
    def __init__(self, num_patches, projection_dim):
        super().__init__()
        self.num_patches = num_patches
        self.projection = layers.Dense(units=projection_dim)
        self.position_embedding = layers.Embedding(num_patches, projection_dim)

    def call(self, patch):
        positions = ops.expand_dims(ops.arange(start=0, stop=self.num_patches, step=1), axis=0)
        return self.projection(patch) + self.position_embedding(positions)


def create_vit_classifier():
    inputs = keras.Input(shape=(image_size, image_size, 3))
    encoded = PatchEncoder(num_patches, projection_dim)(Patches(patch_size)(inputs))
    for _ in range(2):
        x1 = layers.LayerNormalization(epsilon=1e-6)(encoded)
        x2 = layers.Add()([layers.MultiHeadAttention(2, projection_dim)(x1, x1), encoded])
        x3 = layers.LayerNormalization(epsilon=1e-6)(x2)
        x3 = layers.Dense(projection_dim, activation=keras.activations.gelu)(x3)
        encoded = layers.Add()([x3, x2])
    representation = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(encoded))
    return keras.Model(inputs=inputs, outputs=layers.Dense(num_classes)(representation))


def run_experiment(model):
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint_filepath = os.path.join(folder, "checkpoint.weights.h5")
        checkpoint_callback = keras.callbacks.ModelCheckpoint(
            checkpoint_filepath,
            monitor="val_loss",
            save_best_only=True,
            save_weights_only=True,
        )
        history = model.fit(
            x=x_train,
            y=y_train,
            batch_size=16,
            epochs=2,
            shuffle=False,
            validation_split=0.1,
            callbacks=[checkpoint_callback],
        )
        model.load_weights(checkpoint_filepath)
    _, accuracy = model.evaluate(x_train, y_train, verbose=0)
    print(f"accuracy: {round(accuracy * 100, 2)}%")
    return history


vit_classifier = create_vit_classifier()
history = run_experiment(vit_classifier)
print(history.history)
