"""Saves a trained model as a .keras file, and computes the hash of its weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from kerasdist.errors import first_line

if TYPE_CHECKING:  # The command line checks a run's folder before it loads Keras.
    import keras

# Members of a .keras file, which is a ZIP archive.
CONFIG_MEMBER, WEIGHTS_MEMBER = "config.json", "model.weights.h5"
# `save_model` writes this file first if Keras cannot save the whole model.
WEIGHTS_DRAFT = "tmp.weights.h5"


def weights_sha256(model: keras.Model) -> str:
    """The sha256 of the bytes of the arrays in `model.get_weights()`, in order."""
    digest = hashlib.sha256()
    for array in model.get_weights():
        digest.update(array.tobytes())
    return digest.hexdigest()


def save_model(model: keras.Model, path: Path) -> str:
    """Saves a .keras file and returns "model"; or "weights" if Keras cannot save the whole model.

    Keras cannot save a class that has no `get_config` and whose constructor takes more than plain
    values. Its trained weights are saved all the same, in a file that `load_weights` reads.
    """
    from kerasdist.models import pure  # Keras is loaded by now.

    ready = pure.as_built(model) if pure.has_weights(model) else contextlib.nullcontext()
    try:
        with ready:
            model.save(path)
    except OSError:
        raise  # A full disk says nothing about the model.
    except Exception as error:  # noqa: BLE001 - whatever Keras raises, the weights must be saved
        weights = path.with_name(WEIGHTS_DRAFT)
        with pure.as_built(model):
            model.save_weights(weights)
        about = {"class_name": type(model).__name__, "weights_only": first_line(error)}
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", json.dumps({"saved_by": "kerasdist"}))
            archive.writestr(CONFIG_MEMBER, json.dumps(about))
            archive.write(weights, WEIGHTS_MEMBER)
        weights.unlink()
        return "weights"
    return "model"
