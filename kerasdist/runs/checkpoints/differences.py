"""Compares a checkpoint with the run that resumes from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kerasdist.errors import OtherRunError
from kerasdist.models.memory import operations
from kerasdist.runs import provenance

# Of the fingerprints of `kerasdist.runs.identity`.
_HASHES = {"data_hash", "first_batch_hash"}
# Settings, and whose they are.
_SETTINGS = {
    "optimizer_settings": "the optimizer's ",
    "schedule": "the optimizer's ",
    "loss_settings": "the loss's ",
    "metric_settings": "",
}
# Settings of another thing are other ones.
_THINGS = {"optimizer_settings": "optimizer", "schedule": "optimizer", "loss_settings": "loss"}
OTHER_OPERATIONS = "the model computes something else between its layers"
# Differences of layers are told up to here.
_MOST_LAYERS = 4
# Runs from before have no such entries.
_NEWER = {
    "loss",
    "loss_weights",
    "metrics",
    "weighted_metrics",
    "layers",
    "trained_weights",
    "precision",
    "augment",
    "operations",
    *_SETTINGS,
}


def refuse_other_run(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raises an error if the model, the data or the settings differ from the checkpoint's."""
    different = _without_hashes(saved, now)
    if different:
        raise OtherRunError(
            f"The run cannot continue from {path}, because it was saved with other settings: "
            f"{'; '.join(different)}. Expected the same model, data and settings. Restore them, or "
            "start a new run with another `run_dir` (`--run-dir`).",
            differences=tuple(different),
        )


def _without_hashes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two fingerprints. Nobody can read their hashes."""
    names = {name for name in {*saved, *now} if saved.get(name) != now.get(name)}
    names -= {"learning_rate", *(name for name in _NEWER if name not in saved)}
    settings = []
    for kind in sorted(names & _SETTINGS.keys()):
        names.remove(kind)
        # Another version of Keras may have more of them.
        both = saved[kind].keys() & now.get(kind, {}).keys()
        if _THINGS.get(kind, "metrics") not in names:
            told = _differences(saved[kind], now.get(kind, {}), sorted(both))
            settings += [f"{_SETTINGS[kind]}{text}" for text in told]
    # A rate that is a number is a variable of the optimizer, and one of a schedule is not.
    if {"model", "optimizer"} & names == {"model"} and "schedule" in saved:
        settings += _of_kind_of_rate(saved.get("learning_rate"), now.get("learning_rate"))
    layers = []
    if "layers" in names:
        names.remove("layers")
        layers = of_layers(saved["layers"], now.get("layers", {}))
    if "operations" in names:
        names.remove("operations")
        if not layers and operations.differ(saved["operations"], now.get("operations")):
            layers = [OTHER_OPERATIONS]
    if "trained_weights" in names:
        names.remove("trained_weights")
        was, is_now = (each["trained_weights"].partition(" ")[0] for each in (saved, now))
        counts = f"{was} weights were trained, and {is_now} are now"
        layers = layers or ["other weights are trained" if was == is_now else counts]
    # Batches of another size have other hashes.
    found = ["the data differ"] if names & _HASHES and "batch_size" not in names else []
    names -= _HASHES
    if "augment" in names:
        names.remove("augment")
        had = "the run began with an `augment`, and has none now"
        found.append(
            had if saved["augment"] else "the run began without `augment`, and has one now"
        )
    kinds = [str(each.get("model")).partition(" ")[0] for each in (saved, now)]
    if "model" in names and kinds[0] == kinds[1]:
        names.remove("model")
        # Other settings of the optimizer or the layers have other variables, too.
        if not settings and not layers and "optimizer" not in names:
            found.append("the layers of the model differ")
    plain = [{**each, "model": kind} for each, kind in zip((saved, now), kinds, strict=True)]
    return found + layers + settings + _differences(plain[0], plain[1], sorted(names))


def _of_kind_of_rate(before: float | None, rate: float | None) -> list[str]:
    """Whether one of the rates is a number, and the other one is a schedule."""
    if (before is None) == (rate is None):
        return []
    was, is_now = ("a schedule" if r is None else f"the number {r:.6g}" for r in (before, rate))
    return [f"the learning rate was {was}, and is {is_now} now"]


def of_layers(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences of the settings of layers, and layers that only one of them has."""
    found = [f"the model had no {name}" for name in now if name not in saved]
    found += [f"the model had a {name}" for name in saved if name not in now]
    for name in saved.keys() & now.keys():
        # Another version of Keras may have more settings.
        both = sorted(saved[name].keys() & now[name].keys())
        told = _differences(saved[name], now[name], both)
        found += [f"the layer {name} differs: {text}" for text in told]
    return sorted(found)[:_MOST_LAYERS]


def rate_warning(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """A warning if the model has another learning rate than when the run began.

    That is no difference: a callback may have changed it, and the checkpoint has the newest one.
    """
    before, rate = saved.get("learning_rate"), now.get("learning_rate")
    if before is None or rate is None or before == rate:
        return None
    return (
        f"the model's learning rate was {before:.6g} when the run began, and is {rate:.6g} now. "
        "The run continues with the rate of its checkpoint. Set another one in a callback, or "
        "start a new run with `init_from`"
    )


def bits_warning(
    before: Mapping[str, Any], now: Mapping[str, Any], *, deterministic: bool
) -> str | None:
    """A warning if versions or hardware differ, so that the weights may not be bit-identical.

    Args:
        before: `provenance.made_with()` of the checkpoint, and "jit": whether XLA compiled the
            step. It did not if this is missing.
        now: That of this process.
        deterministic: Whether the run promises equal bits, so that the machine matters, too.
    """
    names = provenance.VERSIONS + (provenance.MACHINE if deterministic else ())
    different = _differences(before, now, [name for name in names if name in before])
    compiled = {"jit": False, **before}, {"jit": False, **now}
    different += _differences(*compiled, ["jit"])
    if not different:
        return None
    return (
        f"the run was saved with other versions or hardware: {'; '.join(different)}. It continues, "
        "but its weights may not be bit-identical to those of a run that was never stopped"
    )


def _differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]
) -> list[str]:
    return [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if saved.get(name) != now.get(name)
    ]
