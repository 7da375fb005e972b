"""`kerasdist board`: a live page about the runs in a folder, without TensorFlow."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from kerasdist.cli.commands.runs import DEFAULT_FOLDER, folder_of_runs
from kerasdist.cli.options import parse_options
from kerasdist.cli.parser import Option
from kerasdist.errors import KerasdistError
from kerasdist.reports.board.server import DEFAULT_PORT, Board

OPTIONS = {
    "port": Option(
        int | None,
        None,
        "the port to listen on; 0 for any free one",
        hint=f"(default: {DEFAULT_PORT}, or the next free one)",
        expected="a port from 0 to 65535",
        example=str(DEFAULT_PORT),
        valid=lambda value: 0 <= value < 65536,
    )
}
_PROG = "kerasdist board"


def board(argv: list[str]) -> int:
    """`kerasdist board [DIR]`: serves the page until Ctrl-C."""
    names = [word for i, word in enumerate(argv) if _is_name(argv, i)]
    given = [word for i, word in enumerate(argv) if not _is_name(argv, i)]
    is_help = "-h" in given or "--help" in given
    options = parse_options(OPTIONS, given, f"{_PROG} [DIR]" if is_help else _PROG)
    if len(names) > 1:
        raise KerasdistError(
            f"Received the folders {', '.join(map(repr, names))}. Expected one folder. Name a "
            "folder that contains all runs."
        )
    folder = folder_of_runs(Path(names[0]).expanduser()) if names else DEFAULT_FOLDER
    with Board(folder, options["port"]) as server:
        if options["json"]:
            print(json.dumps({"url": server.url, "folder": str(folder)}), flush=True)
        elif not options["quiet"]:
            print(f"board  {server.url}  (runs in {folder}; Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _is_name(argv: list[str], i: int) -> bool:
    """Whether a word is the folder: not an option, and not an option's value."""
    return not argv[i].startswith("-") and not (i and argv[i - 1] == "--port")
