"""Networks for CIFAR-10: a small fast one, an accurate one, and the one of the TF1 tutorial."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

import kerasdist

from .data import NUM_CLASSES, num_examples
from .whitening import DEVIATION, MEAN, filters

PACKAGE = "kerasdist.recipes.cifar10"
NORM_MOMENTUM = 0.9


def build_model(config) -> kerasdist.Model:
    """Returns the untrained network of `config`, compiled.

    Args:
        config: The recipe's `Config`.

    Example:
        >>> build_model(Config(widths=(8, 16), source="synthetic")).widths
        (8, 16)
    """
    if config.network == "tutorial":
        model: kerasdist.Model = Cifar10CNN(config.crop_size, config.l2)
    else:
        model = WhitenedCNN(config.widths, config.convolutions)
    steps = kerasdist.count_steps(
        num_examples(config), config.batch_size, config.epochs, config.steps
    )
    is_whitened = config.network == "whitened"
    is_muon = config.optimizer == "kernel_muon"
    model.compile(
        optimizer=kerasdist.optimizer(
            config,
            total_steps=steps,
            learning_rate_factors={"beta$": config.bias_factor} if is_whitened else None,
            arguments={"others_rate": config.others_rate} if is_muon else None,
        ),
        loss=kerasdist.SmoothedCrossentropy(config.label_smoothing),
        metrics=["accuracy"],
    )
    return model


@keras.saving.register_keras_serializable(PACKAGE)
class WhitenedCNN(kerasdist.Model):
    """Groups of 3x3 convolutions on whitened 2x2 patches. Images have values from 0 to 255.

    Args:
        widths: Filters per group. Each group halves the side of the image.
        convolutions: Convolutions per group. With three or more, all but the first are a residual:
            the output of the first is added to the output of the last.

    Example:
        >>> import numpy as np
        >>> WhitenedCNN((8, 16, 16))(np.zeros((2, 32, 32, 3), "uint8")).shape
        TensorShape([2, 10])
    """

    features = "image"
    targets = "label"

    def __init__(
        self, widths: tuple[int, ...] = (32, 88, 144), convolutions: int = 2, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.widths = tuple(widths)
        self.convolutions = convolutions
        self.whitening = keras.layers.Conv2D(
            24, 2, use_bias=False, trainable=False, kernel_initializer=_whitening, name="whitening"
        )
        self.blocks = [
            layer
            for i, width in enumerate(self.widths, 1)
            for j in range(1, convolutions + 1)
            for layer in _block(f"group{i}_{j}", width, halve=j == 1)
        ]
        self.pool = keras.layers.GlobalMaxPooling2D(name="pool")
        # float32 even under mixed precision, because a softmax follows.
        self.logits = keras.layers.Dense(
            NUM_CLASSES, use_bias=False, dtype="float32", name="logits"
        )

    def call(self, image, training=False):
        outputs = (ops.cast(image, "float32") - np.float32(MEAN)) / np.float32(DEVIATION)
        outputs = ops.gelu(self.whitening(ops.cast(outputs, self.compute_dtype)))
        size = len(self.blocks) // len(self.widths)
        for start in range(0, len(self.blocks), size):
            outputs = self._group(outputs, self.blocks[start : start + size], training)
        # Keep the logits small: smoothed targets are never far from each other.
        return self.logits(self.pool(outputs)) / 9

    def _group(self, outputs, layers, training):
        halved = None
        for layer in layers:
            if not isinstance(layer, keras.layers.BatchNormalization):
                outputs = layer(outputs)
                continue
            outputs = layer(outputs, training=training)
            if self.convolutions > 2 and layer is layers[-1]:
                outputs = outputs + halved
            outputs = ops.gelu(outputs)
            halved = outputs if halved is None else halved
        return outputs

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor. Loading a saved model needs them."""
        return super().get_config() | {"widths": self.widths, "convolutions": self.convolutions}


def _whitening(shape, dtype=None):
    return ops.convert_to_tensor(filters(), dtype)


