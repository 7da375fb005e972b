"""A board that serves a folder of runs, without a process of its own."""

import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

import pytest

from kerasdist.reports.board import watched_runs
from kerasdist.reports.board.server import Board


@dataclass(frozen=True)
class Answer:
    """What the board answered."""

    status: int
    headers: dict
    text: str


class Served:
    """A board, and a client of it."""

    def __init__(self, board):
        self.board, self.url = board, board.url

    def get(self, path, host=None, method="GET", **headers):
        headers |= {"Host": host} if host is not None else {}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read().decode())

    def of(self, page, *names, **headers):
        """A page about runs."""
        query = urllib.parse.urlencode([("run", name) for name in names])
        return self.get(f"/{page}?{query}", **headers)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A board of the folder `runs`, which looks again at each request."""
    monkeypatch.setattr(watched_runs, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(watched_runs, "_SEARCH_SECONDS", 0.0)
    with Board(tmp_path / "runs", port=0) as board:
        thread = threading.Thread(target=board.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Served(board)
        board.shutdown()
        thread.join()
