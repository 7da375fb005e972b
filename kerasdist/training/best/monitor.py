"""Checks the name of the value that decides which model is the best one, before training."""

from __future__ import annotations

import keras

from kerasdist.errors import KerasdistError, closest
from kerasdist.models import pure
from kerasdist.runs.results.headline import VALIDATION


def check_monitor(model: keras.Model, monitor: str | None, *, is_validated: bool) -> None:
    """Refuses a name that no epoch can log. The model and its metrics are built.

    Where the names are not known before the first epoch, the first epoch decides.
    """
    known = None if monitor is None else _logged_names(model, is_validated=is_validated)
    if known is None or monitor in known:
        return
    hint = "" if is_validated else " Values that begin with 'val_' need validation data."
    raise KerasdistError(
        f"Received `monitor={monitor!r}`. Expected one of {', '.join(known)}."
        f"{closest(monitor, known) or hint * str(monitor).startswith(VALIDATION)} Correct the name."
    )


def _logged_names(model: keras.Model, *, is_validated: bool) -> list[str] | None:
    """The names of what an epoch logs; None if a step of the model's own decides them."""
    if any(pure.overrides(model, step) for step in ("train_step", "test_step")):
        return None
    try:
        found = ["loss", *(name for name in model.get_metrics_result() if name != "loss")]
    except Exception:  # noqa: BLE001 - a method of the user's, before there is anything to return
        return None
    return found + [f"{VALIDATION}{name}" for name in found if is_validated]