@keras.saving.register_keras_serializable(PACKAGE)
class PartlyIdentity(keras.initializers.Initializer):
    """The first filters copy one input channel each; the other filters are small and random.

    So at the start, the outputs of the previous layer pass through unchanged.

    Example:
        >>> float(PartlyIdentity(seed=1)((3, 3, 2, 4))[1, 1, 0, 0])
        1.0
    """

    def __init__(self, seed: int | None = None):
        self._random = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", seed=seed)

    def __call__(self, shape, dtype=None):
        height, width, num_inputs, num_filters = shape
        copied = min(num_inputs, num_filters)
        identity = np.zeros(shape, "float32")
        identity[height // 2, width // 2, range(copied), range(copied)] = 1
        is_random = np.arange(num_filters) >= copied
        random = self._random(shape, "float32") * is_random.astype("float32")
        return ops.cast(random + identity, dtype or "float32")

    def get_config(self) -> dict[str, Any]:
        return {"seed": self._random.get_config()["seed"]}


def _block(name: str, width: int, *, halve: bool) -> list[keras.layers.Layer]:
    """A convolution and its normalization. The model applies a GELU after them."""
    layers: list[keras.layers.Layer] = [
        keras.layers.Conv2D(
            width,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer=PartlyIdentity(),
            name=f"{name}_conv",
        )
    ]
    if halve:
        layers.append(keras.layers.MaxPooling2D(2, name=f"{name}_pool"))
    layers.append(
        keras.layers.BatchNormalization(
            momentum=NORM_MOMENTUM, epsilon=1e-5, scale=False, name=f"{name}_norm"
        )
    )
    return layers


@keras.saving.register_keras_serializable(PACKAGE)
class LocalResponseNormalization(keras.layers.Layer):
    """Divides each activation by a norm over the nine nearest channels, as the tutorial did.

    Example:
        >>> LocalResponseNormalization()(ops.ones((1, 2, 2, 16))).shape
        TensorShape([1, 2, 2, 16])
    """

    def build(self, input_shape):
        channels = np.arange(input_shape[-1])
        # Sum over neighbours by multiplying with a band of ones. On a CPU this is several times
        # faster than TensorFlow's operation, above all in the backward pass.
        self.band = (np.abs(channels[:, None] - channels) <= 4).astype("float32")

    def call(self, inputs):
        # The squares would overflow in half precision.
        values = ops.cast(inputs, "float32")
        norm = 1.0 + (0.001 / 9) * ops.matmul(ops.square(values), self.band)
        root = ops.rsqrt(norm)
        return ops.cast(values * root * ops.sqrt(root), inputs.dtype)  # norm ** -0.75

    def compute_output_shape(self, input_shape):
        return input_shape


@keras.saving.register_keras_serializable(PACKAGE)
class Cifar10CNN(kerasdist.Model):
    """The tutorial's two convolutions and three dense layers. Images have values from 0 to 255.

    Args:
        crop_size: The side of the image that the network sees. Larger images are cropped to their
            centre.
        l2: The factor of the L2 loss on the kernels of the two hidden dense layers.

    Example:
        >>> import numpy as np
        >>> Cifar10CNN()(np.zeros((2, 32, 32, 3), "uint8")).shape
        TensorShape([2, 10])
    """

    features = "image"
    targets = "label"

    def __init__(self, crop_size: int = 24, l2: float = 0.002, **kwargs: Any):
        super().__init__(**kwargs)
        self.crop_size = crop_size
        self.l2 = l2
        self.blocks = [
            _convolution("conv1", bias=0.0),
            _max_pool("pool1"),
            LocalResponseNormalization(name="norm1"),
            _convolution("conv2", bias=0.1),
            LocalResponseNormalization(name="norm2"),
            _max_pool("pool2"),
            keras.layers.Flatten(name="flatten"),
            _hidden("dense1", 384, l2),
            _hidden("dense2", 192, l2),
            # float32 even under mixed precision, because a softmax follows.
            keras.layers.Dense(
                NUM_CLASSES,
                kernel_initializer=_truncated_normal(1 / 192),
                dtype="float32",
                name="logits",
            ),
        ]

    def call(self, image, training=False):
        outputs = ops.cast(standardize(crop(image, self.crop_size)), self.compute_dtype)
        for block in self.blocks:
            outputs = block(outputs)
        return outputs

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor. Loading a saved model needs them."""
        return super().get_config() | {"crop_size": self.crop_size, "l2": self.l2}


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
            "`crop_size`. Set a smaller `crop_size`, or use larger images."
        )
    top, left = (height - size) // 2, (width - size) // 2
    return image[:, top : top + size, left : left + size]


def standardize(image):
    """Returns each image with mean 0 and standard deviation 1, as float32.

    Example:
        >>> float(ops.max(standardize(np.array([[[[0]], [[255]]]], "uint8"))))
        1.0
    """
    image = ops.cast(image, "float32")
    mean = ops.mean(image, axis=(1, 2, 3), keepdims=True)
    variance = ops.mean(ops.square(image - mean), axis=(1, 2, 3), keepdims=True)
    # A uniform image has deviation 0: use the lower limit of `per_image_standardization`.
    num_values = image.shape[1] * image.shape[2] * image.shape[3]
    return (image - mean) / ops.maximum(ops.sqrt(variance), num_values**-0.5)


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


def _hidden(name: str, units: int, l2: float) -> keras.layers.Layer:
    return keras.layers.Dense(
        units,
        activation="relu",
        kernel_initializer=_truncated_normal(0.04),
        bias_initializer=keras.initializers.Constant(0.1),
        kernel_regularizer=keras.regularizers.L2(l2),
        name=name,
    )
