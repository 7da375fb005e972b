"""`load`: rebuilds the model of a run, and loads its trained weights."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

import keras

import kerasdist.optimizers  # noqa: F401 - registers classes that a saved model may name
from kerasdist.errors import KerasdistError, closest, warn
from kerasdist.model_files import optimizer_state
from kerasdist.model_files.weights import load_into, modules_of
from kerasdist.models import inspection, pure
from kerasdist.models.contract import Model, ensure_compiled
from kerasdist.models.memory import operations
from kerasdist.phases.phase import phase
from kerasdist.recipes.class_file import ClassFile
from kerasdist.recipes.recipe import load_recipe
from kerasdist.runs import architecture, identity
from kerasdist.runs.catalog import check_run, read_config, status
from kerasdist.runs.checkpoints import Store, differences
from kerasdist.runs.checkpoints.inherited import kept_stage
from kerasdist.runs.checkpoints.kept_identity import kept_identity
from kerasdist.runs.file_names import BEST, CHECKPOINTS, CONFIG, FINAL, MODEL
from kerasdist.runs.results import kept_models

_FILES = {"best": BEST, "final": FINAL}
WHICH = ("best", "last", "final")


def load(run_dir: str | os.PathLike[str], which: str = "best") -> keras.Model:
    """Returns the trained model of a run, with averaged weights if the run has `ema`.

    The state of its optimizer is loaded, too, so that you can train it further.
    The recipe's code builds the model of a recipe. Other models are rebuilt from their description
    in model.json, if all their classes are Keras's or registered. If only the loss or a metric is
    not, the model is not compiled, and a warning says so. The files of trained weights are read as
    plain arrays: no code in them is run.

    Args:
        run_dir: The folder of a run.
        which: "best" (by the run's `monitor`), "best-2" (the second best one, if the run has
            `keep_best`), "final" (the end of a finished run) or "last" (the newest checkpoint, also
            of a run that still trains or was stopped).

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
    model, missing = _loaded(run_dir, which, to_train=True)
    if missing is not None:
        warnings.warn(
            f"The model of the run {str(run_dir)!r} is not compiled, because {_needs(missing)} It "
            "can predict. To train or evaluate it, compile it.",
            stacklevel=2,
        )
    return model


def load_to_predict(run_dir: str | os.PathLike[str], which: str = "best") -> keras.Model:
    """Like `load`, without a word about a loss that is not found: predictions need none."""
    return _loaded(run_dir, which)[0]


def _loaded(
    run_dir: str | os.PathLike[str], which: str, *, to_train: bool = False
) -> tuple[keras.Model, str | None]:
    """The model of a run, and what is missing to compile it as it was."""
    folder = Path(run_dir).expanduser()
    if which not in WHICH and kept_models.rank_of(str(which)) is None:
        raise KerasdistError(
            f"Received `which={which!r}`. Expected one of {', '.join(WHICH)}, or 'best-2' and so "
            f"on.{closest(str(which), WHICH)} Choose one of them."
        )
    check_run(folder)
    config = read_config(folder) or {}
    file = _file_of(folder, which)
    if file == FINAL and status(folder) != "finished" and Store(folder / CHECKPOINTS).steps():
        warn(
            f"the run {str(folder)!r} was continued and has not ended again: its final model is "
            "that of its earlier end; the newest one is `which='last'` (`--which last`)"
        )
    options = config.get("options") or {}
    with pure.dtype_policy(options.get("precision")):
        model, missing = _untrained(folder, config)
        if which == "last":
            _enter_stage(model, folder, config)
        _build(model, folder, is_compiled=missing is None)
        different = _differences(model, folder)
        if different:
            model, missing = _rebuilt(folder, different, which)
    if file is None:
        _load_checkpoint(model, folder, to_train=to_train)
        return model, missing
    load_into(model, folder / file, strict=True)
    # After stages, the optimizer is of the last one. The model is that of the first.
    if to_train and not kept_stage(folder):
        optimizer_state.load_from_file(model, folder / file, modules_of(model))
    return model, missing


def _build(model: keras.Model, folder: Path, *, is_compiled: bool) -> None:
    spec = architecture.read_spec(folder / MODEL)
    if isinstance(model, Model) and is_compiled:
        ensure_compiled(model)
    if not _has_parts_alone(model):
        inspection.build_for_prediction(model, spec)


def _differences(model: keras.Model, folder: Path) -> list[str]:
    """What differs from the model that was trained. Not all edits change the shape of a weight."""
    trained = kept_identity(folder)
    if "layers" not in trained:
        return []
    now = identity.to_predict(identity.of_layers(model))
    found = differences.of_layers(identity.to_predict(trained["layers"]), now)
    if not found and operations.differ(trained.get("operations"), operations.of_operations(model)):
        return [differences.OTHER_OPERATIONS]
    return found


