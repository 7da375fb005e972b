"""Answers to calls with arguments that do not exist, or with the model left out."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from kerasdist.errors import KerasdistError, UnknownArgumentError, closest
from kerasdist.models import pure
from kerasdist.training.keras_arguments.tracebacks import shortened

P = ParamSpec("P")
R = TypeVar("R")

# Words that people use for an argument, where the letters alone do not tell which one.
_SYNONYMS = {
    "batch": "batch_size",
    "bs": "batch_size",
    "checkpoint_dir": "run_dir",
    "dataset": "x",
    "device": "devices",
    "features": "x",
    "generator": "x",
    "gpus": "devices",
    "inputs": "x",
    "labels": "y",
    "logdir": "run_dir",
    "nb_epoch": "epochs",
    "num_epochs": "epochs",
    "num_gpus": "devices",
    "output_dir": "run_dir",
    "quiet": "verbose",
    "random_state": "seed",
    "save_dir": "run_dir",
    "strategy": "devices",
    "targets": "y",
    "train_data": "x",
    "val_data": "validation_data",
    "val_split": "validation_split",
    "validation": "validation_data",
    "validation_dataset": "validation_data",
    "validation_generator": "validation_data",
    "x_train": "x",
    "y_train": "y",
}
_OF_PY_DATASET = ("workers", "use_multiprocessing", "max_queue_size")
_OF_COMPILE = (
    "learning_rate",
    "loss",
    "loss_weights",
    "lr",
    "metrics",
    "optimizer",
    "run_eagerly",
    "steps_per_execution",
    "weighted_metrics",
)
_ADVICE = {
    "jit_compile": "Use `jit`, or give it to `model.compile`.",
    "accumulate": "Use `shards`: more shards than devices accumulate gradients.",
    "gradient_accumulation_steps": "Use `shards`: more shards than devices accumulate gradients.",
    **dict.fromkeys(_OF_COMPILE, "Give it to `model.compile`."),
    **dict.fromkeys(
        _OF_PY_DATASET,
        "Keras 3 removed it from `fit`. Give it to the constructor of your "
        "`keras.utils.PyDataset`: `super().__init__(workers=..., use_multiprocessing=..., "
        "max_queue_size=...)`.",
    ),
}


def with_hints(function: Callable[P, R]) -> Callable[P, R]:
    """Answers a call that does not fit the function's parameters with what was probably meant.

    Errors of the function show the caller's code only.
    """
    parameters = inspect.signature(function).parameters
    title = f"kerasdist.{function.__name__}"

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_call(title, parameters, args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            error.__traceback__ = shortened(error)
            raise  # Without a value: Python adds no frame for this line.

    return checked


def _check_call(
    title: str,
    parameters: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    for name in kwargs:
        if name not in parameters:
            raise UnknownArgumentError(
                f"`{title}` has no argument `{name}`.{advice(name, parameters)}"
            )
    first = next(iter(parameters))
    if not args and first not in kwargs and parameters[first].default is inspect.Parameter.empty:
        raise UnknownArgumentError(
            f"`{title}` was called without `{first}`. Expected the model as the first argument. "
            f"Call for example `{title}(model, x)`."
        )
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(positional):
        raise UnknownArgumentError(
            f"`{title}` received {len(args)} arguments by position. Expected at most "
            f"{len(positional)}: {', '.join(positional)}. Give the others by name."
        )
    for name in positional[: len(args)]:
        if name in kwargs:
            raise UnknownArgumentError(
                f"`{title}` received `{name}` twice, by position and by name. Expected it once. "
                f"The order is {', '.join(positional)}."
            )


def advice(name: str, known: Any) -> str:
    """What to write instead of an argument that does not exist."""
    if name in _ADVICE:
        return f" {_ADVICE[name]}"
    meant = _SYNONYMS.get(name)
    if meant in known:
        return f" Did you mean '{meant}'?"
    near = closest(name, known)
    return near or f" Expected one of {', '.join(known)}. Leave it out."


def check_model(model: Any, title: str) -> None:
    """Refuses data, or anything else, in the place of the model."""
    kind = type(model).__name__
    if title not in ("evaluate", "predict"):
        what, other = f"`model` of type {kind}", "a function without arguments that returns one"
        is_right = callable(model)
    else:
        what, other = f"a {kind} as `model_or_run`", "the folder of a run"
        is_right = isinstance(model, (str, os.PathLike))
    if not is_right and not pure.is_model(model):
        raise KerasdistError(
            f"Received {what}. Expected a `keras.Model`, or {other}, and then the data. Call "
            f"`kerasdist.{title}(model, x)`, with a model made for example by `keras.Sequential`."
        )
