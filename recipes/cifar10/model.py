"""The network of TensorFlow's CIFAR-10 tutorial, as a kerasdist model."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import kerasdist

NUM_CLASSES = 10
IMAGE_SIZE = 32


def build_model(config) -> Cifar10CNN:
    """Returns the untrained network of `config`.

    Args:
        config: The recipe's `Config`.

    Example:
        >>> build_model(Config(crop_size=32)).crop_size
        32
    """
    return Cifar10CNN(
        crop_size=config.crop_size,
        weight_decay=config.weight_decay,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
    )


@keras.saving.register_keras_serializable(package="kerasdist.recipes.cifar10")
class LocalResponseNormalization(keras.layers.Layer):
    """Divides each activation by a norm over the nine channels around it.

    Example:
        >>> LocalResponseNormalization()(keras.ops.ones((1, 2, 2, 16))).shape
        TensorShape([1, 2, 2, 16])
    """

    def call(self, inputs):
        # Not every device has this operation in half precision, and the squares would overflow.
        normalized = tf.nn.local_response_normalization(
            tf.cast(inputs, tf.float32), depth_radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75
        )
        return tf.cast(normalized, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


@keras.saving.register_keras_serializable(package="kerasdist.recipes.cifar10")
class Cifar10CNN(kerasdist.Model):
    """Two convolutions and three dense layers on images of values 0 to 255.

    Args:
        crop_size: Side of the central crop; smaller images are refused.
        weight_decay: L2 factor on the kernels of the two hidden dense layers.
        optimizer: One of `OPTIMIZERS`.
        learning_rate: Step size of the optimizer.

    Example:
        >>> import numpy as np
        >>> model = Cifar10CNN()
        >>> model(np.zeros((2, 32, 32, 3), "uint8")).shape
        TensorShape([2, 10])
    """

    features = "image"
    targets = "label"

    def __init__(
        self,
        crop_size: int = 24,
        weight_decay: float = 0.002,
        optimizer: str = "adam",
        learning_rate: float = 0.001,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_settings(crop_size, optimizer)
        self.crop_size = crop_size
        self.weight_decay = weight_decay
        self.optimizer_name = optimizer
        self.learning_rate = learning_rate
        self.blocks = [
            _convolution("conv1", bias=0.0),
            _max_pool("pool1"),
            LocalResponseNormalization(name="norm1"),
            _convolution("conv2", bias=0.1),
            LocalResponseNormalization(name="norm2"),
            _max_pool("pool2"),
            keras.layers.Flatten(name="flatten"),
            _hidden("dense1", 384, weight_decay),
            _hidden("dense2", 192, weight_decay),
            # In float32 also under mixed precision, because the softmax follows.
            keras.layers.Dense(
                NUM_CLASSES,
                kernel_initializer=_truncated_normal(1 / 192),
                dtype="float32",
                name="logits",
            ),
        ]

    def call(self, image, training=False):
        outputs = tf.cast(standardize(crop(image, self.crop_size)), self.compute_dtype)
        for block in self.blocks:
            outputs = block(outputs)
        return outputs

    def defaults(self) -> dict[str, Any]:
        """What `compile` is given when nobody compiled the model."""
        return {
            "optimizer": OPTIMIZERS[self.optimizer_name](self.learning_rate),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        }

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, so that a saved model can be loaded."""
        return super().get_config() | {
            "crop_size": self.crop_size,
            "weight_decay": self.weight_decay,
            "optimizer": self.optimizer_name,
            "learning_rate": self.learning_rate,
        }


def _adam(learning_rate: float) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(learning_rate)


def _momentum(learning_rate: float) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(learning_rate, momentum=0.9, nesterov=True)


def _sgd(learning_rate: float) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(learning_rate)


OPTIMIZERS = {"adam": _adam, "momentum": _momentum, "sgd": _sgd}


def crop(image, size: int):
    """Returns the central `size` by `size` pixels of a batch of images.

    Example:
        >>> import numpy as np
        >>> crop(np.zeros((2, 32, 32, 3)), 24).shape
        (2, 24, 24, 3)
    """
    height, width = image.shape[1:3]
    if size > min(height, width):
        raise kerasdist.KerasdistError(
            f"Received images of {height} x {width} pixels. Expected at least {size} x {size}, the "
            "`crop_size`. Set a smaller `crop_size`, or give larger images."
        )
    top, left = (height - size) // 2, (width - size) // 2
    return image[:, top : top + size, left : left + size]


def standardize(image):
    """Returns each image with mean 0 and standard deviation 1, as float32.

    Example:
        >>> float(tf.reduce_max(standardize(tf.constant([[[[0]], [[255]]]], tf.uint8))))
        1.0
    """
    image = tf.cast(image, tf.float32)
    mean, variance = tf.nn.moments(image, axes=[1, 2, 3], keepdims=True)
    # A uniform image has no deviation: divide by no less than `per_image_standardization` does.
    num_values = image.shape[1] * image.shape[2] * image.shape[3]
    return (image - mean) / tf.maximum(tf.sqrt(variance), num_values**-0.5)


def _check_settings(crop_size: int, optimizer: str) -> None:
    if not 1 <= crop_size <= IMAGE_SIZE:
        raise kerasdist.KerasdistError(
            f"Received `crop_size` {crop_size!r}. Expected 1 to {IMAGE_SIZE}, the images' size. "
            "Set `crop_size` in that range."
        )
    if optimizer not in OPTIMIZERS:
        raise kerasdist.KerasdistError(
            f"Received `optimizer` {optimizer!r}. Expected one of {', '.join(OPTIMIZERS)}. "
            "Set `optimizer` to one of these."
        )


def _truncated_normal(stddev: float) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=stddev)


def _convolution(name: str, bias: float) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        64,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=_truncated_normal(0.05),
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
    )


def _max_pool(name: str) -> keras.layers.Layer:
    return keras.layers.MaxPooling2D(3, 2, padding="same", name=name)


def _hidden(name: str, units: int, weight_decay: float) -> keras.layers.Layer:
    return keras.layers.Dense(
        units,
        activation="relu",
        kernel_initializer=_truncated_normal(0.04),
        bias_initializer=keras.initializers.Constant(0.1),
        kernel_regularizer=keras.regularizers.L2(weight_decay),
        name=name,
    )
