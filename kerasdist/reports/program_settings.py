"""The settings of runs that a Python program made. Only their checkpoints know most of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.runs.reading import Run

# Told if nothing readable says the difference.
_WEIGHTS, _DATA = "weights (fingerprint)", "data (fingerprint)"
_EXPLAINS = {_WEIGHTS: ("optimizer", "layer", "trained weights"), _DATA: ("batch_size", "data")}
# What each of these entries of an identity describes.
_GROUPS = {
    "optimizer_settings": "optimizer",
    "schedule": "schedule",
    "loss_settings": "loss",
    "metric_settings": "metrics",
}
# The stage is not a setting: it says how far the run is.
_LEFT_OUT = {"stage", "model", "trained_weights", "layers", "data_hash", "first_batch_hash"}
# A run without a recipe has its settings in a program.
_RECIPE = "recipe"


def of_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the checkpoints of the runs say, by name. Nothing if recipes made all of the runs."""
    if all(_RECIPE in run.config for run in runs):
        return [{} for _ in runs]
    return [of_identity(_identity(run.path)) for run in runs]


def unrecorded(names: Sequence[str], runs: Sequence[Run]) -> str:
    """Says which runs lack the settings of their program; empty if none does."""
    lacking = [
        name
        for name, run, found in zip(names, runs, of_runs(runs), strict=True)
        if _RECIPE not in run.config and not found
    ]
    if not lacking:
        return ""
    return (
        f"The settings of the program of {', '.join(dict.fromkeys(lacking))} are not recorded: "
        "there is no checkpoint that can be read."
    )


def of_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a checkpoint's identity as settings, with names that people can read.

    Example:
        >>> of_identity({"ema": None, "layers": {"Dense": {"units": 8}}, "learning_rate": 0.01})
        {'ema': None, 'learning_rate': 0.01, 'layer Dense units': 8}
    """
    found: dict[str, Any] = {}
    for name, value in identity.items():
        if name in _GROUPS and isinstance(value, Mapping):
            found |= {f"{_GROUPS[name]} {key}": setting for key, setting in value.items()}
        elif name not in _LEFT_OUT:
            # A rate was rounded to float32.
            found[name] = float(f"{value:.6g}") if isinstance(value, float) else value
    layers = identity.get("layers")
    for layer, settings in layers.items() if isinstance(layers, Mapping) else ():
        if isinstance(settings, Mapping):
            found |= {f"layer {layer} {key}": setting for key, setting in settings.items()}
    model, trained = (
        str(identity.get(name, "")).partition(" ") for name in ("model", "trained_weights")
    )
    hashes = [identity[name] for name in ("data_hash", "first_batch_hash") if name in identity]
    found |= {"model": model[0]} if model[0] else {}
    found |= {"trained weights": trained[0]} if trained[0] else {}
    found |= {_WEIGHTS: f"{model[2]} {trained[2]}".strip()} if model[2] else {}
    return found | ({_DATA: hashes[0]} if hashes else {})


def readable(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The rows without those that others explain: another optimizer has other weights, too."""
    found = dict(rows)
    for fingerprint, explaining in _EXPLAINS.items():
        others = [f"{name} " for name in found if name != fingerprint]
        if any(other.startswith(f"{name} ") for other in others for name in explaining):
            found.pop(fingerprint, None)
    if "optimizer" in found:  # Another one has other settings.
        found = {
            name: row
            for name, row in found.items()
            if not name.startswith("optimizer ") or None not in row
        }
    return found


def _identity(folder: Path) -> dict[str, Any]:
    # Imported here because it takes NumPy, which `kerasdist runs` does not need for a list.
    from kerasdist.runs.checkpoints.kept_identity import kept_identity

    try:
        found = kept_identity(folder)
    except (KerasdistError, OSError):  # A link or a file in the place of the folder.
        return {}
    return found if isinstance(found, dict) else {}
