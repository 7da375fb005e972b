"""The table of runs on the board: order, progress and small curves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import urlencode

from kerasdist.reports import comparison, page
from kerasdist.reports.board.watched_runs import Watched
from kerasdist.reports.plots import Point
from kerasdist.runs.reading import Run
from kerasdist.runs.results.direction import is_higher_better
from kerasdist.runs.results.headline import in_words

DEFAULT_SORT = "started"
# More rows are shown on demand.
MOST_ROWS = 200
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 96, 24, 48
# `unfinished`: no process trains the run, and there is no result.json that says how it ended.
_STATUS_NAMES = {"unfinished": "stopped"}
_COLUMNS = (
    ("run", "name", "name"),
    ("status", "status", ""),
    ("progress", "", ""),
    ("last value", "value", ""),
    ("curve", "", "wide"),
    ("examples/s", "", "wide"),
    ("devices", "", "wide"),
    ("started", "started", "wide"),
    ("updated", "updated", "wide"),
)


def query_of(**fields: str | int) -> str:
    """The part of an address after its `?`. A folder's name need not be UTF-8."""
    return urlencode(fields, errors="surrogateescape")


def status_name(status: str) -> str:
    """A status as the board says it: a run whose process was killed is stopped."""
    return _STATUS_NAMES.get(status, status)


def badge(run: Run) -> str:
    """The status of a run."""
    why = "no process trains it, and it has not ended" * (run.status == "unfinished")
    return (
        f'<span class="badge {escape(run.status)}" title="{why}">'
        f"{escape(status_name(run.status))}</span>"
    )


def matches(watched: Watched, words: str) -> bool:
    """Whether a run has every word of a search in its name, status, dataset or headline."""
    run = watched.run
    texts = (watched.name, run.name, status_name(run.status), run.dataset, run.headline)
    text = " ".join(str(each) for each in texts).lower()
    return all(word in text for word in words.lower().split())


def table(runs: Sequence[Watched], *, sort: str, words: str, shows_all: bool) -> str:
    """The runs to choose from, in the order of `sort`."""
    ordered = in_order(runs, sort)
    shown = ordered if shows_all else ordered[:MOST_ROWS]
    is_mixed = len({each.run.is_synthetic for each in runs}) > 1
    note = ""
    if sort == "value" and is_mixed:
        note = (
            '<p class="note">Runs on synthetic data are not ranked against the others: they come '
            "last.</p>"
        )
    head = "".join(_head(title, key, kind, sort, words) for title, key, kind in _COLUMNS)
    rows = "".join(_row(each) for each in shown)
    rest = ""
    if len(shown) < len(ordered):
        query = query_of(sort=sort, q=words, all=1)
        rest = f'<p><a href="/?{escape(query)}">Show all {len(ordered):,} runs</a></p>'
    return (
        f'{note}<form method="get" action="/compare" id="choice"><div class="scroll">'
        f'<table class="runs"><thead><tr><th class="box"></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{rest}"
        '<p class="act"><button>Compare the chosen runs</button></p></form>'
    )


def in_order(runs: Sequence[Watched], sort: str) -> list[Watched]:
    """The runs sorted by a column; by value, those on synthetic data come last.

    Values of different metrics cannot be compared, so runs with the same metric stand together.
    """
    by_start = sorted(runs, key=_started, reverse=True)
    if sort == "name":
        return sorted(by_start, key=lambda each: each.name)
    if sort == "status":
        return sorted(by_start, key=lambda each: (each.run.status != "running", each.run.status))
    if sort == "updated":
        return sorted(by_start, key=lambda each: -each.updated)
    return sorted(by_start, key=_rank) if sort == "value" else by_start


def _started(watched: Watched) -> tuple[str, str]:
    return watched.run.started or "", watched.name


def _rank(watched: Watched) -> tuple[bool, bool, str, float]:
    run, name = watched.run, watched.run.headline
    value = run.last(name) if name else None
    if name is None or value is None:
        return run.is_synthetic, True, "", 0.0
    is_higher = is_higher_better(name, run.known_directions)
    return run.is_synthetic, False, name, -value if is_higher else value


