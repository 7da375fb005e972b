"""`--format onnx`: an .onnx file, for onnxruntime and other runtimes. Needs the extra `onnx`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.errors import RunFailedError
from kerasdist.model_files.served import Runtime, Served, in_float32, reason


def write(served: Served, path: Path) -> list[str]:
    """Converts the model's compiled function."""
    import onnx
    import tf2onnx

    notes = in_float32(served)
    compiled = tf.function(served.named, input_signature=list(served.inputs), autograph=False)
    complaints = _Complaints()
    logger = logging.getLogger("tf2onnx")
    logger.addHandler(complaints)
    before, logger.propagate = logger.propagate, False
    try:
        content, _ = tf2onnx.convert.from_function(
            compiled,
            input_signature=list(served.inputs),
            custom_op_handlers={"Erfc": (_erfc, [])},
        )
    except Exception as error:
        raise _refused(served, reason(error)) from error
    finally:
        logger.removeHandler(complaints)
        logger.propagate = before
    if complaints.lines:
        # The converter continues after an unknown operation, but no runtime can read the file.
        raise _refused(served, f"{complaints.lines[-1]}.")
    for value in (*content.graph.input, *content.graph.output):
        dimensions = value.type.tensor_type.shape.dim
        if dimensions and not dimensions[0].dim_value:
            dimensions[0].dim_param = "batch"
    onnx.save(content, str(path))
    return notes


def _refused(served: Served, why: str) -> RunFailedError:
    return RunFailedError(
        f"ONNX cannot represent the model {type(served.model).__name__!r}: {why} Expected "
        "operations that tf2onnx can convert. Use another format, for example "
        "`--format saved_model`."
    )


class _Complaints(logging.Handler):
    """Collects the errors that the converter logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _erfc(graph: Any, node: Any, name: str, arguments: list[Any]) -> None:
    """Writes erfc(x) as 1 - erf(x). TensorFlow's exact GELU uses erfc, which tf2onnx 1.17 lacks."""
    from tf2onnx.utils import map_onnx_to_numpy_type

    shapes, kinds, (given,) = node.output_shapes, node.output_dtypes, node.input
    graph.remove_node(node.name)
    erf = graph.make_node("Erf", [given], dtypes=kinds, shapes=shapes)
    one = graph.make_const(f"{name}_one", np.array(1, map_onnx_to_numpy_type(kinds[0])))
    graph.make_node(
        "Sub",
        [one.output[0], erf.output[0]],
        name=name,
        outputs=node.output,
        dtypes=kinds,
        shapes=shapes,
    )


def opened(path: Path, served: Served) -> Runtime:
    """Loads the file in onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        named = zip(served.inputs, arrays, strict=True)
        fed = {spec.name: array for spec, array in named if spec.name in known}
        return list(session.run(list(served.output_names), fed))

    return run
