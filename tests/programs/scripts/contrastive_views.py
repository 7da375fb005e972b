"""SimCLR: two views of each image, an in-batch contrastive loss and a linear probe in the step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(14)
rng = np.random.default_rng(14)
floatx = keras.config.floatx()
width, temperature = 12, 0.1


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(width, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(width, activation="relu"),
            ],
            name="encoder",
        )
        self.projection_head = keras.Sequential(
            [keras.Input((width,)), layers.Dense(width, activation="relu"), layers.Dense(width)],
            name="projection_head",
        )
        self.linear_probe = keras.Sequential(
            [keras.Input((width,)), layers.Dense(3)], name="linear_probe"
        )

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [
            self.contrastive_loss_tracker,
            self.contrastive_accuracy,
            self.probe_loss_tracker,
            self.probe_accuracy,
        ]

    def contrastive_loss(self, projections_1, projections_2):
        projections_1 = ops.normalize(projections_1, axis=1)
        projections_2 = ops.normalize(projections_2, axis=1)
        similarities = ops.matmul(projections_1, ops.transpose(projections_2)) / temperature
        contrastive_labels = ops.arange(ops.shape(projections_1)[0])
        self.contrastive_accuracy.update_state(contrastive_labels, similarities)
        loss_1_2 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, similarities, from_logits=True
        )
        loss_2_1 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, ops.transpose(similarities), from_logits=True
        )
        return ops.mean(loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        view_1, view_2, labeled_images, labels = data
        with tf.GradientTape() as tape:
            projections_1 = self.projection_head(self.encoder(view_1, training=True))
            projections_2 = self.projection_head(self.encoder(view_2, training=True))
            contrastive_loss = self.contrastive_loss(projections_1, projections_2)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.contrastive_loss_tracker.update_state(contrastive_loss)

        with tf.GradientTape() as tape:
            features = self.encoder(labeled_images, training=False)
            class_logits = self.linear_probe(features, training=True)
            probe_loss = self.probe_loss(labels, class_logits)
        gradients = tape.gradient(probe_loss, self.linear_probe.trainable_weights)
        self.probe_optimizer.apply_gradients(
            zip(gradients, self.linear_probe.trainable_weights, strict=True)
        )
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        labeled_images, labels = data
        class_logits = self.linear_probe(self.encoder(labeled_images, training=False))
        self.probe_loss_tracker.update_state(self.probe_loss(labels, class_logits))
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics[2:]}


images = rng.normal(size=(58, 8, 8, 1)).astype(floatx)
labels = rng.integers(0, 3, 58)


def make_views(index, image, label):
    noise_1 = tf.random.stateless_normal(tf.shape(image), seed=[index, 1], dtype=image.dtype)
    noise_2 = tf.random.stateless_normal(tf.shape(image), seed=[index, 2], dtype=image.dtype)
    return image + 0.1 * noise_1, tf.reverse(image, [1]) + 0.1 * noise_2, image, label


dataset = tf.data.Dataset.from_tensor_slices((tf.range(58), images, labels))
train_dataset = dataset.map(make_views).batch(14).prefetch(tf.data.AUTOTUNE)
test_dataset = tf.data.Dataset.from_tensor_slices((images[:20], labels[:20])).batch(8)

pretraining_model = ContrastiveModel()
pretraining_model.compile(
    contrastive_optimizer=keras.optimizers.Adam(), probe_optimizer=keras.optimizers.Adam()
)
pretraining_history = pretraining_model.fit(
    train_dataset, epochs=2, validation_data=test_dataset, verbose=2
)
print(max(pretraining_history.history["val_p_acc"]))

finetuning_model = keras.Sequential([pretraining_model.encoder, layers.Dense(3)])
finetuning_model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
finetuning_history = finetuning_model.fit(test_dataset, epochs=2, verbose=2)
