"""Keras's own lines about epochs, without looking at every batch."""

from __future__ import annotations

from typing import Any

import keras


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

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params({**params, "verbose": self._wanted})

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._first = self._iterations()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._maybe_init_progbar()  # A resumed epoch did not begin in this process.
        self.seen = max(self._iterations() - self._first, 1)
        super().on_epoch_end(epoch, logs)

    def _iterations(self) -> int:
        """The steps so far. They count for data of unknown length."""
        optimizer = getattr(self.model, "optimizer", None)
        return 0 if optimizer is None else int(optimizer.iterations.numpy())
