"""The formats of exported models, one module per format.

Each module has `write(served, path)`, which returns notes for the user about the file, and
`opened(path, served)`, which loads the file in its runtime to check it.
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
