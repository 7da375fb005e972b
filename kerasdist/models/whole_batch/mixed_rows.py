"""Finds models whose `call` computes the output for an example from other examples of the batch.

Keras's own layers do not, except BatchNormalization, which kerasdist knows. Custom layers and
functions may: a mean over the batch, a similarity of examples, a reshape that mixes rows.
"""

from __future__ import annotations

import keras
import numpy as np

from kerasdist.errors import InexactLossError, KerasdistError
from kerasdist.models.fields import Batch
from kerasdist.models.probing.cases import Case, Mode
from kerasdist.models.probing.probe import Probe
from kerasdist.models.probing.rounding import of_outputs
from kerasdist.models.whole_batch.separation import is_close

# A few rows show it, and large models must not run on many of them.
_MOST_ROWS = 9


def refuse_mixed_rows(model: keras.Model, batch: Batch, *, training: bool, targets: bool) -> None:
    """Refuses a model whose outputs for some examples differ from those for parts of them."""
    probe = Probe(model, batch, (), targets, with_loss=False, most=_MOST_ROWS)
    if probe.count < 2:
        return
    try:
        case = probe.compare(Mode(training))
    except KerasdistError as error:  # It cannot run on parts.
        raise InexactLossError(str(error)) from error
    if case is None:
        return
    tolerance = of_outputs(model)
    for i in range(len(case.whole.outputs)):
        if _differs(case, i, tolerance):
            raise InexactLossError(
                f"The model {type(model).__name__!r} computes output {i} for an example from other "
                "examples of the batch, too: it differs on parts of the first batch. Expected one "
                "row per example that does not depend on the other examples. Compare examples in "
                "`compute_loss` instead of `call`, or use `devices=1, shards=1`. See "
                "docs/exactness.md."
            )


def _differs(case: Case, number: int, tolerance: float) -> bool:
    whole, again = case.whole.outputs[number], case.again.outputs[number]
    parts = [part.outputs[number] for part in case.parts]
    if whole is None or again is None:
        return False
    present = [part for part in parts if part is not None and part.ndim]
    # A value without rows counts only through a custom loss, which is checked by itself.
    if len(present) < 2 or any(part.shape[1:] != whole.shape[1:] for part in present):
        return False
    joined = np.concatenate(present)
    if joined.shape != whole.shape or not is_close(whole, again, tolerance):
        return False
    return not is_close(whole, joined, tolerance)