def _rebuilt(folder: Path, different: list[str], which: str) -> tuple[keras.Model, str | None]:
    """The model that was trained, from its description: a recipe may have been edited since."""
    told = "; ".join(different)
    # The code decides what trains in a stage.
    model, missing = None, None
    if which != "last" or not kept_stage(folder):
        with contextlib.suppress(KerasdistError):  # It needs classes of the recipe.
            model, missing = architecture.rebuild(folder / MODEL)
            _build(model, folder, is_compiled=missing is None)
    if model is None or _differences(model, folder):
        raise KerasdistError(
            f"The run {str(folder)!r} was trained with another model than its code makes now: "
            f"{told}. Expected the model that was trained. Change the code back, or train a new "
            "run."
        )
    warn(
        f"the code of the run {str(folder)!r} makes another model than was trained ({told}); the "
        f"model that was trained is made from its description in {MODEL}"
    )
    return model, missing


def _has_parts_alone(model: keras.Model) -> bool:
    """Whether the model is never called itself, as a usual GAN, and its parts are built."""
    return not pure.overrides(model, "call") and pure.has_weights(model)


def _file_of(folder: Path, which: str) -> str | None:
    """The file of a trained model; None for the newest checkpoint."""
    files = {name: file for name, file in _FILES.items() if (folder / file).is_file()}
    for rank, model in enumerate(kept_models.kept(folder), start=1):
        files.setdefault("best" if rank == 1 else f"best-{rank}", model.file)
    there = list(files)
    if Store(folder / CHECKPOINTS).steps():
        there.append("last")
    rank = kept_models.rank_of(which) or 0
    wanted = "best" if rank == 1 else which
    if wanted not in there:
        *others, last = sorted(there) or [""]
        found = f"only {', '.join(others)}{' and ' if others else ''}{last}"
        found = found if there else "no trained model yet"
        state = status(folder)
        raise KerasdistError(
            f"Received `which={which!r}` (`--which {which}`), but the run {str(folder)!r} is "
            f"{state} and has {found}. {_instead(there, rank, is_finished=state == 'finished')}"
        )
    return files.get(wanted)


def _instead(there: list[str], rank: int, *, is_finished: bool) -> str:
    """What to do without the wanted model: `there` are the others, `rank` is that of a best one."""
    bests = [name for name in there if name.startswith("best")]
    others = [*there, "final"] if is_finished and "final" in there else there
    other = bests[-1] if rank > 1 and bests else others[-1] if others else ""
    load = f"Load `which={other!r}` (`--which {other}`)" if there else ""
    if is_finished:
        more = ""
    else:
        more = ", or train the run to its end" if load else "Train the run to its end"
    end = f"{load}{more}." if load or more else "Train a new run."
    if rank > 1:
        end += f" A new run with `keep_best={rank}` (`--keep-best {rank}`) keeps as many models."
    return end


def _needs(missing: str) -> str:
    return (
        f"its `compile` needs {missing}, which is not registered in this program. Expected Keras's "
        "losses and metrics, or registered ones. Put `@keras.saving.register_keras_serializable()` "
        "above the function or class before loading the run, or load it within `with "
        "keras.saving.custom_object_scope({'name': function}):`."
    )


def _untrained(folder: Path, config: dict[str, Any]) -> tuple[keras.Model, str | None]:
    if "recipe" in config:
        return load_recipe(folder / CONFIG).build_model(), None
    if "model" in config:
        kind = ClassFile.parse(config["model"], "--model").load()
        return kind(**config["model_arguments"]), None
    return architecture.rebuild(folder / MODEL)


def _enter_stage(model: keras.Model, folder: Path, config: dict[str, Any]) -> None:
    """Changes the model as the stages of the newest checkpoint did: what trains depends on it."""
    stage = kept_stage(folder)
    if stage and "recipe" in config:
        for _, change in load_recipe(folder / CONFIG).build_stages()[:stage]:
            change(model)


def _load_checkpoint(model: keras.Model, folder: Path, *, to_train: bool) -> None:
    """Loads the weights, or their averages, from the newest checkpoint that verifies."""
    saved = Store(folder / CHECKPOINTS).newest()
    if saved is None:
        raise KerasdistError(
            f"All checkpoints of the run {str(folder)!r} are damaged: none of them passes its "
            "checksum. Load 'best' or 'final' if the run has it."
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
            found = "no array" if array is None else f"an array of shape {array.shape}"
            raise KerasdistError(
                f"The checkpoint {saved.path} has {found} for {variable.path!r} of shape "
                f"{tuple(variable.shape)}. Expected the same model. Change the model's code back "
                "to what it was when the run started."
            )
    for name, variable in wanted.items():
        variable.assign(saved.arrays[name])
    if to_train:
        names = sorted(name for name in saved.arrays if name.startswith("optimizer/"))
        optimizer_state.load(model, [saved.arrays[name] for name in names])


def model_of(
    model_or_run: keras.Model | str | os.PathLike[str], *, to_predict: bool = False
) -> keras.Model:
    """The model itself, or the final model of a run."""
    if pure.is_model(model_or_run):
        return model_or_run
    if isinstance(model_or_run, (str, os.PathLike)):
        with phase("loading the model"):
            model, missing = _loaded(model_or_run, "final")
        if missing is not None and not to_predict:
            raise KerasdistError(
                f"The run {str(model_or_run)!r} cannot be evaluated: {_needs(missing)}"
            )
        return model
    raise KerasdistError(
        f"Received a {type(model_or_run).__name__} as `model_or_run`. Expected a `keras.Model`, or "
        "the folder of a run. For example, use 'runs/cifar10/0001'."
    )
