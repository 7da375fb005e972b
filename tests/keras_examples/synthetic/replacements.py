"""Puts made-up data in place of downloads, without importing Keras or TensorFlow early.

Each replacement waits until the script imports the package: kerasdist must still be able to set
the number of devices before TensorFlow starts.
"""

import importlib.abc
import importlib.util
import os
import sys

from tests.keras_examples.synthetic import downloads, keras_parts, tfds_parts

AFTER_IMPORT = {
    "keras": keras_parts.replace,
    "tensorflow_datasets": tfds_parts.replace,
}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a package is loaded."""

    def __init__(self):
        self._busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in AFTER_IMPORT or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module

            def exec_module(module):
                if "KERAS_EXAMPLES_BACKEND" in os.environ:
                    # A script may name another one. `kerasdist run` sees to it by itself.
                    os.environ["KERAS_BACKEND"] = os.environ["KERAS_EXAMPLES_BACKEND"]
                original(module)
                AFTER_IMPORT[name](module)

            spec.loader.exec_module = exec_module
        return spec


def install():
    """Replaces downloads now, and the parts of packages when they are imported."""
    downloads.replace()
    sys.meta_path.insert(0, _AfterImport())
