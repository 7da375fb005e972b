"""`--format litert`: a .tflite file for phones and small devices."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from kerasdist.errors import RunFailedError
from kerasdist.model_files.formats import saved_model
from kerasdist.model_files.served import Runtime, Served, in_float32, reason

ONE_AT_A_TIME = (
    "the file takes one example at a time: LiteRT supports the model's loops only for a fixed "
    "number of examples"
)


def write(served: Served, path: Path) -> list[str]:
    """Converts for any number of examples; if LiteRT cannot do that, for one at a time."""
    notes = in_float32(served)
    errors = []
    for size in (None, 1):
        try:
            path.write_bytes(_convert(served, size))
        except Exception as error:  # noqa: BLE001 - the converter raises many types of errors
            errors.append(error)
            continue
        return [*notes, *([ONE_AT_A_TIME] if size == 1 else [])]
    raise RunFailedError(
        f"LiteRT cannot represent the model {type(served.model).__name__!r}: {reason(errors[-1])} "
        "Expected operations that LiteRT supports. Use another format, for example "
        "`--format saved_model`."
    ) from errors[-1]


def _convert(served: Served, size: int | None) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kerasdist-") as folder:
        saved_model.save(served, Path(folder), served.with_batch_of(size))
        # Only built-in operations: others need a second library on the device.
        return tf.lite.TFLiteConverter.from_saved_model(folder).convert()


def opened(path: Path, served: Served) -> Runtime:
    """Loads the file in LiteRT's interpreter, TensorFlow's copy of it."""
    with warnings.catch_warnings():
        # It warns about its removal in a later TensorFlow.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_path=str(path))
    runner = interpreter.get_signature_runner("serving_default")
    details = runner.get_input_details()
    is_single = all(detail["shape_signature"][0] == 1 for detail in details.values())

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        count = len(arrays[0])
        pieces = [slice(i, i + 1) for i in range(count)] if is_single else [slice(0, count)]
        results = []
        for piece in pieces:
            named = zip(served.inputs, arrays, strict=True)
            # The file lacks inputs that the converted graph does not read.
            fed = {spec.name: array[piece] for spec, array in named if spec.name in details}
            results.append(runner(**fed))
        return [np.concatenate([r[name] for r in results]) for name in served.output_names]

    return run
