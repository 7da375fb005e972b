"""Checks of the arguments of `fit` that need neither the model nor the data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import keras

from kerasdist.errors import KerasdistError, closest


def check_counts(**counts: Any) -> None:
    """Each must be a whole number of at least 1. All but `epochs` and `keep_best` can be None."""
    for name, value in counts.items():
        if value is None and name not in ("epochs", "keep_best"):
            continue
        if not _is_whole(value) or value < 1:
            raise KerasdistError(
                f"Received `{name}={value!r}`. Expected a whole number of at least 1. Give for "
                f"example `{name}=10`."
            )


def check_frequency(validation_freq: Any) -> None:
    """Keras's `validation_freq`: every so many epochs, or a list of epochs counted from 1."""
    is_list = isinstance(validation_freq, (list, tuple, set, range))
    numbers = list(validation_freq) if is_list else [validation_freq]
    if not all(_is_whole(number) and number >= 1 for number in numbers):
        raise KerasdistError(
            f"Received `validation_freq={validation_freq!r}`. Expected a whole number of at least "
            "1, or a list of epochs counted from 1. Give for example `validation_freq=2` or "
            "`validation_freq=[1, 2, 10]`."
        )


def check_initial_epoch(initial_epoch: Any) -> None:
    if not _is_whole(initial_epoch) or initial_epoch < 0:
        raise KerasdistError(
            f"Received `initial_epoch={initial_epoch!r}`. Expected a whole number of at least 0: "
            "the epoch to start with. Leave it out to start with the first."
        )


def capped_epochs(epochs: int) -> int:
    """At most `keras.config.max_epochs()`, with a warning. That limit is for short trials."""
    return _capped("epochs", epochs, keras.config.max_epochs())


def capped_steps(name: str, steps: int | None) -> int | None:
    """At most `keras.config.max_steps_per_epoch()`, with a warning."""
    return _capped(name, steps, keras.config.max_steps_per_epoch())


def _capped(name: str, value: Any, most: int | None) -> Any:
    if not most or (value is not None and value <= most):
        return value
    warnings.warn(
        f"`{name}` is {most}: `keras.config` (or a Keras environment variable) limits it.",
        stacklevel=6,
    )
    return most


def as_callbacks(callbacks: Any) -> list[keras.callbacks.Callback]:
    """`None`, one callback, callbacks nested in lists, or a `CallbackList`, as one list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        # What Keras puts there by itself: `fit` has its own progress and history.
        own = (keras.callbacks.ProgbarLogger, keras.callbacks.History)
        callbacks = [c for c in callbacks.callbacks if type(c) not in own]
    found = [] if callbacks is None else keras.tree.flatten(callbacks)
    for callback in found:
        if not isinstance(callback, keras.callbacks.Callback):
            what, fix = _described_callback(callback)
            raise KerasdistError(
                f"Received {what} in `callbacks`. Expected objects of `keras.callbacks.Callback`. "
                f"{fix}"
            )
    return found


def _described_callback(value: Any) -> tuple[str, str]:
    """`(what it is, what to do)` of something that is not a callback."""
    if isinstance(value, type) and issubclass(value, keras.callbacks.Callback):
        name = value.__name__
        return f"the class {name!r}", f"Make an object of it: `callbacks=[{name}(...)]`."
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        what = f"the learning rate schedule {type(value).__name__!r}"
        return what, "Give it to the optimizer: `keras.optimizers.SGD(learning_rate=schedule)`."
    if isinstance(value, type):
        what = f"the class {value.__name__!r}"
        return what, "Let it inherit from `keras.callbacks.Callback`, and make an object of it."
    if callable(value) and hasattr(value, "__name__"):
        what = f"the function {value.__name__!r}"
        return what, "Use `keras.callbacks.LambdaCallback(on_epoch_end=...)`."
    if any(name.startswith("on_") for name in dir(value)):
        what = f"an object of the class {type(value).__name__!r}"
        return what, "Let its class inherit from `keras.callbacks.Callback`."
    known = [name for name in dir(keras.callbacks) if name[0].isupper()]
    guess = closest("".join(part.title() for part in str(value).split("_")), known)
    fix = "Give for example `callbacks=[keras.callbacks.TerminateOnNaN()]`."
    return repr(value), f"{guess.strip()} {fix}".strip()


def check_backup(callbacks: Sequence[keras.callbacks.Callback], **others: Any) -> None:
    """`BackupAndRestore` restores only the model, and only at the start of an epoch."""
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
                "Expected one way to resume. Remove the callback and set `run_dir`: the same call "
                "then resumes where it stopped, even within an epoch."
            )


def on_or_auto(name: str, value: Any) -> bool | None:
    """True, False, or None for "auto"."""
    if value == "auto":
        return None
    if value in (True, "on"):
        return True
    if value in (False, "off"):
        return False
    raise KerasdistError(
        f"Received `{name}={value!r}`. Expected 'auto', True, False, 'on' or 'off'. Leave it out "
        "for the default, 'auto'."
    )


def as_path(name: str, value: Any) -> Path | None:
    """The path of a folder; None stays None."""
    if value is None or isinstance(value, (str, os.PathLike)):
        return None if value is None else Path(value)
    raise KerasdistError(
        f"Received `{name}={value!r}`. Expected the path of a folder. Give for example "
        f"`{name}='runs/mine'`."
    )


def check_folder(run_dir: Any, **wishes: Any) -> None:
    """Some options write into the run's folder, so they need `run_dir`."""
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
            f"Received `on_nan={on_nan!r}`. Expected 'stop' or 'skip'. The default is 'stop'."
        )
    if seed is not None and (not _is_whole(seed) or not 0 <= seed < 2**63):
        raise KerasdistError(
            f"Received `seed={seed!r}`. Expected a whole number of at least 0. Give for example "
            "`seed=1`."
        )


def check_allow_nan(allow_nan: Any) -> None:
    if not isinstance(allow_nan, bool) and allow_nan != "warn":
        raise KerasdistError(
            f"Received `allow_nan={allow_nan!r}`. Expected False (NaN in the data is an error), "
            '"warn" or True. Use one of them.'
        )


def check_class_weight(class_weight: Any) -> None:
    """Class numbers with weights of at least 0."""
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
            "weights of at least 0. Give for example `class_weight={0: 1.0, 1: 5.0}`."
        )


def check_weights(class_weight: Any, sample_weight: Any) -> None:
    if class_weight is not None and sample_weight is not None:
        raise KerasdistError(
            "Received `class_weight` and `sample_weight` at the same time. Expected one of them, "
            "as in Keras. Multiply each example's weight by that of its class, and pass "
            "`sample_weight` alone."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_initial(init_from: Any, *, init_map: Any, init_averages: Any) -> None:
    """`init_map` and `init_averages` say how to read `init_from`."""
    if init_from is None and (init_map is not None or init_averages):
        given = "init_averages" if init_map is None else "init_map"
        raise KerasdistError(
            f"Received `{given}` without `init_from`. Expected both: `{given}` says how to read a "
            "TensorFlow checkpoint. Give `init_from`, for example 'model.ckpt-1000'."
        )
