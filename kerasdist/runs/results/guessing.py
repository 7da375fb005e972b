"""Compares a classifier with the simplest guess: always the most frequent class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def counts_of(evaluation: Mapping[str, Any]) -> tuple[list[str], list[list[int]]] | None:
    """The classes and the confusion matrix in evaluation.json.

    None if the file holds something else, or no example.
    """
    names: Any = evaluation.get("classes")
    matrix: Any = evaluation.get("confusion")
    is_matrix = (
        isinstance(names, list)
        and isinstance(matrix, list)
        and len(names) == len(matrix) > 0
        and all(
            isinstance(row, list)
            and len(row) == len(names)
            and all(isinstance(count, int) and count >= 0 for count in row)
            for row in matrix
        )
    )
    if not is_matrix or not any(map(sum, matrix)):
        return None
    return [str(name) for name in names], matrix


def no_better(evaluation: Mapping[str, Any], steps: int | None) -> str | None:
    """What to say of a classifier that is no better than a guess; None if it is better.

    Nothing is said if this is unknown: if the evaluation is not the one after `steps`, if it covers
    only the first examples, which may be sorted by class, or if it has examples of one class only.

    Example:
        >>> evaluation = {"classes": ["cat", "dog"], "confusion": [[1, 2], [4, 3]], "steps": 5}
        >>> no_better({**evaluation, "is_whole": True}, steps=5)
        "validation accuracy 40.0% is no better than always answering 'dog' (70.0%)"
    """
    found = counts_of(evaluation)
    is_for_all = evaluation.get("is_whole") or evaluation.get("is_random")
    if found is None or not is_for_all or evaluation.get("steps") != steps:
        return None
    names, matrix = found
    examples = [sum(row) for row in matrix]
    right, most, total = sum(matrix[i][i] for i in range(len(names))), max(examples), sum(examples)
    if right > most or most == total:
        return None
    guess = names[examples.index(most)]
    return (
        f"validation accuracy {right / total:.1%} is no better than always answering {guess!r} "
        f"({most / total:.1%})"
    )
