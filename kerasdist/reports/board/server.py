"""Serves the board to browsers on this machine: read-only, on the loopback interface."""

from __future__ import annotations

import hashlib
import http.server
import os
import socketserver
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kerasdist.errors import KerasdistError, first_line
from kerasdist.reports import html
from kerasdist.reports.board import pages
from kerasdist.reports.board.pages import Page, Query
from kerasdist.reports.board.watched_runs import WatchedRuns
from kerasdist.runs.file_names import REPORT

HOST = "127.0.0.1"
DEFAULT_PORT = 6180
# If the default port is taken, for example by another board, the next ones are tried.
_MORE_PORTS = 20
# Names under which a browser reaches this machine. Another name in a request means that a foreign
# page had its own name point here, to read the board through the browser (DNS rebinding).
_OWN_NAMES = {HOST, "localhost"}
# A header of the page's own script: it wants the part of the page that changes.
PART_HEADER = "X-Kerasdist-Part"
PENDING_HEADER = "X-Kerasdist-Pending"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_MOST_REPORT_BYTES = 1 << 26


class Board(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """An HTTP server that shows the runs in a folder.

    Args:
        folder: The folder with runs.
        port: The port; None for the first free one from `DEFAULT_PORT` on.

    Example:
        >>> import tempfile
        >>> with Board(Path(tempfile.mkdtemp()), port=0) as board:
        ...     board.url.startswith("http://127.0.0.1:")
        True
    """

    daemon_threads = True
    # Connections that a browser keeps open do not delay the end.
    block_on_close = False
    # A port that an ended board has just left can be used at once.
    allow_reuse_address = True

    def __init__(self, folder: Path, port: int | None = None):
        self.runs = WatchedRuns(folder)
        ports = range(DEFAULT_PORT, DEFAULT_PORT + _MORE_PORTS) if port is None else [port]
        for number in ports:
            try:
                super().__init__((HOST, number), _Handler)
            except OSError as error:
                reason = error.strerror
                continue
            return
        given = f"`--port {port}`" if port is not None else f"the ports from {DEFAULT_PORT} on"
        raise KerasdistError(
            f"Received {given}, which cannot be used: {reason}. Expected a free port. Choose "
            "another one, or `--port 0` for any free port."
        )

    @property
    def url(self) -> str:
        """Where to open it."""
        return f"http://{HOST}:{self.server_port}"

    def server_bind(self) -> None:
        # HTTPServer would look up the machine's name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]


_PAGES: dict[str, Callable[[WatchedRuns, Query], Page]] = {
    "/": pages.runs_list,
    "/run": pages.one_run,
    "/compare": pages.comparison_page,
}


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request. Paths are looked up, never opened: only runs that were found are shown."""

    server: Board
    protocol_version = "HTTP/1.1"
    # A connection without a request does not keep its thread for ever.
    timeout = 60

    def do_GET(self) -> None:
        if _host_of(self.headers.get("Host", "")) not in _OWN_NAMES:
            self._send(
                HTTPStatus.FORBIDDEN,
                f"This board answers on this machine only. Open {self.server.url}\n".encode(),
                "text/plain",
            )
            return
        try:
            address = urlsplit(self.path)
            # A folder's name need not be UTF-8.
            query = parse_qs(address.query, errors="surrogateescape", max_num_fields=1000)
        except ValueError:
            self._send_page(pages.missing("This address cannot be read."))
            return
        if address.path == "/report":
            self._send_report(query)
        elif address.path in _PAGES:
            self._send_page(self._made(_PAGES[address.path], query))
        else:
            self._send_page(pages.missing("There is no such page."))

    do_HEAD = do_GET

    def _made(self, make: Callable[[WatchedRuns, Query], Page], query: Query) -> Page:
        """A page. Files can hold anything, and the board goes on whatever they hold."""
        try:
            with self.server.runs.guard:
                return make(self.server.runs, query)
        except Exception as error:  # noqa: BLE001 - the browser shows it
            reason = f"{type(error).__name__}: {first_line(error)}"
            return pages.missing(f"This page cannot be shown. {reason}")

    def _send_page(self, page: Page) -> None:
        is_part = PART_HEADER in self.headers
        text = page.content if is_part else pages.whole(page)
        scripts = (html.asset("hover.js"), html.asset("board.js"))
        policy = html.policy(*scripts) + (
            "; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        self._send(
            HTTPStatus.NOT_FOUND if page.is_missing else HTTPStatus.OK,
            text.encode("utf-8", errors="replace"),
            "text/html",
            {
                "Content-Security-Policy": policy,
                PENDING_HEADER: str(self.server.runs.num_pending),
            },
        )

    def _send_report(self, query: Query) -> None:
        watched = self.server.runs.look().get(next(iter(query.get("run", ())), ""))
        content = None
        if watched is not None and watched.has_report:
            content = _read(watched.run.path / REPORT)
        if content is None:
            self._send_page(pages.missing("This run has no report yet."))
            return
        # A run's folder can come from anybody. Its report may not read the other pages here: it
        # runs as a foreign page, and no script but kerasdist's own.
        policy = f"sandbox allow-scripts; {html.policy(html.asset('hover.js'))}"
        self._send(HTTPStatus.OK, content, "text/html", {"Content-Security-Policy": policy})

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str, more: dict[str, str] | None = None
    ) -> None:
        mark = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        is_known = status == HTTPStatus.OK and self.headers.get("If-None-Match") == mark
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else status)
        content = b"" if is_known else content
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "ETag": mark,
            **_HEADERS,
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError):  # The browser closed the page.
            self.close_connection = True

    def version_string(self) -> str:
        return "kerasdist"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def _host_of(header: str) -> str:
    """The name in a Host header, without the port, which differs behind an SSH tunnel."""
    return header.rpartition(":")[0] if ":" in header else header


def _read(path: Path) -> bytes | None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            content = file.read(_MOST_REPORT_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= _MOST_REPORT_BYTES else None
