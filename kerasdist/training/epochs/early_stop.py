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
                f"{each.monitor} has not improved for {each.wait} "
                f"epoch{'s' * (each.wait != 1)} after epoch {each.best_epoch + 1}"
            )
    return "a callback set `model.stop_training`"


def still_holds(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Whether a run that was stopped stays stopped with these callbacks, which were restored.

    It continues without the callback that stopped it, or if that one has more patience now.

    Example:
        >>> still_holds([]), still_holds([keras.callbacks.TerminateOnNaN()])
        (False, True)
    """
    return any(map(_may_have_stopped, callbacks))


def _may_have_stopped(callback: keras.callbacks.Callback) -> bool:
    if isinstance(callback, keras.callbacks.EarlyStopping):
        return bool(callback.wait >= callback.patience)
    if isinstance(callback, (keras.callbacks.TerminateOnNaN, keras.callbacks.LambdaCallback)):
        return True
    return not type(callback).__module__.startswith(("keras.", "kerasdist."))
