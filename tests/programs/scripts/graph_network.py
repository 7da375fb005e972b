"""A graph network: messages along edges by gather and segment_sum; batches are node indices."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(61)
rng = np.random.default_rng(61)
num_nodes, num_classes = 48, 3
labels = rng.integers(0, num_classes, num_nodes)
node_features = rng.normal(size=(num_nodes, 6)).astype(keras.config.floatx())
node_features[:, :num_classes] += np.eye(num_classes)[labels]
edges = np.stack([rng.integers(0, num_nodes, 140), np.sort(rng.integers(0, num_nodes, 140))])


class GraphConvLayer(layers.Layer):
    def __init__(self, hidden_units, **kwargs):
        super().__init__(**kwargs)
        self.prepare = layers.Dense(hidden_units, activation="gelu")
        self.update = layers.Dense(hidden_units, activation="gelu")

    def call(self, inputs):
        node_representations, edges = inputs
        neighbours = tf.gather(node_representations, edges[0])
        messages = self.prepare(neighbours)
        received = tf.math.unsorted_segment_sum(messages, edges[1], num_nodes)
        joined = tf.concat([node_representations, received], axis=1)
        return tf.nn.l2_normalize(self.update(joined), axis=-1)


class GNNNodeClassifier(keras.Model):
    def __init__(self, node_features, edges, num_classes, hidden_units=12, **kwargs):
        super().__init__(**kwargs)
        self.node_features = tf.constant(node_features)
        self.edges = tf.constant(edges)
        self.preprocess = layers.Dense(hidden_units, activation="gelu")
        self.conv1 = GraphConvLayer(hidden_units, name="graph_conv1")
        self.conv2 = GraphConvLayer(hidden_units, name="graph_conv2")
        self.compute_logits = layers.Dense(num_classes, name="logits")

    def call(self, input_node_indices):
        x = self.preprocess(self.node_features)
        x = x + self.conv1((x, self.edges))
        x = x + self.conv2((x, self.edges))
        return self.compute_logits(tf.gather(x, tf.cast(input_node_indices, "int32")))


gnn_model = GNNNodeClassifier(node_features, edges, num_classes, name="gnn_model")
gnn_model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
train_nodes = np.arange(0, 38)
test_nodes = np.arange(38, num_nodes)
history = gnn_model.fit(
    x=train_nodes, y=labels[train_nodes], epochs=3, batch_size=12, shuffle=False, verbose=2
)
test_accuracy = gnn_model.evaluate(x=test_nodes, y=labels[test_nodes], verbose=0)[1]
print(f"test accuracy: {test_accuracy:.3f}", history.history)
