"""The page in a browser: it fits the screen, and asks for nothing."""

import base64
import json
import shutil

import numpy as np
import pytest

from kerasdist.evaluation.sounds import wav
from kerasdist.reports import html
from kerasdist.reports.sections import confusion, examples
from tests.reports.browser import Seen, needs_chromium
from tests.reports.devtools import Browser
from tests.reports.pages import html_of, numbers


def contrast(measures):
    """Of the text, as WCAG defines it."""

    def luminance(colour):
        parts = [value / 255 for value in numbers(colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    ink, ground = luminance(measures["ink"]), luminance(measures["ground"])
    return (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_in_a_browser(run, tmp_path, dark):
    copy = shutil.copytree(run, tmp_path / ("a" * 120))  # A long name does not widen it.
    settings = {"text": "x" * 300, "many": list(range(200))}
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "settings": settings}))
    evaluation = json.loads((copy / "evaluation.json").read_text())
    evaluation["classes"] = [f"a class with a long name {i}" for i in range(confusion.MOST_COLUMNS)]
    evaluation["confusion"] = np.full((confusion.MOST_COLUMNS,) * 2, 1234).tolist()
    (copy / "evaluation.json").write_text(json.dumps(evaluation))
    seen = Seen(html_of(copy), tmp_path, dark)
    assert seen.console == []
    assert seen.requests == []
    for width, measures in seen.measures.items():
        assert measures["overflow"] <= 0, width
        assert measures["sections"] == [
            "Summary",
            "Loss and metrics",
            "Classes",
            "Confusion matrix",
            "Probabilities",
            "Worst and best examples",
            "A training batch",
            "Learning rate and throughput",
            "Model",
            "Configuration",
            "Environment",
            "Commands",
        ]
        assert len(measures["plots"]) >= 3
        assert all(300 <= size <= 600 for size in measures["plots"]), width
        assert measures["letters"] >= 10
        assert measures["pictures"] == [6] * 32  # Half of them are of the training batch.
        assert contrast(measures) > 7
    is_dark = sum(numbers(seen.measures["400"]["ground"])[:3]) < 200
    assert is_dark == dark


@needs_chromium
def test_the_players_of_sounds_have_room_in_their_cards(tmp_path):
    sound = base64.b64encode(wav(np.zeros(8000, "int16"), 8000)).decode()
    each = {"label": "a", "answer": "a", "loss": 0.1, "wav": sound}
    shown = examples.shown({"worst": [{**each, "position": i} for i in range(8)]})
    path = tmp_path / "page.html"
    path.write_text(html.page("sounds", [shown]))
    script = """[...document.querySelectorAll("audio")].map(player => {
      const inside = player.getBoundingClientRect();
      const card = player.parentNode.getBoundingClientRect();
      return [inside.width, inside.left - card.left, card.right - inside.right];
    })"""
    with Browser(tmp_path) as browser:
        for size in ((1280, 900), (390, 844), (320, 600)):
            found = browser.tab(path.as_uri(), size).run(script)
            assert len(found) == 8
            assert all(width >= 200 and min(left, right) >= 0 for width, left, right in found), size


@needs_chromium
def test_a_browser_notices_what_must_not_be(tmp_path):
    """The test above can fail."""
    text = (
        "<!doctype html><body style='width: 3000px'><h2>x</h2>"
        "<img src='https://example.invalid/a.png'><img src='http://example.invalid/b.png'>"
        "<script>undefinedName()</script>"
    )
    seen = Seen(text, tmp_path)
    assert any("undefinedName" in line for line in seen.console)
    assert {"example.invalid:443", "http://example.invalid/b.png"} <= set(seen.requests)
    assert seen.measures["400"]["overflow"] > 0
