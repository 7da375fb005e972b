"""`--format saved_model`: a folder for `tf.saved_model.load` and TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kerasdist.model_files.served import RawInputs, Runtime, Served, in_float32

# The endpoint that takes the bytes of files.
FILES = "serve_files"
# The endpoint that takes raw values: the columns of a table as they are.
RAW = "serve_rows"
# The one that takes the model's own inputs.
DEFAULT = "serving_default"


def write(served: Served, path: Path) -> list[str]:
    """Writes a folder with the endpoint `serve`, which is also the default signature.

    If the recipe can decode files in a graph, the endpoint `serve_files` takes their bytes, and
    if it can take raw values, `serve_rows` does.
    """
    notes = in_float32(served)
    save(served, path, served.inputs, with_files=True)
    if served.files is not None:
        notes.append(f"the signature {FILES} takes the bytes of files: a text tensor `contents`")
    if served.raw is not None:
        names = ", ".join(spec.name for spec in served.raw.inputs)
        notes.append(f"the signature {RAW} takes the columns as they are: {names}")
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
    if with_files and served.raw is not None:
        archive.track(served.raw.module)
        answers = _by_name(served.raw)
        archive.add_endpoint(RAW, answers, input_signature=list(served.raw.inputs))
    return archive


def _by_name(raw: RawInputs) -> Callable[..., dict[str, tf.Tensor]]:
    """Endpoints get their tensors by position."""
    names = [spec.name for spec in raw.inputs]
    return lambda *tensors: raw.answers(**dict(zip(names, tensors, strict=True)))


def opened(path: Path, served: Served) -> Runtime:
    """Loads the folder and uses its default signature, as a server does."""
    loaded = tf.saved_model.load(str(path))

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        named = zip(served.inputs, arrays, strict=True)
        # Through `loaded`, which keeps the signature's variables alive.
        signature = loaded.signatures[DEFAULT]
        outputs = signature(**{spec.name: tf.constant(array) for spec, array in named})
        return [outputs[name].numpy() for name in served.output_names]

    return run
