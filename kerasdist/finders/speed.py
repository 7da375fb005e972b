"""How fast steps are, with the reading of their data, as in a long training.

Data that was read before the clock starts would seem to cost nothing. A pass begins with empty
buffers, so whole passes have no such data. Passes that take too long for that are measured in the
middle, after a warm-up that began with empty buffers: they only fill up if steps take longer than
reading does.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

from kerasdist.engine.compiled_loop import NOT_FINITE, SECONDS_PER_CALL
from kerasdist.finders.steps import Steps

# The median of at least so many passes or rounds counts: other programs disturb some of them.
_ROUNDS = 3
# Of passes that take longer than the time for all rounds, fewer are enough.
_LONG_ROUNDS = 2
# Whole passes are measured if one takes at most so many times that time.
_LONGEST_PASS = 6
# More batches than are ever read ahead. Data that cannot begin again must use them up.
_READ_AHEAD = 16


@dataclass(frozen=True)
class _Piece:
    """Some steps of one pass."""

    num_steps: int
    examples: int
    seconds: float
    is_end: bool  # Whether the pass ended with them.

    @property
    def rate(self) -> float:
        return self.examples / max(self.seconds, 1e-9)


def speed(steps: Steps, batch_size: int, seconds: float) -> float:
    """Examples per second, measured for about `seconds`. 0 if the data is used up before.

    As `fit` counts them: the opening of a pass and the reading of its data take part of the time.

    Args:
        steps: The steps, none of which was run.
        batch_size: The examples of a step that is not finite.
        seconds: How long to measure, besides the warm-up.
    """
    _piece(steps, batch_size, most=1)  # Compiles.
    least = 0 if steps.restart_pass() else _READ_AHEAD
    warm_up = _piece(steps, batch_size, seconds=seconds, least=least)
    if not warm_up.is_end and _seconds_of_pass(steps, warm_up) <= _LONGEST_PASS * seconds:
        # The last batch of a pass may be smaller: then it compiles once more.
        warm_up = _piece(steps, batch_size)
    pieces = _passes(steps, batch_size, seconds) if warm_up.is_end else []
    if not pieces:
        pieces = _rounds(steps, batch_size, seconds)
    return statistics.median(piece.rate for piece in pieces or [warm_up])


def _seconds_of_pass(steps: Steps, seen: _Piece) -> float:
    """About how long a pass takes; infinite if the number of its batches is not known."""
    if steps.num_batches is None or not seen.num_steps:
        return math.inf
    return seen.seconds / seen.num_steps * steps.num_batches


def _passes(steps: Steps, batch_size: int, seconds: float) -> list[_Piece]:
    """Whole passes, with their opening. None if the data can be read only once."""
    found: list[_Piece] = []
    spent = 0.0
    while spent < seconds or len(found) < (_ROUNDS if spent < _ROUNDS * seconds else _LONG_ROUNDS):
        found.append(_piece(steps, batch_size))
        spent += found[-1].seconds
        if not found[-1].num_steps:
            return found[:-1]
    return found


def _rounds(steps: Steps, batch_size: int, seconds: float) -> list[_Piece]:
    """Parts of passes: fewer than `_ROUNDS` if their steps take long."""
    found: list[_Piece] = []
    for _ in range(2 * _ROUNDS):  # A round may find only the end of a pass.
        piece = _piece(steps, batch_size, seconds=seconds / _ROUNDS)
        found += [piece] if piece.num_steps else []
        if sum(piece.seconds for piece in found) >= seconds:
            break
    return found


def _piece(
    steps: Steps,
    batch_size: int,
    *,
    seconds: float = math.inf,
    least: int = 0,
    most: float = math.inf,
) -> _Piece:
    """Trains to the end of the pass, but for at most about `seconds` or `most` steps.

    At `least` steps are done, unless they take several times as long.
    """
    began, passes, done, examples, took = time.perf_counter(), steps.num_passes, 0, 0, 0.0
    per_call = 1
    while steps.num_passes == passes and done < most:
        if took >= seconds and (done >= least or took >= _LONGEST_PASS * seconds):
            break
        outcome = steps.run_in_pass(per_call)
        done += outcome.num_steps
        examples += outcome.num_examples
        if outcome.status == NOT_FINITE:  # Its weights do not matter here, only its time.
            steps.skip()
            done, examples = done + 1, examples + batch_size
        took = time.perf_counter() - began
        per_call = max(1, int(min(SECONDS_PER_CALL, seconds / _ROUNDS) * done / max(took, 1e-9)))
    return _Piece(done, examples, took, steps.num_passes > passes)
