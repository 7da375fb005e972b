"""A classifier's answers on a run's page: confusion matrix, worst and best examples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kerasdist.reports import html

# With more classes, the matrix is drawn instead of printed.
MOST_COLUMNS = 20
NUM_MISTAKES = 10
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def confusion(evaluation: Mapping[str, Any]) -> str:
    """The confusion matrix and the most frequent mistakes; "" if there is no matrix."""
    matrix: Any = evaluation.get("confusion")
    names: Any = evaluation.get("classes")
    if not _is_matrix(names, matrix):
        return ""
    names = [str(name) for name in names]
    about = (
        f'<p class="soft">{escape(_of_which(evaluation))} Rows are labels, columns are answers.</p>'
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


def _is_matrix(names: Any, matrix: Any) -> bool:
    return (
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


def _of_which(evaluation: Mapping[str, Any]) -> str:
    count = html.text_of(evaluation.get("examples"))
    which = "All" if evaluation.get("is_whole") else "The first"
    after = evaluation.get("steps")
    when = f" after step {html.text_of(after)}" if after is not None else ""
    return f"{which} {count} validation examples{when}."


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


def examples(evaluation: Mapping[str, Any]) -> str:
    """The examples with the highest and the lowest loss; "" if there are none."""
    parts = []
    for kind, title in (("worst", "Highest loss"), ("best", "Lowest loss")):
        found = evaluation.get(kind)
        found = found if isinstance(found, list) else []
        each = [_example(example) for example in found if isinstance(example, Mapping)]
        if each:
            parts.append(f'<h3>{title}</h3><div class="examples">{"".join(each)}</div>')
    return "\n".join(parts)


def _example(example: Mapping[str, Any]) -> str:
    picture = example.get("png")
    image = ""
    if isinstance(picture, str) and _BASE64.fullmatch(picture):
        number = html.text_of(example.get("position"))
        image = f'<img alt="example {escape(number)}" src="data:image/png;base64,{picture}">'
    label, answer = (str(example.get(name)) for name in ("label", "answer"))
    kind = "right" if label == answer else "wrong"
    share = _percent(example.get("probability"))
    lines = [
        f"label <b>{escape(label)}</b>",
        f'answer <b class="{kind}">{escape(answer)}</b>{share}',
    ]
    if label != answer:
        lines.append(f"label’s probability{_percent(example.get('label_probability'))}")
    lines.append(f'<span class="soft">loss {escape(html.text_of(example.get("loss")))}</span>')
    return f"<figure>{image}{'<br>'.join(lines)}</figure>"


def _percent(value: Any) -> str:
    return f" {value:.1%}" if isinstance(value, (int, float)) else ""
