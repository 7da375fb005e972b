"""Trains Keras models on several devices: the same maths on any number of them."""

from __future__ import annotations

import os as _os
import platform as _platform
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from kerasdist.devices.start_messages.hiding import hide_in_programs as _hide_in_programs
from kerasdist.errors import DivergedError, InexactLossError, KerasdistError

if TYPE_CHECKING:
    from kerasdist.data.folders.image_folder import ImageFolder
    from kerasdist.data.folders.image_reader import ImageReader
    from kerasdist.data.folders.sound_folder import SoundFolder
    from kerasdist.data.folders.sound_reader import SoundReader
    from kerasdist.data.forms.providers import read_provider
    from kerasdist.data.forms.sequences import Sequences
    from kerasdist.devices.names import list_devices, logical_cpus
    from kerasdist.finders.api import find_batch_size, find_learning_rate
    from kerasdist.model_files.backbones import backbone, load_backbone
    from kerasdist.model_files.initial_weights import load_weights
    from kerasdist.model_files.loading import load
    from kerasdist.models.contract import Model
    from kerasdist.models.layers.log_mel import LogMel
    from kerasdist.models.losses import SmoothedCrossentropy
    from kerasdist.models.optimizers.config import OptimizerConfig, count_steps
    from kerasdist.models.optimizers.factory import optimizer
    from kerasdist.models.optimizers.layer_rates import layer_rates
    from kerasdist.models.optimizers.schedules import schedule
    from kerasdist.programs.chief import is_chief
    from kerasdist.programs.switch import disable, enable
    from kerasdist.recipes.own_data.backbones import backbone_size
    from kerasdist.recipes.public_data import PublicData
    from kerasdist.recipes.recipe import Recipe, load_recipe
    from kerasdist.tables.table import Table
    from kerasdist.tables.text_folder import TextFolder
    from kerasdist.training.api import evaluate, fit, predict

__version__ = "0.1.0"

# Where each public name lives. Loaded on first use: `--help` does not wait for TensorFlow.
_HOMES = {
    "fit": "training.api",
    "evaluate": "training.api",
    "predict": "training.api",
    "enable": "programs.switch",
    "disable": "programs.switch",
    "is_chief": "programs.chief",
    "find_batch_size": "finders.api",
    "find_learning_rate": "finders.api",
    "load": "model_files.loading",
    "backbone": "model_files.backbones",
    "load_backbone": "model_files.backbones",
    "backbone_size": "recipes.own_data.backbones",
    "load_weights": "model_files.initial_weights",
    "list_devices": "devices.names",
    "logical_cpus": "devices.names",
    "read_provider": "data.forms.providers",
    "Sequences": "data.forms.sequences",
    "ImageFolder": "data.folders.image_folder",
    "ImageReader": "data.folders.image_reader",
    "SoundFolder": "data.folders.sound_folder",
    "SoundReader": "data.folders.sound_reader",
    "LogMel": "models.layers.log_mel",
    "PublicData": "recipes.public_data",
    "SmoothedCrossentropy": "models.losses",
    "Model": "models.contract",
    "OptimizerConfig": "models.optimizers.config",
    "count_steps": "models.optimizers.config",
    "layer_rates": "models.optimizers.layer_rates",
    "optimizer": "models.optimizers.factory",
    "schedule": "models.optimizers.schedules",
    "Recipe": "recipes.recipe",
    "load_recipe": "recipes.recipe",
    "Table": "tables.table",
    "TextFolder": "tables.text_folder",
}

__all__ = [
    "DivergedError",
    "ImageFolder",
    "ImageReader",
    "InexactLossError",
    "KerasdistError",
    "LogMel",
    "Model",
    "OptimizerConfig",
    "PublicData",
    "Recipe",
    "Sequences",
    "SmoothedCrossentropy",
    "SoundFolder",
    "SoundReader",
    "Table",
    "TextFolder",
    "__version__",
    "backbone",
    "backbone_size",
    "count_steps",
    "disable",
    "enable",
    "evaluate",
    "find_batch_size",
    "find_learning_rate",
    "fit",
    "is_chief",
    "layer_rates",
    "list_devices",
    "load",
    "load_backbone",
    "load_recipe",
    "load_weights",
    "logical_cpus",
    "optimizer",
    "predict",
    "read_provider",
    "schedule",
]


if not TYPE_CHECKING:  # A type checker that sees `__getattr__` accepts misspelled names.

    def __getattr__(name: str) -> _Any:
        if name in _HOMES:
            _import_module("kerasdist.versions").check()
            return getattr(_import_module(f"kerasdist.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'kerasdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _is_command() -> bool:
    """Whether this is `kerasdist …` or `python -m kerasdist …`, whose help must not wait."""
    name = _sys.argv[0] if _sys.argv else ""
    if name == "-m":  # What Python has there while it imports the package of `-m`.
        return _sys.orig_argv[_sys.orig_argv.index("-m") + 1] == "kerasdist"
    return _os.path.basename(name) == "kerasdist"


if "tensorflow" not in _sys.modules and _platform.machine() in ("x86_64", "AMD64"):
    # TensorFlow itself turns oneDNN on for processors with AVX512-VNNI and their like only. Kept to
    # AVX2 (`ONEDNN_MAX_CPU_ISA=AVX2`), too, it took 0.6 of the time of a step of convolutions
    # without it (`benchmarks/speed.py convolutions`, bare loop, TF 2.21).
    _os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

if not _is_command():  # A command does it itself, because `-v` shows the messages.
    _hide_in_programs()

if "KERASDIST_LOGICAL_CPUS" in _os.environ and not _is_command():
    # Must come before TensorFlow starts, which the caller's next line may do.
    _import_module("kerasdist.versions").check()
    _import_module("kerasdist.devices.names")
