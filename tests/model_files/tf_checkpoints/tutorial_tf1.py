"""The network of TensorFlow 1's CIFAR-10 tutorial, trained a few steps and saved as it was then.

Run as a program: `python tutorial_tf1.py FOLDER`. It writes a checkpoint and the logits of two
images, with raw weights and with averages.
"""

import sys

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def variable(name, shape, deviation):
    start = v1.truncated_normal_initializer(stddev=deviation, seed=len(name))
    return v1.get_variable(name, shape, initializer=start)


def biases(shape, value):
    return v1.get_variable("biases", shape, initializer=v1.constant_initializer(value))


def inference(images):
    """The forward pass, at half of the original's width."""
    with v1.variable_scope("conv1"):
        kernel = variable("weights", [5, 5, 3, 32], 5e-2)
        conv = tf.nn.conv2d(images, kernel, [1, 1, 1, 1], padding="SAME")
        conv1 = tf.nn.relu(tf.nn.bias_add(conv, biases([32], 0.0)))
    pool1 = tf.nn.max_pool2d(conv1, [1, 3, 3, 1], [1, 2, 2, 1], padding="SAME", name="pool1")
    norm1 = tf.nn.lrn(pool1, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name="norm1")
    with v1.variable_scope("conv2"):
        kernel = variable("weights", [5, 5, 32, 32], 5e-2)
        conv = tf.nn.conv2d(norm1, kernel, [1, 1, 1, 1], padding="SAME")
        conv2 = tf.nn.relu(tf.nn.bias_add(conv, biases([32], 0.1)))
    norm2 = tf.nn.lrn(conv2, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name="norm2")
    pool2 = tf.nn.max_pool2d(norm2, [1, 3, 3, 1], [1, 2, 2, 1], padding="SAME", name="pool2")
    with v1.variable_scope("local3"):
        flat = tf.reshape(pool2, [-1, 6 * 6 * 32])
        local3 = tf.nn.relu(
            tf.matmul(flat, variable("weights", [6 * 6 * 32, 48], 0.04)) + biases([48], 0.1)
        )
    with v1.variable_scope("local4"):
        local4 = tf.nn.relu(
            tf.matmul(local3, variable("weights", [48, 24], 0.04)) + biases([24], 0.1)
        )
    with v1.variable_scope("softmax_linear"):
        return tf.matmul(local4, variable("weights", [24, 10], 1 / 24)) + biases([10], 0.0)


def main(folder):
    random = np.random.default_rng(0)
    images = random.normal(size=(2, 24, 24, 3)).astype("float32")
    labels = random.integers(0, 10, size=2)
    with tf.Graph().as_default(), v1.Session() as session:
        logits = inference(v1.placeholder_with_default(images, [None, 24, 24, 3]))
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        step = v1.train.get_or_create_global_step()
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
        averages = tf.train.ExponentialMovingAverage(0.9, step)
        with tf.control_dependencies([train]):
            train = averages.apply(v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            session.run(train)
        v1.train.Saver().save(session, f"{folder}/model.ckpt", global_step=step)
        raw = session.run(logits)
        v1.train.Saver(averages.variables_to_restore()).restore(session, f"{folder}/model.ckpt-5")
        averaged = session.run(logits)
    np.savez(f"{folder}/logits.npz", images=images, raw=raw, averaged=averaged)


if __name__ == "__main__":
    main(sys.argv[1])
