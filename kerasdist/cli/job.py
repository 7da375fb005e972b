"""The model and the data of a command, from a recipe or from two classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist import __version__
from kerasdist.cli.fit_arguments import FitOptions
from kerasdist.cli.options import OUTPUT_OPTIONS
from kerasdist.devices import cluster, gpus, visible_gpus
from kerasdist.devices.names import expected_gpus, resolve_names
from kerasdist.devices.placement import place
from kerasdist.errors import KerasdistError
from kerasdist.phases.phase import phase
from kerasdist.phases.prose import say
from kerasdist.recipes import code_hash
from kerasdist.recipes.class_file import ClassFile
from kerasdist.recipes.places import reference_to
from kerasdist.recipes.recipe import Recipe, load_recipe
from kerasdist.runs.catalog import read_config
from kerasdist.runs.file_names import CONFIG

# The options that `kerasdist.fit` takes unchanged.
FIT_OPTIONS = (
    "steps",
    "batch_size",
    "shards",
    "deterministic",
    "jit",
    "precision",
    "clip_norm",
    "ema",
    "seed",
    "allow_nan",
    "sync_batch_norm",
)


_READING = {"train": "reading the training data", "all": "reading all data"}


class Job:
    """Builds a command's model and data.

    Attributes:
        recipe: The recipe; None with a model and a data class.
        name: The name of the recipe, or of the model class.
        source: Where the data comes from: "provider", or what the recipe says.
    """

    def __init__(self, options: FitOptions):
        self._options = options
        self.recipe: Recipe | None = None
        if options.recipe is not None:
            self.recipe = load_recipe(options.recipe, **options.settings)
            self.name = self.recipe.name
            with phase("looking for the data"):  # It may be downloaded.
                self.source = self.recipe.source()
        elif options.model is not None:
            self.name, self.source = options.model.name, "provider"

    def build_model(self) -> Any:
        """The recipe's model, or an instance of the model class."""
        if self.recipe is not None:
            return self.recipe.build_model()
        return _construct(self._options.model, self._options.model_arguments)

    def build_data(self, split: str) -> Any:
        """The recipe's data for a split such as "train", or an instance of the data class."""
        if self.recipe is not None:
            with phase(_READING.get(split, f"reading the {split} data")):
                return self.recipe.build_data(split)
        if split != "train":
            raise KerasdistError(
                f"{self.name!r} has no {split} data, because it was trained on a provider. Only "
                "recipes have several splits. Use `--split train` to read the provider again."
            )
        return _construct(self._options.data, self._options.data_arguments)

    def describe(self, data: Any) -> str:
        """What is known of data without reading it: its size, if it is arrays, and its source."""
        arrays = tf.nest.flatten(data) if isinstance(data, (dict, tuple)) else []
        if arrays and all(isinstance(array, np.ndarray) for array in arrays):
            return f"{len(arrays[0]):,} examples ({self.source})"
        return f"data: {self.source}"

    def config(self) -> dict[str, Any]:
        """The content of config.json: everything that is needed to train again."""
        options = self._options
        config: dict[str, Any] = {"kerasdist": __version__}
        if self.recipe is not None:
            config["recipe"] = reference_to(self.recipe.path)
            if self.name != self.recipe.path.name:
                config["name"] = self.name
            config["settings"] = options.settings
        else:
            config["model"] = str(options.model)
            config["model_arguments"] = options.model_arguments
            config["data"] = str(options.data)
            config["data_arguments"] = options.data_arguments
        left_out = {
            *OUTPUT_OPTIONS,
            "resume",
            "find_batch_size",
            "find_lr",
        }  # They do not change what is trained.
        config["options"] = {k: v for k, v in options.run.items() if k not in left_out}
        return config

    def code(self) -> str | None:
        """The hash of your Python files; None of a recipe that is part of kerasdist."""
        if self.recipe is not None:
            return code_hash.of_recipe(self.recipe.path)
        classes = [each for each in (self._options.model, self._options.data) if each is not None]
        # Without their folders: files that were moved are the same code.
        found = [code_hash.of_files([each.path], each.path.parent) for each in classes]
        return None if None in found else " ".join(map(str, found))


def _construct(source: ClassFile | None, arguments: dict[str, Any]) -> Any:
    if source is None:
        raise KerasdistError(
            "There is nothing to train. Expected a recipe or two classes. Name a recipe."
        )
    kind = source.load()
    try:
        return kind(**arguments)
    except TypeError as error:
        raise KerasdistError(
            f"The constructor of `{source.name}` does not accept {arguments}: {error}. `--help` "
            "lists the arguments that it has."
        ) from error


def names_of(run: dict[str, Any]) -> list[str]:
    """The names of the devices to use. Sets the limits of GPU memory, and starts TensorFlow.

    TensorFlow does not see the other GPUs, so that it takes no memory there.
    """
    devices, soft = run["devices"], run["soft_placement"]
    chosen = expected_gpus(devices, soft)
    has_gpu = gpus.set_memory(run["memory_growth"], run["memory_limit"], chosen=chosen)
    if not has_gpu and (run["memory_growth"] or run["memory_limit"] is not None):
        say("--memory-growth and --memory-limit have no effect without a GPU", sys.stderr)
    unusable = gpus.unusable_gpus()
    if unusable is not None and devices in (None, "auto"):
        say(unusable, sys.stderr)
    visible_gpus.keep(chosen)
    if cluster.current() is not None:
        place(devices, soft=soft)  # Waits for the other workers.
    tf.config.list_logical_devices()
    return list(resolve_names(devices, soft))


def recipe_of(run: Path) -> Recipe | None:
    """The recipe of a run, with the run's settings; None if the run has no recipe."""
    config = read_config(run) or {}
    return load_recipe(run / CONFIG) if "recipe" in config else None
