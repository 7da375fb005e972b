"""Keras's trainer: the methods that every model inherits, and the lines that `fit` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras.src.trainers.data_adapters import data_adapter_utils

from kerasdist.versions import number

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

# From Keras 3.15 on, `train_on_batch` and `test_on_batch` give the metrics of their batch alone.
# Before, they give those of all batches since the last `model.reset_metrics()`.
RESETS_FOR_EACH_BATCH = number(keras.__version__) >= (3, 15)

# The option by which Keras's `fit` tells the model's `evaluate` that it validates.
IN_FIT = "_use_cached_eval_dataset"


def _trainer() -> type:
    """The class that defines `fit` for every Keras model, of any kind."""
    return next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))


def methods() -> dict[str, Callable[..., Any]]:
    """The trainer's methods as they are now."""
    trainer = _trainer()
    return {name: vars(trainer)[name] for name in METHODS}


def set_methods(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Replaces methods of the trainer, for models that exist already, too."""
    trainer = _trainer()
    for name, function in functions.items():
        setattr(trainer, name, function)


def check_compiled(model: keras.Model, method: str) -> None:
    """Raises Keras's error if the model is not compiled."""
    model._assert_compile_called(method)


def class_weights(y: Any, class_weight: Mapping[int, float]) -> Any:
    """The sample weights that Keras makes of class weights."""
    return data_adapter_utils.class_weight_to_sample_weights(y, class_weight)


class EpochLines(keras.callbacks.ProgbarLogger):
    """Prints what Keras's `fit` prints at the beginning and the end of an epoch.

    Keras's own class updates its line after every batch, and then only one step could run per call.
    """

    # Keras's defaults, which nobody has to call.
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end
    on_test_batch_end = keras.callbacks.Callback.on_test_batch_end
    on_predict_batch_end = keras.callbacks.Callback.on_predict_batch_end

    def __init__(self, verbose: int | str):
        super().__init__()
        self._wanted = verbose
        self._first = 0
        # The epochs that began in this process. A checkpoint keeps numbers, and would keep a bool.
        self._begun: set[int] = set()

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params({**params, "verbose": self._wanted})

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._begun.clear()
        self._maybe_init_progbar()  # The time of a resumed epoch counts from here.

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._first = self._iterations()
        self._begun.add(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch not in self._begun:  # A resumed epoch began in another process.
            shown = vars(self)["progbar"]
            super().on_epoch_begin(epoch, logs)
            self.progbar = shown
        self.seen = max(self._iterations() - self._first, 1)
        super().on_epoch_end(epoch, logs)

    def _iterations(self) -> int:
        """The steps so far. They count for data of unknown length."""
        optimizer = getattr(self.model, "optimizer", None)
        return 0 if optimizer is None else int(optimizer.iterations.numpy())
