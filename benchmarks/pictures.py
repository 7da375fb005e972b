"""Makes the pictures of reports, of the board and of a notebook in docs/images, with Chromium.

`python benchmarks/pictures.py RUNS`: RUNS is a folder of runs; the picture of a report is of its
run `cifar10/0001`. Without RUNS, only the picture of the notebook is made.

The pictures of the README were made with these runs, on real data:

    kerasdist fit cifar10 --data-dir DATA                               cifar10/0001
    kerasdist fit audio --data-dir DATA --epochs 4                      audio/0001
    kerasdist fit audio --data-dir DATA --epochs 4 --learning-rate 0.0003, killed   audio/0002
    kerasdist fit cifar10 --source synthetic --epochs 3                 cifar10/0002
    kerasdist fit audio --data-dir DATA --epochs 8 --seed 1             audio/0003, while it ran
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kerasdist.reports.board.server import Board  # noqa: E402
from tests.reports.devtools import DESKTOP, PHONE, Browser  # noqa: E402

IMAGES = ROOT / "docs/images"
# Larger pictures make the README slow to open.
MOST_BYTES = 300_000
_NOTEBOOK_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 12px 24px; width: 1080px; }
.cell { display: grid; grid-template-columns: 56px 1fr; }
.number { color: #888; font: 13px monospace; padding-top: 7px; }
pre { font: 13px/1.35 monospace; margin: 4px 0; padding: 6px 8px; white-space: pre-wrap; }
.in { background: #f5f5f5; border: 1px solid #ddd; }
img { max-width: 100%; }
"""


def board_pictures(runs: Path, browser: Browser) -> None:
    """The list on three screens, a run, and a comparison."""
    with Board(runs, port=0) as board:
        threading.Thread(target=board.serve_forever, daemon=True).start()
        names = list(board.runs.look())
        running = [name for name, each in board.runs.look().items() if each.run.status == "running"]
        one = (running or names)[0]
        audio = [name for name in names if name.startswith("audio/")] or names
        several = "&".join(f"run={name}" for name in audio)
        for name, path, size, is_dark, height in (
            ("board", "/", DESKTOP, False, 520),
            ("board-dark", f"/run?run={one}", DESKTOP, True, 860),
            ("board-phone", "/", PHONE, False, 844),
            ("board-compare", f"/compare?{several}", DESKTOP, False, 1100),
        ):
            tab = browser.tab(board.url + path, size, dark=is_dark, scale=2 if size == PHONE else 1)
            time.sleep(1)
            save(name, tab.screenshot(height))
        board.shutdown()


def report_pictures(run: Path, browser: Browser) -> None:
    """The summary of a report, and its classes and examples."""
    tab = browser.tab((run / "report.html").as_uri(), DESKTOP)
    # The folder of this machine says nothing to readers.
    tab.run("document.querySelector('header .path').textContent = 'runs/cifar10/0001'")
    save("report", tab.screenshot(tab.run(_bottom("loss-and-metrics"))))
    tab.run(
        "document.querySelectorAll('main > *').forEach(each => {"
        "  each.hidden = !['classes', 'worst-and-best-examples', 'a-training-batch']"
        "    .includes(each.id); })"
    )
    save("report-examples", tab.screenshot(tab.run(_bottom("a-training-batch"))))


def _bottom(section: str) -> str:
    return f"Math.ceil(document.getElementById('{section}').getBoundingClientRect().bottom) + 16"


def notebook_picture(browser: Browser) -> None:
    """The cells of the quickstart that train and plot, as they are stored."""
    notebook = json.loads((ROOT / "notebooks/quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["id"] in ("fit", "plot")]
    body = "".join(map(_cell, cells))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "notebook.html"
        page.write_text(
            f"<!doctype html><meta charset='utf-8'><style>{_NOTEBOOK_STYLE}</style>{body}"
        )
        tab = browser.tab(page.as_uri(), (1160, 900))
        save("notebook", tab.screenshot(tab.run("document.body.scrollHeight") + 24))


def _cell(cell: dict) -> str:
    shown = f'<pre class="in">{html.escape("".join(cell["source"]))}</pre>'
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "image/png" in data:
            shown += f'<img src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        else:
            text = "".join(output.get("text") or data.get("text/plain", ""))
            shown += f"<pre style='padding-bottom: 0'>{html.escape(text.rstrip())}</pre>"
    number = f'<div class="number">[{cell["execution_count"]}]:</div>'
    return f'<div class="cell">{number}<div>{shown}</div></div>'


def save(name: str, content: bytes) -> None:
    """Writes a picture, unless it is too large."""
    if len(content) > MOST_BYTES:
        raise SystemExit(f"{name}.png would have {len(content):,} bytes, more than {MOST_BYTES:,}")
    (IMAGES / f"{name}.png").write_bytes(content)
    print(f"{name}.png: {len(content):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="?", help="a folder of runs")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        notebook_picture(browser)
        if runs is not None:
            report_pictures(runs / "cifar10/0001", browser)
            board_pictures(runs, browser)


if __name__ == "__main__":
    main()
