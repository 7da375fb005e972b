"""Engines that are kept with their model: a further `fit` or `evaluate` compiles nothing again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Iterator
from typing import Any

import keras

from kerasdist.devices.placement import Placement
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.models.memory.fingerprint import Same, fingerprint
from kerasdist.models.memory.kept import kept

_KIND = "engines"


@contextlib.contextmanager
def engine_for(
    model: keras.Model, placement: Placement, settings: Settings, *, must_be_new: bool = False
) -> Iterator[Engine]:
    """The engine for a built model, its devices and settings, with the model's newest values.

    It is a new one if anything changed that the compiled functions depend on. After an error it is
    not used again. Workers make new engines: all of them would have to decide alike. An engine
    `must_be_new` where TensorFlow tells what it compiles (`log_placement`).
    """
    key = (fingerprint(model), placement.names, _settings_key(settings))
    is_kept = placement.workers is None and not must_be_new
    found = kept(model).take(_KIND, key) if is_kept else None
    if found is not None and _depends_on_seed(found, settings):
        found = None
    if found is None:
        engine = Engine(model, placement, settings)
    else:
        engine = found
        engine.reopen(placement, settings.seed)
    try:
        yield engine
    except BaseException:
        engine.close()
        raise
    engine.close()
    if placement.workers is None:
        kept(model).give(_KIND, key, engine)


def _depends_on_seed(engine: Engine, settings: Settings) -> bool:
    return engine.seed.is_traced and engine.seed.value != settings.seed


def _settings_key(settings: Settings) -> Hashable:
    """The settings without the seed, which is a variable of the engine."""
    return tuple(
        _comparable(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if field.name != "seed"
    )


def _comparable(value: Any) -> Hashable:
    """Numbers and texts by their values, plans and variables by their identity."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict):
        return tuple((key, _comparable(item)) for key, item in value.items())
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    return Same(value)
