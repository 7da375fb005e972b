"""`--format saved_model`: TensorFlow's own, for `tf.saved_model.load` and TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kerasdist.model_files.served import Runtime, Served, in_float32


def write(served: Served, path: Path) -> list[str]:
    """Writes a folder with the endpoint `serve`, which is the default signature too."""
    notes = in_float32(served)
    save(served, path, served.inputs)
    return notes


def save(served: Served, path: Path, inputs: Sequence[tf.TensorSpec]) -> None:
    try:
        _archive(served, inputs).write_out(str(path), verbose=False)
    except AssertionError:
        # Lookup tables are found only in what is tracked. That writes every variable twice (Keras
        # 3.15.1), so it is not the first thing to try.
        archive = _archive(served, inputs)
        archive.track(served.model)
        archive.write_out(str(path), verbose=False)


def _archive(served: Served, inputs: Sequence[tf.TensorSpec]) -> keras.export.ExportArchive:
    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", served.named, input_signature=list(inputs))
    return archive


def opened(path: Path, served: Served) -> Runtime:
    """Loads the folder by its default signature, as a server does."""
    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        named = zip(served.inputs, arrays, strict=True)
        outputs = signature(**{spec.name: tf.constant(array) for spec, array in named})
        return [outputs[name].numpy() for name in served.output_names]

    # The signature's variables live as long as what was loaded.
    run.loaded = loaded  # type: ignore[attr-defined]
    return run
