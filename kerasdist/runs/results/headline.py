"""Chooses the one metric of a run that people look at first, and says it in words."""

from __future__ import annotations

import re
from collections.abc import Iterable

VALIDATION = "val_"
# Words of names, the most telling first. Others follow in the order in which they were logged.
# Whole words: `acceleration_mae` is no accuracy.
_ACCURACY = re.compile(r"(acc|[a-z]*accuracy)\d*")
_TELLING = (_ACCURACY, *map(re.compile, (r"[a-z]*auc\d*", r"f1(score)?", r"r2(score)?")))
# "top_k_categorical_accuracy" is nearly always the second question.
_SECONDARY = ("top_",)
_ABBREVIATIONS = {"auc", "f1", "iou", "mae", "mape", "mse", "r2", "rmse"}


def headline(names: Iterable[str]) -> str | None:
    """The metric that people look at first, among the names of logged metrics; None without any.

    That is the accuracy on the validation data where there is one, else another metric on the
    validation data, else the loss on it; without a validation, the same of the training.

    Example:
        >>> headline(["loss", "accuracy", "val_loss", "val_accuracy"])
        'val_accuracy'
        >>> headline(["loss", "mae", "val_loss", "val_mae"]), headline(["loss"]), headline([])
        ('val_mae', 'loss', None)
    """
    known = list(names)
    of_validation = [name for name in known if name.startswith(VALIDATION)]
    candidates = of_validation or known
    metrics = [name for name in candidates if not is_loss(name)]
    for part in _TELLING:
        for name in metrics:
            if _has(name, part) and not any(word in name for word in _SECONDARY):
                return name
    total = next((n for n in candidates if n.removeprefix(VALIDATION) == "loss"), None)
    return next(iter([*metrics, *([total] if total else candidates)]), None)


def _has(name: str, word: re.Pattern[str]) -> bool:
    return any(map(word.fullmatch, re.split(r"[^a-z0-9]+", name.lower())))


def is_loss(name: str) -> bool:
    """Whether a metric is a loss: the whole one, or that of one output.

    Example:
        >>> is_loss("val_loss"), is_loss("age_loss"), is_loss("accuracy")
        (True, True, False)
    """
    return name == "loss" or name.endswith("_loss")


def in_words(name: str) -> str:
    """A metric's name as people say it.

    Example:
        >>> in_words("val_accuracy"), in_words("sparse_categorical_accuracy"), in_words("val_mae")
        ('validation accuracy', 'training accuracy', 'validation MAE')
    """
    data = "validation" if name.startswith(VALIDATION) else "training"
    words = name.removeprefix(VALIDATION)
    if words.endswith("_accuracy") and words.split("_")[0] in ("sparse", "categorical", "binary"):
        words = "accuracy"
    said = [word.upper() if word in _ABBREVIATIONS else word for word in words.split("_")]
    return f"{data} {' '.join(said)}"


def is_share(name: str) -> bool:
    """Whether a metric is a share that people read in percent.

    Example:
        >>> is_share("val_top5_acc_1"), is_share("acceleration_mae")
        (True, False)
    """
    return _has(name, _ACCURACY) and not is_loss(name)
