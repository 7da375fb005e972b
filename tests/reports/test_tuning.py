"""The page of a study."""

import dataclasses
import re

import pytest

from kerasdist.reports import tuning
from kerasdist.reports.tuning import StudyFacts, TrialRow

FACTS = StudyFacts("<mine>", "val_loss", False, 7, {"rate": "0.1:1"}, 4, "kerasdist fit x --rate 1")


def row(number, outcome, value, **settings):
    return TrialRow(number, outcome, value, 3, settings, f"{number:04d}")


ROWS = [
    row(1, "finished", 0.5, rate=0.1, kind="adam"),
    row(2, "pruned", 0.1, rate=10.0, kind="sgd"),
    row(3, "finished", 0.3, rate=1.0, kind="adam"),
    row(4, "diverged", None, rate=5.0, kind="sgd"),
]


def test_the_best_trial_is_one_that_finished():
    assert tuning.best(ROWS, is_higher_better=False).number == 3
    assert tuning.best(ROWS, is_higher_better=True).number == 1
    assert tuning.best(ROWS[3:], is_higher_better=True) is None
    assert tuning.best([], is_higher_better=True) is None


def test_the_page_shows_trials_history_and_settings():
    page = tuning.render(FACTS, ROWS)
    assert "&lt;mine&gt;" in page
    assert 'class="badge finished"' in page
    assert '<a href="0003/report.html">3</a>' in page
    assert page.index("0003/report.html") < page.index("0001/report.html")
    assert "kerasdist fit x --rate 1" in page
    assert "val_loss by rate" in page
    assert "<script src" not in page
    assert page.count('class="dot') >= 6


def test_a_study_that_has_just_begun_has_a_page():
    page = tuning.render(FACTS, [row(1, "running", None, rate=0.1)])
    assert "No trial has finished yet" in page
    assert 'class="badge unfinished"' in page


def test_trials_are_counted_in_whole_numbers():
    page = tuning.render(FACTS, ROWS[:3])
    history = page[page.index('id="History"' if 'id="History"' in page else 'id="history"') :]
    ticks = re.findall(r'class="middle">([^<]*)<', history[: history.index("</section>")])
    assert ticks == ["1", "2", "3"]


@pytest.mark.parametrize(("space", "is_log"), [("0.1:1", False), ("0.1:1:log", True)])
def test_a_setting_searched_by_its_logarithm_has_such_an_axis(space, is_log):
    facts = dataclasses.replace(FACTS, space={"rate": space})
    rows = [row(n, "finished", n / 10, rate=n / 10) for n in (1, 2, 3)]
    page = tuning.render(facts, rows)
    assert ("rate · logarithmic" in page) == is_log
