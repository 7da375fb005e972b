"""`load`: the trained model of a run, rebuilt by its own code, with arrays from the folder."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any, Literal

import keras

import kerasdist.optimizers  # noqa: F401 - registers classes that a saved model may name
from kerasdist.errors import KerasdistError, closest
from kerasdist.model_files.weights import load_into
from kerasdist.models import inspection, pure
from kerasdist.models.contract import Model, ensure_compiled
from kerasdist.recipes.class_file import ClassFile
from kerasdist.recipes.recipe import load_recipe
from kerasdist.runs import architecture
from kerasdist.runs import folder as runs
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.checkpoints.recovery import CHECKPOINTS

_FILES = {"best": runs.BEST, "final": runs.FINAL}
WHICH = ("best", "last", "final")


def load(
    run_dir: str | os.PathLike, which: Literal["best", "last", "final"] = "best"
) -> keras.Model:
    """Returns the trained model of a run, with averaged weights where the run has `ema`.

    The model of a recipe is built by the recipe's code, one of Keras's own classes from its
    description. Of the trained files only arrays are read: no code comes from them.

    Args:
        run_dir: The folder of a run.
        which: "best" (by the run's `monitor`), "last" (the newest checkpoint, of a run that still
            trains or was stopped, too) or "final" (the end of a finished run).

    Raises:
        KerasdistError: If the folder has no such model.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((8, 1))
        >>> _ = kerasdist.fit(model, (x, x), batch_size=4, run_dir="runs/line", progress=False)
        >>> bool(kerasdist.load("runs/line").get_weights()[0] == model.get_weights()[0])
        True
    """
    folder = Path(run_dir).expanduser()
    if which not in WHICH:
        raise KerasdistError(
            f"Received `which={which!r}`. Expected one of {', '.join(WHICH)}."
            f"{closest(str(which), WHICH)} Correct it."
        )
    runs.check_run(folder)
    config = runs.read_config(folder) or {}
    _check_there(folder, which)
    options = config.get("options") or {}
    with pure.dtype_policy(options.get("precision")):
        model = _untrained(folder, config)
        spec = architecture.read_spec(folder / runs.MODEL)
        if isinstance(model, Model):
            ensure_compiled(model)
        inspection.build_for_prediction(model, spec)
    if which == "last":
        _load_checkpoint(model, folder)
    else:
        load_into(model, folder / _FILES[which], strict=True)
    return model


def _check_there(folder: Path, which: str) -> None:
    there = [name for name, file in _FILES.items() if (folder / file).is_file()]
    if Store(folder / CHECKPOINTS).steps():
        there.append("last")
    if which not in there:
        stands = runs.status(folder)
        raise KerasdistError(
            f"Received `which={which!r}` for the run {str(folder)!r}, which is {stands} and has "
            f"{'only ' + ' and '.join(sorted(there)) if there else 'no trained model yet'}. "
            "Expected one that is there. "
            + (f"Use `which={there[-1]!r}`, or train" if there else "Train")
            + " the run to its end."
        )


def _untrained(folder: Path, config: dict[str, Any]) -> keras.Model:
    if "recipe" in config:
        return load_recipe(folder / runs.CONFIG).build_model()
    if "model" in config:
        return ClassFile.parse(config["model"], "--model").load()(**config["model_arguments"])
    return architecture.rebuild(folder / runs.MODEL)


def _load_checkpoint(model: keras.Model, folder: Path) -> None:
    """Weights and averages of the newest checkpoint that verifies; nothing else of it."""
    saved = Store(folder / CHECKPOINTS).newest()
    if saved is None:
        raise KerasdistError(
            f"Received the run {str(folder)!r}, whose checkpoints are all damaged. Expected one "
            "that verifies. Load 'best' or 'final' if there is one."
        )
    roles = pure.parts(model)
    has_averages = "ema/0000" in saved.arrays
    wanted = {
        f"{role}/{i:04d}": variable
        for role, variables in (
            ("ema" if has_averages else "trainable", roles.trainable),
            ("other", roles.other),
        )
        for i, variable in enumerate(variables)
    }
    for name, variable in wanted.items():
        array = saved.arrays.get(name)
        if array is None or array.shape != tuple(variable.shape):
            found = "nothing" if array is None else f"an array of the shape {array.shape}"
            raise KerasdistError(
                f"Received the checkpoint {saved.path}, which has {found} for {variable.path!r} "
                f"of the shape {tuple(variable.shape)}. Expected the same model. Put the model's "
                "code back to what it was when the run began."
            )
    for name, variable in wanted.items():
        variable.assign(saved.arrays[name])


def model_of(model_or_run: Any) -> keras.Model:
    """The model itself, or the final one of a run."""
    if isinstance(model_or_run, keras.Model):
        return model_or_run
    if isinstance(model_or_run, (str, os.PathLike)):
        return load(model_or_run, which="final")
    raise KerasdistError(
        f"Received a {type(model_or_run).__name__} as `model_or_run`. Expected a `keras.Model`, or "
        "the folder of a run. Give for example 'runs/cifar10/0001'."
    )


def fresh_seed(model: Any) -> int:
    """A seed where none is given, from the state of Python's `random`.

    `keras.utils.set_random_seed` sets that state. A fit of a model does not advance it, as in
    Keras: models that are built afterwards begin with Keras's weights. The model's steps so far
    make each further fit another one. A function that builds a model advances it, as building does.
    """
    if not isinstance(model, keras.Model):
        return random.randrange(2**31)
    optimizer = getattr(model, "optimizer", None)
    steps = 0 if optimizer is None else int(optimizer.iterations.numpy())
    digest = hashlib.sha256(repr((random.getstate(), steps)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def made(model: Any, precision: str | None, seed: int) -> keras.Model:
    """The model itself, or what its function builds, reproducibly and under `precision`."""
    if isinstance(model, keras.Model):
        return model
    if not callable(model):
        raise KerasdistError(
            f"Received `model` of type {type(model).__name__}. Expected a `keras.Model`, or a "
            "function without arguments that returns one. Build one, for example with "
            "`keras.Sequential`."
        )
    state = random.getstate()
    try:
        random.seed(seed)  # Keras draws the seeds of initializers from here.
        with pure.dtype_policy(precision):
            built = model()
    finally:
        random.setstate(state)
    if not isinstance(built, keras.Model):
        raise KerasdistError(
            f"Received a function as `model` that returned {type(built).__name__}. Expected a "
            "`keras.Model`. Return the model from it."
        )
    return built
