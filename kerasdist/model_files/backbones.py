"""`backbone`: a network of `keras.applications` as a layer, and its weights from a file."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import keras

from kerasdist.errors import KerasdistError
from kerasdist.model_files.weights import load_into
from kerasdist.recipes.own_data.backbones import application

NAME = "backbone"
IMAGENET = "imagenet"
_URL = re.compile(r"URL fetch failure on (\S+?):? ")


def backbone(
    name: str, shape: Sequence[int], *, weights: str | os.PathLike[str] | None = None
) -> keras.Model:
    """Returns a network of `keras.applications` without its classes, to use as a layer.

    It takes RGB images with values from 0 to 255 and does its own preprocessing. Its output is a
    vector of features per image. With `trainable = False`, its BatchNorms keep their statistics,
    too.

    Args:
        name: Such as "mobilenet_v3_small" or "efficientnet_b0".
        shape: The height and width of the images.
        weights: None for random weights, "imagenet" for those that Keras downloads, or a file: see
            `kerasdist.load_backbone`.

    Returns:
        A model with the name "backbone".

    Raises:
        KerasdistError: If the network does not exist, or its weights cannot be read.

    Example:
        >>> import keras, kerasdist
        >>> network = kerasdist.backbone("mobilenet_v3_small", (32, 32))
        >>> network.trainable = False
        >>> image = keras.Input((32, 32, 3), dtype="uint8")
        >>> model = keras.Model(image, keras.layers.Dense(3)(network(image)))
    """
    made = _build(name, shape, None)
    return made if weights is None else load_backbone(made, name, weights)


def load_backbone(model: keras.Model, name: str, weights: str | os.PathLike[str]) -> keras.Model:
    """Loads weights into a backbone that `kerasdist.backbone` made.

    Args:
        model: The backbone.
        name: Its name, such as "mobilenet_v3_small".
        weights: "imagenet", or a `.keras` or `.weights.h5` file or the folder of a run. The file
            may hold the backbone alone, the network of `keras.applications` with or without its
            classes, or a model that has one of them in it.

    Returns:
        The backbone.

    Raises:
        KerasdistError: If the weights cannot be downloaded or read, or are of another network.

    Example:
        >>> import kerasdist
        >>> network = kerasdist.backbone("mobilenet_v3_small", (32, 32))
        >>> network.save_weights("mine.weights.h5")
        >>> other = kerasdist.backbone("mobilenet_v3_small", (48, 48))
        >>> _ = kerasdist.load_backbone(other, "mobilenet_v3_small", "mine.weights.h5")
    """
    if str(weights) == IMAGENET:
        # Keras checks its own files. Others of their layout may hold code and are not read.
        height, width = model.input_shape[1:3]
        made = _build(name, (height, width), IMAGENET)
        with tempfile.TemporaryDirectory(prefix="kerasdist-") as folder:
            # By name, not by order: with LoRA the model has more weights.
            file = os.path.join(folder, "imagenet.weights.h5")
            made.save_weights(file)
            return load_backbone(model, name, file)
    report = load_into(_network(model), weights, strict=False, inside=True)
    if report.missing or report.mismatched:
        raise KerasdistError(
            f"The weights in {str(weights)!r} are not those of the backbone {name!r}. Expected all "
            "its arrays, in a file of the backbone alone or of a model with it. Choose the "
            f"backbone that the file was saved with.\n  {report.summary()}"
        )
    return model


def _network(model: keras.Model) -> keras.Model:
    """What has all weights of a backbone: the layer after those that preprocess."""
    with_weights = [layer for layer in model.layers if layer.weights]
    is_alone = len(with_weights) == 1 and isinstance(with_weights[0], keras.Model)
    return with_weights[0] if is_alone else model


def _build(name: str, shape: Sequence[int], weights: str | None) -> keras.Model:
    found = application(name)
    height, width = shape
    module = getattr(keras.applications, found.module)
    try:
        with warnings.catch_warnings():
            # Keras says that it loads weights for another image size, which is what is wanted.
            warnings.filterwarnings("ignore", message="`input_shape` is undefined")
            network = getattr(keras.applications, found.kind)(
                input_shape=(height, width, 3), include_top=False, weights=weights, pooling="avg"
            )
    except Exception as error:
        if weights is None:
            raise
        raise _not_downloaded(name, error) from error
    image = keras.Input((height, width, 3), name="image")
    # Several networks preprocess inside. Then this function does nothing.
    return keras.Model(image, network(module.preprocess_input(image)), name=NAME)


def _not_downloaded(name: str, error: Exception) -> KerasdistError:
    url = _URL.search(str(error))
    folder = Path(os.environ.get("KERAS_HOME", "~/.keras")) / "models"
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    fix = (
        f"Fetch {url[1]} on a machine with a network and put it into {folder}"
        if url
        else f"Put the file of the weights into {folder}"
    )
    return KerasdistError(
        f"The weights {IMAGENET!r} of the backbone {name!r} cannot be loaded: {reason}. Expected a "
        f"network, or the file in {folder}. {fix}, or give a file with `weights`."
    )
