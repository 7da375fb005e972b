"""The states of the random generators that a script may use, kept in a fit's checkpoints.

A callback or a data set may draw numbers while a fit runs. A script that continues after the fit
must find the generators as an undisturbed script would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasdist.devices import private_tensorflow
from kerasdist.models import pure
from kerasdist.training.epochs.callback_memory import Remembering


class RandomState(Remembering):
    """The states of Python's, NumPy's, Keras's and TensorFlow's generators, as lists of arrays.

    Reading an attribute takes the state of a generator, and setting it restores the state.
    """

    remembered = ("python", "numpy", "keras_seeds", "tensorflow")

    def __init__(self, model: keras.Model, begun: Callable[[], None] | None = None):
        super().__init__()
        self._trained, self._begun = model, begun

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """The checkpoint was loaded, if there is one: it belongs to this fit."""
        if self._begun is not None:
            self._begun()

    @property
    def python(self) -> list[np.ndarray]:
        return _taken(random.getstate())

    @python.setter
    def python(self, arrays: list[np.ndarray]) -> None:
        random.setstate(_given(arrays))

    @property
    def numpy(self) -> list[np.ndarray]:
        name, keys, *rest = np.random.get_state(legacy=True)
        if name != "MT19937":
            return []
        return [np.asarray(keys), np.asarray(rest, np.float64)]

    @numpy.setter
    def numpy(self, arrays: list[np.ndarray]) -> None:
        keys, (position, has_gauss, gauss) = arrays
        state = ("MT19937", keys, int(position), int(has_gauss), float(gauss))
        np.random.set_state(state)

    @property
    def keras_seeds(self) -> list[np.ndarray]:
        return [np.asarray(v.numpy()) for v in pure.parts(self._trained).seeds]

    @keras_seeds.setter
    def keras_seeds(self, arrays: list[np.ndarray]) -> None:
        for variable, array in zip(pure.parts(self._trained).seeds, arrays, strict=True):
            variable.assign(array)

    @property
    def tensorflow(self) -> list[np.ndarray]:
        generator = private_tensorflow.seeds_of_operations()
        return [] if generator is None else _taken(generator.getstate())

    @tensorflow.setter
    def tensorflow(self, arrays: list[np.ndarray]) -> None:
        generator = private_tensorflow.seeds_of_operations()
        if generator is not None:
            generator.setstate(_given(arrays))
            private_tensorflow.forget_kernels()


def _taken(state: tuple[Any, ...]) -> list[np.ndarray]:
    """The state of a `random.Random` as arrays. NaN stands for no Gaussian number in reserve."""
    version, words, gauss = state
    reserve = np.nan if gauss is None else gauss
    return [np.asarray([version]), np.asarray(words, np.int64), np.asarray([reserve], np.float64)]


def _given(arrays: list[np.ndarray]) -> tuple[Any, ...]:
    (version,), words, (reserve,) = arrays
    gauss = None if np.isnan(reserve) else float(reserve)
    return int(version), tuple(words.tolist()), gauss
