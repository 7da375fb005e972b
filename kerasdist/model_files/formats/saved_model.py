"""`--format saved_model`: a folder for `tf.saved_model.load` and TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kerasdist.model_files.served import Runtime, Served, in_float32

# The endpoint that takes the bytes of files.
FILES = "serve_files"


def write(served: Served, path: Path) -> list[str]:
    """Writes a folder with the endpoint `serve`, which is also the default signature.

    If the recipe can decode files in a graph, the endpoint `serve_files` takes their bytes.
    """
    notes = in_float32(served)
    save(served, path, served.inputs, with_files=True)
    if served.files is not None:
        notes.append(f"the signature {FILES} takes the bytes of files: a text tensor `contents`")
    return notes


def save(
    served: Served, path: Path, inputs: Sequence[tf.TensorSpec], *, with_files: bool = False
) -> None:
    """Writes a SavedModel that takes the given inputs."""
    try:
        _archive(served, inputs, with_files).write_out(str(path), verbose=False)
    except AssertionError:
        # Lookup tables are found only in a tracked model. Tracking writes every variable twice
        # (Keras 3.15.1), so it is tried second.
        archive = _archive(served, inputs, with_files)
        archive.track(served.model)
        archive.write_out(str(path), verbose=False)


def _archive(
    served: Served, inputs: Sequence[tf.TensorSpec], with_files: bool
) -> keras.export.ExportArchive:
    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", served.named, input_signature=list(inputs))
    if with_files and served.files is not None:
        contents = tf.TensorSpec([None], tf.string, "contents")
        archive.add_endpoint(FILES, served.files, input_signature=[contents])
    return archive


def opened(path: Path, served: Served) -> Runtime:
    """Loads the folder and uses its default signature, as a server does."""
    loaded = tf.saved_model.load(str(path))

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        named = zip(served.inputs, arrays, strict=True)
        # Through `loaded`, which keeps the signature's variables alive.
        signature = loaded.signatures["serving_default"]
        outputs = signature(**{spec.name: tf.constant(array) for spec, array in named})
        return [outputs[name].numpy() for name in served.output_names]

    return run