def _head(title: str, key: str, kind: str, sort: str, words: str) -> str:
    if not key:
        return f'<th class="{kind}">{escape(title)}</th>'
    query = query_of(sort=key, **({"q": words} if words else {}))
    mark = ' aria-current="true"' * (sort == key)
    return f'<th class="{kind}"><a href="/?{escape(query)}"{mark}>{escape(title)}</a></th>'


def _row(watched: Watched) -> str:
    run = watched.run
    link = escape(query_of(run=watched.name))
    name = escape(watched.name)
    report = f'· <a href="/report?{link}">report</a>' if watched.has_report else ""
    rate = "–" if run.rate is None else f"{run.rate:,.0f}"
    started = run.started_here or "–"
    devices = ", ".join(run.devices[:2]) or "–"
    if len(run.devices) > 2:
        devices += f" and {len(run.devices) - 2} more"
    return (
        f'<tr><td class="box"><input type="checkbox" name="run" value="{name}" '
        f'aria-label="Choose {name}"></td>'
        f'<td class="name"><a href="/run?{link}">{name}</a>{comparison.made_up(run)}'
        f'<small class="soft">{escape(run.name)} {report}</small></td>'
        f'<td class="status">{badge(run)}</td><td class="progress">{progress(watched)}</td>'
        f'<td class="value">{_value(run)}</td>'
        f'<td class="wide">{_spark(watched)}</td><td class="wide">{rate}</td>'
        f'<td class="wide">{escape(devices)}</td><td class="wide">{escape(started)}</td>'
        f'<td class="wide"><time data-time="{watched.updated:.0f}"></time></td></tr>'
    )


def progress(watched: Watched) -> str:
    """How far a run is: `epoch 3 of 10`, with a bar while it is known where it ends."""
    run = watched.run
    steps, epochs = run.options.get("steps"), run.options.get("epochs")
    done, planned, unit = run.num_epochs or 0, epochs, "epoch"
    if isinstance(steps, int) and not isinstance(steps, bool):
        done, planned, unit = run.num_steps, steps, "step"
    is_known = isinstance(planned, int) and planned >= done > 0
    text = f"{unit} {done:,}" + (f" of {planned:,}" if is_known else "")
    if not done:
        text = f"step {run.num_steps:,}" if run.num_steps else "–"
    if run.status != "running":
        return text
    text = "starting" if text == "–" else text
    if not isinstance(planned, int) or not planned:
        return text
    return f'{text}<progress max="{planned}" value="{min(done, planned)}"></progress>'


def _value(run: Run) -> str:
    """The headline as the run's report has it: of the trained model, not of the best epoch."""
    name = run.headline
    value = run.last(name) if name else None
    if name is None or value is None:
        return "–"
    return (
        f"<b>{escape(page.said(name, value))}</b>"
        f'<small class="soft">{escape(in_words(name))}</small>'
    )


def _spark(watched: Watched) -> str:
    """The headline's curve, as small as a word."""
    name = watched.run.headline
    points, _ = watched.log.by_epoch(name) if name else ((), ())
    if not name or len(points) < 2:
        points, _ = watched.log.by_step("loss")
    known = [(x, y) for x, y in _fewer(points) if y is not None]
    if len(known) < 2:
        return ""
    low, high = min(y for _, y in known), max(y for _, y in known)
    first, last = known[0][0], known[-1][0]
    places = [
        f"{(x - first) / ((last - first) or 1) * (_SPARK_WIDTH - 4) + 2:.1f} "
        f"{_SPARK_HEIGHT - 3 - (y - low) / ((high - low) or 1) * (_SPARK_HEIGHT - 6):.1f}"
        for x, y in known
    ]
    return (
        f'<svg class="spark c0" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" '
        f'width="{_SPARK_WIDTH}" height="{_SPARK_HEIGHT}" aria-hidden="true">'
        f'<path class="line" d="M{"L".join(places)}"/></svg>'
    )


def _fewer(points: Sequence[Point]) -> Sequence[Point]:
    every = -(-len(points) // _SPARK_POINTS)
    return [*points[:-1:every], points[-1]] if every > 1 else points
