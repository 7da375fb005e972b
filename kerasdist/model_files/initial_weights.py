"""`load_weights`: weights for a model from a run, a file of Keras or a TensorFlow checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import keras

from kerasdist.errors import KerasdistError
from kerasdist.model_files.tf_checkpoints.files import is_checkpoint
from kerasdist.model_files.tf_checkpoints.loading import ImportReport, load_checkpoint
from kerasdist.model_files.tf_checkpoints.mapping import MapLike
from kerasdist.model_files.weights import Report, load_into
from kerasdist.models import pure

__all__ = ["ImportReport", "MapLike", "Report", "load_weights"]


def load_weights(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    init_map: MapLike | None = None,
    init_averages: bool = False,
) -> Report | ImportReport:
    """Loads the weights that fit into a built model, and says which they are.

    It does what `kerasdist.fit(init_from=...)` does before the training. Weights that the file does
    not have stay as they are. The model may also be a part of the model in the file, such as its
    backbone. If an error is raised, all of them do. No code of the file is run.

    Args:
        model: A built model.
        path: The folder of a run, a `.keras` or `.weights.h5` file, or a checkpoint of TensorFlow 1
            or 2: a prefix such as "model.ckpt-1000", a folder with a file `checkpoint`, or a
            SavedModel.
        init_map: For a checkpoint with other names: a JSON file or a dict with the name in the
            checkpoint of each weight, or of each layer. None (in JSON null) leaves a weight as it
            is.
        init_averages: Load the moving averages of a checkpoint instead of its raw weights.

    Returns:
        A report. `report.summary()` is the text that `fit` prints.

    Raises:
        KerasdistError: If a file is missing or damaged, if nothing fits, or if several arrays of a
            checkpoint would do for a weight.

    Example:
        >>> import keras, tensorflow as tf, kerasdist
        >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ...     _ = tf.compat.v1.get_variable("conv1/weights", initializer=tf.ones((3, 2)))
        ...     session.run(tf.compat.v1.global_variables_initializer())
        ...     prefix = tf.compat.v1.train.Saver().save(session, "./model.ckpt", 1000)
        >>> layer = keras.layers.Dense(2, use_bias=False, name="conv1")
        >>> model = keras.Sequential([keras.Input((3,)), layer])
        >>> print(kerasdist.load_weights(model, "model.ckpt-1000").summary())
        loaded 1 of the model's 1 weights from model.ckpt-1000 (TensorFlow 1)
            conv1/kernel <- conv1/weights
    """
    if not pure.is_model(model):
        raise KerasdistError(
            f"Received `model` of type {type(model).__name__}. Expected a built `keras.Model`. "
            "Build the model first."
        )
    if not pure.has_weights(model):
        raise KerasdistError(
            f"The model {type(model).__name__!r} is not built: it has no weights yet. Expected a "
            "built model. Call it once on a batch, or use `model.build`."
        )
    if is_checkpoint(path):
        return load_checkpoint(model, path, init_map=init_map, averages=init_averages)
    if init_map is not None or init_averages:
        given = "init_averages" if init_map is None else "init_map"
        raise KerasdistError(
            f"Received `{given}` for {str(path)!r}, which is not a TensorFlow checkpoint. Expected "
            f"`{given}` only with a checkpoint, because files of Keras have Keras's names and one "
            f"set of weights. Remove `{given}`, or name a checkpoint such as 'model.ckpt-1000'."
        )
    if not Path(path).expanduser().exists():
        raise KerasdistError(
            f"{str(path)!r} does not exist. Expected the folder of a run, a .keras or .weights.h5 "
            "file, or a TensorFlow checkpoint: its prefix such as 'model.ckpt-1000', or its "
            "folder. Check the name."
        )
    return load_into(model, path, strict=False)
