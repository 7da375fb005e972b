"""A classifier's answers on a run's page: a row per class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kerasdist.reports import html
from kerasdist.runs.results.guessing import counts_of

# With more classes, the matrix is drawn instead of printed.
MOST_COLUMNS = 20
NUM_MISTAKES = 10
# A share below this is shown in red.
_LOW = 0.5
_MEANING = (
    "<p>Precision: of the answers with this class, the share that is right. Recall: of the "
    "examples of this class, the share that is found. F1: the harmonic mean of the two.</p>"
)


def classes(evaluation: Mapping[str, Any]) -> str:
    """Precision, recall and number of examples of each class, the worst class first."""
    found = counts_of(evaluation)
    if found is None:
        return ""
    names, counts = found
    answered = [sum(column) for column in zip(*counts, strict=True)]
    rows = []
    for i, name in enumerate(names):
        right, support = counts[i][i], sum(counts[i])
        precision = right / answered[i] if answered[i] else None
        recall = right / support if support else None
        # With neither examples nor answers, nothing is known about a class.
        both = support + answered[i]
        f1 = 2 * right / both if both else None
        rows.append((f1, name, precision, recall, support))
    # Classes without a value come last.
    rows.sort(key=lambda row: (row[0] is None, row[0]))
    lines = [
        [
            html.row_name(name),
            *(_share(value) for value in (precision, recall, f1)),
            html.cell(support),
        ]
        for f1, name, precision, recall, support in rows
    ]
    total = sum(row[4] for row in rows)
    right = sum(counts[i][i] for i in range(len(names)))
    about = (
        f"{of_which(evaluation)} {right:,} of {total:,} answers are right ({right / total:.1%})."
    )
    columns = ("class", "precision", "recall", "F1", "examples")
    return (
        f'<p class="soft">{escape(about)} The class with the lowest F1 is first.</p>'
        + html.table(columns, lines)
        + html.details("What the columns mean", _MEANING)
    )


def _share(value: float | None) -> str:
    is_low = value is not None and value < _LOW
    return f"<td{' class=low' * is_low}>{'–' if value is None else f'{value:.1%}'}</td>"


def matrix(evaluation: Mapping[str, Any]) -> str:
    """The confusion matrix and the most frequent mistakes; "" if there is no matrix."""
    found = counts_of(evaluation)
    if found is None:
        return ""
    names, matrix = found
    about = (
        f'<p class="soft">{escape(of_which(evaluation))} Rows are labels, columns are answers.</p>'
    )
    if len(names) > MOST_COLUMNS:
        return about + _heat(names, matrix) + _mistakes(names, matrix)
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = []
    for name, row in zip(names, matrix, strict=True):
        total = sum(row) or 1
        cells = "".join(
            f'<td style="--share:{0.75 * count / total:.2f}">{count or ""}</td>' for count in row
        )
        rows.append(f"<tr>{html.row_name(name)}{cells}</tr>")
    return (
        f'{about}<div class="scroll"><table class="matrix"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{_mistakes(names, matrix)}"
    )


def of_which(evaluation: Mapping[str, Any]) -> str:
    """How many examples an evaluation covers, and after which step."""
    count = html.text_of(evaluation.get("examples"))
    after = evaluation.get("steps")
    when = f" after step {html.text_of(after)}" if after is not None else ""
    if evaluation.get("is_whole"):
        return f"All {count} validation examples{when}."
    if evaluation.get("is_random"):
        return f"{count} of the validation examples, chosen at random{when}."
    return f"The first {count} validation examples{when}."


def _heat(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    size = len(names)
    cells = [
        f'<rect x="{j}" y="{i}" width="1" height="1" fill-opacity="{count / (sum(row) or 1):.2f}">'
        f"<title>{escape(f'{names[i]} → {names[j]}: {count}')}</title></rect>"
        for i, row in enumerate(matrix)
        for j, count in enumerate(row)
        if count
    ]
    return (
        f'<svg class="heat" viewBox="0 0 {size} {size}" role="img" aria-label="confusion matrix">'
        f"{''.join(cells)}</svg>"
    )


def _mistakes(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    wrong = [
        (count, i, j)
        for i, row in enumerate(matrix)
        for j, count in enumerate(row)
        if i != j and count
    ]
    wrong.sort(key=lambda each: (-each[0], each[1], each[2]))
    rows = [
        [html.cell(names[i]), html.cell(names[j]), html.cell(count)]
        for count, i, j in wrong[:NUM_MISTAKES]
    ]
    content = html.table(("label", "answer", "examples"), rows, "words") if rows else ""
    return html.details("The most frequent mistakes", content)
