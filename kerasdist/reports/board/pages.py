"""The pages of the board: the list of runs, one run, and a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from kerasdist.reports import comparison, html, metric_plots, page
from kerasdist.reports.board import run_table
from kerasdist.reports.board.run_table import badge, progress, query_of
from kerasdist.reports.board.watched_runs import Watched, WatchedRuns

Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Page:
    """A page of the board.

    Attributes:
        title: Its title.
        parts: The parts of it that change, in HTML, by name.
        above: What does not change, above the parts.
        is_missing: Whether what was asked for does not exist.
    """

    title: str
    parts: Mapping[str, str]
    above: str = ""
    is_missing: bool = False

    @property
    def content(self) -> str:
        """The parts. The page's script replaces those that changed."""
        return "\n".join(
            f'<div data-part="{escape(name)}">\n{text}\n</div>' for name, text in self.parts.items()
        )


def whole(shown: Page) -> str:
    """The HTML of a page with its frame."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without scripts, the page is loaded again instead.
        '<noscript><meta http-equiv="refresh" content="5"></noscript>\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(shown.title)}</title>\n'
        f"<style>{html.style()}{html.asset('board.css')}</style>\n</head>\n<body>\n<main>\n"
        f'{shown.above}\n<p id="lost" class="note" hidden>kerasdist board has stopped. These are '
        "the last values.</p>\n"
        f'<div id="content">\n{shown.content}\n</div>\n</main>\n'
        f"<script>{html.asset('hover.js')}</script>\n<script>{html.asset('board.js')}</script>\n"
        "</body>\n</html>\n"
    )


def missing(reason: str) -> Page:
    """A page for what does not exist, or not any more."""
    back = '<p><a href="/">All runs</a></p>'
    return Page(
        "kerasdist board", {"missing": f'<p class="note">{escape(reason)}</p>{back}'}, "", True
    )


def runs_list(runs: WatchedRuns, query: Query) -> Page:
    """All runs, with their progress, as a table to sort, filter and choose from."""
    found = list(runs.look().values())
    words, sort = _first(query, "q"), _first(query, "sort") or run_table.DEFAULT_SORT
    shows_all = "all" in query
    chosen = [each for each in found if run_table.matches(each, words)]
    counts = _counts(found)
    search = (
        f'<input type="search" name="q" value="{escape(words)}" placeholder="Filter by name, '
        'status or metric" aria-label="Filter the runs">'
    )
    hidden = f'<input type="hidden" name="sort" value="{escape(sort)}">' if "sort" in query else ""
    above = (
        f'<header><h1>Runs</h1><p class="path soft">{escape(str(runs.folder))}</p></header>'
        f'<form id="search" method="get" action="/">{search}{hidden}</form>'
    )
    if not found:
        table = _empty(runs)
    elif not chosen:
        table = f"<p>No run matches “{escape(words)}”.</p>"
    else:
        table = run_table.table(chosen, sort=sort, words=words, shows_all=shows_all)
    return Page("Runs: kerasdist board", {"counts": counts, "runs": table}, above)


def _first(query: Query, name: str) -> str:
    return next(iter(query.get(name, ())), "")


def _counts(found: Sequence[Watched]) -> str:
    by_status: dict[str, int] = {}
    for each in found:
        by_status[each.run.status] = by_status.get(each.run.status, 0) + 1
    texts = [
        f'<span class="{escape(status)}">{count} {escape(run_table.status_name(status))}</span>'
        for status, count in sorted(by_status.items(), key=_by_interest)
    ]
    return f'<p class="counts">{" · ".join(texts)}</p>'


def _by_interest(item: tuple[str, int]) -> tuple[bool, str]:
    return item[0] != "running", item[0]


def _empty(runs: WatchedRuns) -> str:
    what = "has no runs yet" if runs.folder.is_dir() else "does not exist yet"
    return (
        f"<p>The folder {escape(repr(str(runs.folder)))} {what}. Start one, for example with "
        f"<code>kerasdist fit cifar10</code>: it appears here by itself.</p>"
    )


def one_run(runs: WatchedRuns, query: Query) -> Page:
    """One run, with its curves as they grow."""
    watched = runs.look().get(_first(query, "run"))
    if watched is None:
        return missing("This run is not in the folder, or not any more.")
    run, log = watched.run, watched.log
    link = query_of(run=watched.name)
    report = f'<a class="button" href="/report?{link}">Report</a>' if watched.has_report else ""
    head = (
        f"<header><h1>{escape(watched.name)}</h1>{badge(run)}{comparison.made_up(run)}"
        f'<span class="grow"></span>{report}</header>'
        f'<p class="soft">{escape(run.name)} · {progress(watched)}</p>'
    )
    if run.result.get("error") and run.status not in ("finished", "running"):
        head += f'<p class="note">{escape(str(run.result["error"]))}</p>'
    plots = html.grid(metric_plots.of_metrics(log, run.metric_names, first=run.headline))
    waiting = "<p>No value is logged yet.</p>" if run.status == "running" else ""
    parts = {
        "head": head,
        "summary": page.headline(run) + html.tiles(page.summary(run)),
        "plots": html.section("Loss and metrics", plots or waiting, _skipped([watched])),
        "speed": html.section(
            "Learning rate and throughput", html.grid(metric_plots.of_speed(log))
        ),
        "settings": html.section("Settings", html.settings(comparison.settings_of(run))),
    }
    above = '<nav><a href="/">All runs</a></nav>'
    return Page(f"{watched.name}: kerasdist board", parts, above)


def comparison_page(runs: WatchedRuns, query: Query) -> Page:
    """Several runs side by side."""
    there = runs.look()
    found = [there[name] for name in dict.fromkeys(query.get("run", ())) if name in there]
    if not found:
        return missing(
            "None of these runs is in the folder, or not any more. Choose runs to compare."
        )
    left_out = len(found) - comparison.MOST_RUNS
    found = found[: comparison.MOST_RUNS]
    sections = comparison.sections(
        [each.name for each in found], [each.run for each in found], [each.log for each in found]
    )
    note = _skipped(found)
    if left_out > 0:
        note += (
            f'<p class="note">{left_out} more runs are not shown: their lines would look alike.</p>'
        )
    head = f"<header><h1>{len(found)} run{'s' if len(found) > 1 else ''}</h1></header>{note}"
    names = ("overview", "metrics", "curves", "differences")
    above = '<nav><a href="/">All runs</a></nav>'
    parts = {"head": head, **dict(zip(names, sections, strict=True))}
    return Page(f"{len(found)} runs: kerasdist board", parts, above)


def _skipped(found: Iterable[Watched]) -> str:
    """Says that a long log was not read line by line, and what is still to be read."""
    every = max((each.log.every for each in found), default=1)
    texts = []
    if any(each.log.num_pending for each in found):
        texts.append("Still reading the log …")
    if every > 1:
        texts.append(f"The log is long: about one of {every} logged steps is drawn.")
    return f'<p class="soft">{" ".join(texts)}</p>' * bool(texts)
