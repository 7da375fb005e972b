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


def is_early(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Whether it was an `EarlyStopping` that stopped the training.

    Example:
        >>> is_early([keras.callbacks.EarlyStopping()])
        False
    """
    stops = (c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping))
    return any(stop.stopped_epoch > 0 for stop in stops)


def still_holds(callbacks: Sequence[keras.callbacks.Callback], *, early: bool) -> bool:
    """Whether a run that was stopped stays stopped with these callbacks, which were restored.

    It continues without the callback that stopped it, or if that one has more patience now. What
    other callbacks do is not known, so each of them may have stopped it, unless an `EarlyStopping`
    did (`early`).

    Example:
        >>> nan = keras.callbacks.TerminateOnNaN()
        >>> still_holds([], early=False), still_holds([nan], early=False)
        (False, True)
        >>> still_holds([keras.callbacks.EarlyStopping(patience=5), nan], early=True)
        False
    """
    if early:
        stops = (c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping))
        return any(stop.stopped_epoch > 0 and stop.wait >= stop.patience for stop in stops)
    return any(map(_may_have_stopped, callbacks))


def forget(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """For a run that continues: what stopped it before does not stop it now."""
    for each in callbacks:
        if isinstance(each, keras.callbacks.EarlyStopping):
            each.stopped_epoch = 0


def _may_have_stopped(callback: keras.callbacks.Callback) -> bool:
    if isinstance(callback, (keras.callbacks.TerminateOnNaN, keras.callbacks.LambdaCallback)):
        return True
    return not type(callback).__module__.startswith(("keras.", "kerasdist."))
