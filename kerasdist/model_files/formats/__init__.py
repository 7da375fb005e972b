"""A trained model as a file of another program, and whether that file computes the same.

One module a format; each has `write(served, path)`, which returns what a reader must know about the
file, and `opened(path, served)`, which loads the file in its own runtime.
"""

from kerasdist.model_files.agreement import LIMIT, Difference, compare, random_inputs
from kerasdist.model_files.formats import keras_file, litert, onnx_file, saved_model
from kerasdist.model_files.served import Served, serve

FORMATS = {
    "keras": keras_file,
    "saved_model": saved_model,
    "litert": litert,
    "onnx": onnx_file,
}

__all__ = ["FORMATS", "LIMIT", "Difference", "Served", "compare", "random_inputs", "serve"]
