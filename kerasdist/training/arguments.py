"""Checks of `fit`'s arguments that need neither the model nor the data's contents."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import keras

from kerasdist.errors import KerasdistError


def check_counts(**counts: Any) -> None:
    """Each must be None or a whole number of at least 1."""
    for name, value in counts.items():
        if value is None and name != "epochs":
            continue
        if not _is_whole(value) or value < 1:
            raise KerasdistError(
                f"Received `{name}={value!r}`. Expected a whole number of at least 1. Give for "
                f"example `{name}=10`."
            )


def capped_epochs(epochs: int) -> int:
    """No more than `keras.config.set_max_epochs` allows, which is for short trials."""
    return _capped("epochs", epochs, keras.config.max_epochs())


def capped_steps(name: str, steps: int | None) -> int | None:
    """No more than `keras.config.set_max_steps_per_epoch` allows."""
    return _capped(name, steps, keras.config.max_steps_per_epoch())


def _capped(name: str, value: Any, most: int | None) -> Any:
    if not most or (value is not None and value <= most):
        return value
    warnings.warn(
        f"`{name}` is {most}: `keras.config` (or an environment variable of Keras) limits it.",
        stacklevel=5,
    )
    return most


def as_callbacks(callbacks: Any) -> list[keras.callbacks.Callback]:
    """`None`, one callback, or callbacks nested in lists, as one list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise KerasdistError(
            "Received a `keras.callbacks.CallbackList` as `callbacks`, which is tied to a model "
            "and to parameters already. Expected a list of callbacks. Give its own list: "
            "`callbacks=mine.callbacks`."
        )
    found = [] if callbacks is None else keras.tree.flatten(callbacks)
    for callback in found:
        if not isinstance(callback, keras.callbacks.Callback):
            is_class = isinstance(callback, type)
            what = f"the class {callback.__name__!r}" if is_class else repr(callback)
            raise KerasdistError(
                f"Received {what} in `callbacks`. Expected objects of `keras.callbacks.Callback`. "
                "Give for example `callbacks=[keras.callbacks.TerminateOnNaN()]`."
            )
    return found


def check_backup(callbacks: Sequence[keras.callbacks.Callback], **others: Any) -> None:
    """`BackupAndRestore` restores a model at the beginning of an epoch, and nothing else."""
    if not any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks):
        return
    reasons = {
        "run_dir": "a run has its own checkpoints, which lose nothing",
        "steps": "its backups count epochs, not steps",
        "ema": "the averages are not in its backups",
        "workers": "each worker would need the same backup",
    }
    for name, reason in reasons.items():
        if others[name] is not None:
            what = "several workers" if name == "workers" else f"`{name}`"
            raise KerasdistError(
                f"Received the callback `BackupAndRestore` together with {what}: {reason}. "
                "Expected one way to continue a training. Leave the callback out, and give "
                "`run_dir`: the same command then continues where it stopped, also within an epoch."
            )


def is_on(name: str, value: Any) -> bool:
    if value in (True, "on"):
        return True
    if value in (False, "off"):
        return False
    raise KerasdistError(
        f"Received `{name}={value!r}`. Expected True, False, 'on' or 'off'. Leave it out for 'off'."
    )


def check_folder(run_dir: Any, **wishes: Any) -> None:
    """What is written to a run's folder needs one."""
    for name, value in wishes.items():
        if value is not None and run_dir is None:
            raise KerasdistError(
                f"Received `{name}={value!r}` without `run_dir`. Expected a folder to write to. "
                "Add for example `run_dir='runs/mine'`."
            )


def check_choices(*, clip_norm: Any, ema: Any, on_nan: Any, seed: Any) -> None:
    if clip_norm is not None and not (_is_number(clip_norm) and clip_norm > 0):
        raise KerasdistError(
            f"Received `clip_norm={clip_norm!r}`. Expected a number above 0, the largest global "
            "norm of the gradients. Give for example `clip_norm=1.0`, or leave it out."
        )
    if ema is not None and not (_is_number(ema) and 0 < ema < 1):
        raise KerasdistError(
            f"Received `ema={ema!r}`. Expected a decay between 0 and 1. Give for example "
            "`ema=0.999`, or leave it out."
        )
    if on_nan not in ("stop", "skip"):
        raise KerasdistError(
            f"Received `on_nan={on_nan!r}`. Expected 'stop' or 'skip'. Leave it out to stop."
        )
    if seed is not None and (not _is_whole(seed) or not 0 <= seed < 2**63):
        raise KerasdistError(
            f"Received `seed={seed!r}`. Expected a whole number from 0 on. Give for example "
            "`seed=1`."
        )


def check_class_weight(class_weight: Any) -> None:
    """A weight from 0 on for each class number."""
    if class_weight is None:
        return
    is_dict = isinstance(class_weight, dict)
    pairs = class_weight.items() if is_dict else ()
    if not is_dict or not all(
        _is_whole(label) and label >= 0 and _is_number(weight) and weight >= 0
        for label, weight in pairs
    ):
        raise KerasdistError(
            f"Received `class_weight={class_weight!r}`. Expected a dict of class numbers and "
            "weights from 0 on. Give for example `class_weight={0: 1.0, 1: 5.0}`."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
