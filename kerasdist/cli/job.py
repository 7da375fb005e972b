"""What a command trains or evaluates: a model and its data, from a recipe or from two classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kerasdist import __version__
from kerasdist.cli.options import OUTPUT_OPTIONS, FitOptions
from kerasdist.devices import cluster, gpus
from kerasdist.devices.placement import place, resolve_names
from kerasdist.errors import KerasdistError
from kerasdist.recipes.recipe import Recipe, bundled, load_recipe
from kerasdist.runs.catalog import read_config
from kerasdist.runs.file_names import CONFIG

# The options that `kerasdist.fit` takes as they are.
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
)


class Job:
    """A model and its data, from a recipe or from two classes."""

    def __init__(self, options: FitOptions):
        self._options = options
        self.recipe: Recipe | None = None
        if options.recipe is not None:
            self.recipe = load_recipe(options.recipe, **options.settings)
            self.name = self.recipe.name
            self.source = self.recipe.source()
        elif options.model is not None:
            self.name, self.source = options.model.name, "provider"

    def build_model(self) -> Any:
        if self.recipe is not None:
            return self.recipe.build_model()
        return _construct(self._options.model, self._options.model_arguments)

    def build_data(self, split: str) -> Any:
        if self.recipe is not None:
            return self.recipe.build_data(split)
        if split != "train":
            raise KerasdistError(
                f"Received the split {split!r} for {self.name!r}, which was trained on a provider "
                "and has no such data. Expected the run of a recipe. Use `--split train` to read "
                "the provider again."
            )
        return _construct(self._options.data, self._options.data_arguments)

    def config(self) -> dict[str, Any]:
        """Everything needed to run it again."""
        options = self._options
        config: dict[str, Any] = {"kerasdist": __version__}
        if self.recipe is not None:
            is_bundled = bundled().get(self.name) == self.recipe.path
            config["recipe"] = self.name if is_bundled else str(self.recipe.path)
            config["settings"] = options.settings
        else:
            config["model"] = str(options.model)
            config["model_arguments"] = options.model_arguments
            config["data"] = str(options.data)
            config["data_arguments"] = options.data_arguments
        left_out = {*OUTPUT_OPTIONS, "resume"}  # They say how to start, not what to train.
        config["options"] = {k: v for k, v in options.run.items() if k not in left_out}
        return config


def _construct(source: Any, arguments: dict[str, Any]) -> Any:
    kind = source.load()
    try:
        return kind(**arguments)
    except TypeError as error:
        raise KerasdistError(
            f"Received {arguments} for `{source.name}`, which refused them: {error}. Expected its "
            "constructor's arguments. `--help` lists them."
        ) from error


def names_of(run: dict[str, Any]) -> list[str]:
    """The devices that the options name, with the memory that they allow; starts TensorFlow."""
    has_gpu = gpus.set_memory(run["memory_growth"], run["memory_limit"])
    if not has_gpu and (run["memory_growth"] or run["memory_limit"] is not None):
        print("there is no GPU whose memory could be set", file=sys.stderr)
    unusable = gpus.unusable_gpus()
    if unusable is not None and run["devices"] in (None, "auto"):
        print(unusable, file=sys.stderr)
    if cluster.current() is not None:
        return list(place(run["devices"], soft=run["soft_placement"]).names)  # Joins the others.
    return list(resolve_names(run["devices"], soft=run["soft_placement"]))


def recipe_of(run: Path) -> Recipe | None:
    """The recipe of a run with the run's settings; None if it was trained without one."""
    config = read_config(run) or {}
    return load_recipe(run / CONFIG) if "recipe" in config else None
