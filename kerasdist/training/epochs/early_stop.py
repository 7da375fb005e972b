"""Why a training stopped before its last epoch."""

from __future__ import annotations

from collections.abc import Sequence

import keras


def reason(callbacks: Sequence[keras.callbacks.Callback]) -> str:
    """Why the callbacks stopped the training.

    Example:
        >>> reason([keras.callbacks.CSVLogger("log.csv")])
        'a callback set `model.stop_training`'
    """
    for each in callbacks:
        if isinstance(each, keras.callbacks.EarlyStopping) and each.stopped_epoch:
            return (
                f"{each.monitor} has not improved for {each.patience} "
                f"epoch{'s' * (each.patience != 1)} after epoch {each.best_epoch + 1}"
            )
    return "a callback set `model.stop_training`"
