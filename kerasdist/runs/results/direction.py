"""Whether a higher value of a metric is better: by its object in Keras, or else by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.runs.catalog import read_object
from kerasdist.runs.file_names import ENVIRONMENT

# Where environment.json says it: `{"better": {"mean_io_u": "higher", "mae": "lower"}}`.
BETTER = "better"
_HIGHER, _LOWER = "higher", "lower"
_VALIDATION = "val_"

# The last of these words in a metric's name decides: `recall_loss` is a loss.
_HIGHER_WORDS = set(
    """acc accuracy ap auc auroc bleu concordance correlation dice f1 f1score fbeta io iou jaccard
    kappa map mcc miou ndcg precision proximity psnr r2 recall rouge score sensitivity similarity
    specificity ssim""".split()  # noqa: SIM905 - a list of so many lines is hard to read
)
_LOWER_WORDS = set(
    """bce cce cosh crossentropy distance divergence entropy error errors hinge logcosh loss losses
    mae mape mse msle nll perplexity poisson rmse""".split()  # noqa: SIM905
)

# By the name of a metric: whether a higher value is better.
Known = Mapping[str, bool]


def is_higher_better(name: str, known: Known | None = None) -> bool:
    """Whether a higher value of a metric is better. A name that says nothing means lower.

    Args:
        name: The metric's name in the logs, also that of a validation.
        known: What the objects of the metrics say (`of_run`). It comes before the name.

    Example:
        >>> is_higher_better("val_mean_io_u"), is_higher_better("val_recall_loss")
        (True, False)
        >>> is_higher_better("val_quality"), is_higher_better("val_quality", {"quality": True})
        (False, True)
    """
    for key in (name, name.removeprefix(_VALIDATION)):
        if known is not None and key in known:
            return known[key]
    for word in reversed(re.findall(r"[a-z0-9]+", name.lower())):
        words = {word, word.rstrip("0123456789")}  # `f1`, and `acc5` or `top5_acc_1`.
        if words & _HIGHER_WORDS:
            return True
        if words & _LOWER_WORDS:
            return False
    return False


def as_fields(known: Known) -> dict[str, Any]:
    """What environment.json says of the metrics of a run."""
    better = {name: _HIGHER if is_higher else _LOWER for name, is_higher in known.items()}
    return {BETTER: better} if better else {}


def of_environment(environment: Mapping[str, Any]) -> dict[str, bool]:
    """What the content of environment.json says of the metrics; nothing in an older run.

    Example:
        >>> of_environment({"better": {"quality": "higher", "mae": "lower"}})
        {'quality': True, 'mae': False}
    """
    better = environment.get(BETTER)
    if not isinstance(better, Mapping):
        return {}
    return {str(k): v == _HIGHER for k, v in better.items() if v in (_HIGHER, _LOWER)}


def of_run(run: Path) -> dict[str, bool]:
    """What the objects of a run's metrics said when it was last started."""
    return of_environment(read_object(run / ENVIRONMENT))
