"""Single examples on a run's page: the worst and the best ones, and a batch of the training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from kerasdist.reports import html

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def shown(evaluation: Mapping[str, Any]) -> str:
    """The examples with the highest and the lowest loss; "" if there are none."""
    what = "error" if "targets" in evaluation else "loss"
    target = _target(evaluation)
    parts = []
    for kind, title in (("worst", f"Highest {what}"), ("best", f"Lowest {what}")):
        found = evaluation.get(kind)
        found = found if isinstance(found, list) else []
        each = [_example(example, target) for example in found if isinstance(example, Mapping)]
        if each:
            wider = " sounds" if any("<audio " in example for example in each) else ""
            parts.append(f'<h3>{title}</h3><div class="examples{wider}">{"".join(each)}</div>')
    if parts and what == "loss":
        parts.insert(
            0,
            '<p class="soft">At most four of the worst examples are of the same class, and the '
            "best ones are of as many classes as possible.</p>",
        )
    return "\n".join(parts)


def _target(evaluation: Mapping[str, Any]) -> str:
    """What a regression predicts, if it is one value with a name."""
    found = evaluation.get("targets")
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], Mapping):
        return html.text_of(found[0].get("name"))
    return "target"


def _example(example: Mapping[str, Any], target: str) -> str:
    number = html.text_of(example.get("position"))
    image = _image(example.get("png"), f"example {number}") + _player(example.get("wav"))
    is_value = "target" in example
    lines = _value_lines(example, target) if is_value else _class_lines(example)
    values = example.get("values")
    for name, value in values.items() if isinstance(values, Mapping) else ():
        title = f'<span class="soft">{escape(str(name))}</span>'
        lines.append(f"{title} {escape(html.text_of(value))}")
    title = f' title="{escape(f"example {number} of the validation data")}"'
    return f"<figure{title}>{image}{'<br>'.join(lines)}</figure>"


def _class_lines(example: Mapping[str, Any]) -> list[str]:
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
    return lines


def _value_lines(example: Mapping[str, Any], target: str) -> list[str]:
    return [
        f"{escape(target)} <b>{escape(html.text_of(example.get('target')))}</b>",
        f"prediction <b>{escape(html.text_of(example.get('prediction')))}</b>",
        f'<span class="soft">error {escape(html.text_of(example.get("loss")))}</span>',
    ]


def _image(picture: Any, about: str) -> str:
    if not isinstance(picture, str) or not _BASE64.fullmatch(picture):
        return ""
    return f'<img alt="{escape(about)}" src="data:image/png;base64,{picture}">'


def _player(sound: Any) -> str:
    if not isinstance(sound, str) or not _BASE64.fullmatch(sound):
        return ""
    return f'<audio controls preload="none" src="data:audio/wav;base64,{sound}"></audio>'


def training_batch(evaluation: Mapping[str, Any]) -> str:
    """Pictures of a training batch, as the model sees it; "" if there are none."""
    batch = evaluation.get("training_batch")
    found = batch.get("pictures") if isinstance(batch, Mapping) else None
    if not isinstance(batch, Mapping) or not isinstance(found, list):
        return ""
    figures = []
    for i, each in enumerate(found):
        picture = _image(each.get("png"), f"training example {i + 1}") if _is(each) else ""
        label = each.get("label") if _is(each) else None
        caption = "" if label is None else escape(html.text_of(label))
        if picture:
            figures.append(f"<figure>{picture}{caption}</figure>")
    if not figures:
        return ""
    how = "after augmentation" if batch.get("is_augmented") else "without augmentation"
    about = (
        f"{len(figures)} of the {html.text_of(batch.get('examples'))} examples of the first batch, "
        f"as the model sees them: {how}."
    )
    return f'<p class="soft">{escape(about)}</p><div class="mosaic">{"".join(figures)}</div>'


def _is(each: Any) -> bool:
    return isinstance(each, Mapping)


def _percent(value: Any) -> str:
    return f" {value:.1%}" if isinstance(value, (int, float)) else ""
