"""Fingerprints of a model and its data. Two starts of one run must have the same ones."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.streams import Stream
from kerasdist.models import pure

# Of larger arrays only the first and last rows are hashed, so that a start is not delayed.
_WHOLE_BYTES = 256 * 2**20
_ROWS = 256


def of_model(model: keras.Model) -> dict[str, str]:
    """The fingerprint of a model: path, shape and type of its variables and its optimizer's."""
    optimizer = type(model.optimizer).__name__
    described = [f"{v.path}{tuple(v.shape)}{v.dtype}" for v in model.weights]
    optimizers = pure.optimizers_of(model)
    slots = [f"{tuple(v.shape)}{v.dtype}" for o in optimizers for v in o.variables]
    # Keras numbers the layers of a whole process: "dense_3" may be "dense" after a restart.
    plain = "\n".join(without_numbers(text) for text in described) + "\n" + "\n".join(slots)
    digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
    return {"model": f"{type(model).__name__} {digest}", "optimizer": optimizer}


def without_numbers(path: str) -> str:
    """The path of a weight without the numbers that Keras gives to layers."""
    return re.sub(r"_\d+(?=/|$)", "", path)


def of_data(stream: Stream) -> dict[str, Any]:
    """The fingerprint of data: shapes and types, and a hash.

    The hash covers data in memory, and the first batch of any other data.
    """
    content = stream.arrays if stream.arrays is not None else stream.first_batch()
    spec = tf.nest.map_structure(lambda s: f"{s.dtype.name}{tuple(s.shape)}", stream.element_spec)
    name = "data_hash" if stream.arrays is not None else "first_batch_hash"
    return {
        "data": str(spec),
        "num_batches": stream.num_batches,
        name: _hash(content),
    }


def _hash(structure: Any) -> str:
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(structure, expand_composites=True):
        array = np.asarray(leaf)
        digest.update(f"{array.shape}{array.dtype}".encode())
        if array.nbytes > _WHOLE_BYTES:
            array = np.concatenate([array[:_ROWS], array[-_ROWS:]])
        if array.dtype.kind == "O":
            digest.update(repr(array.tolist()).encode())
        else:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
