"""Makes the pictures of reports, of the board and of a notebook in docs/images, with Chromium.

`python benchmarks/pictures.py` trains the small runs that the board shows, on made-up data, in
about a minute. With `--reports SOUNDS IMAGES`, it also makes pictures of the reports of two runs.
Those in docs/images are of `kerasdist fit audio --data-dir DATA --epochs 4` and
`kerasdist fit cifar10 --data-dir DATA --steps 60`.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kerasdist.reports.board.server import Board  # noqa: E402
from tests.reports.devtools import DESKTOP, PHONE, Browser  # noqa: E402

IMAGES = ROOT / "docs/images"
# Larger pictures make the README slow to open.
MOST_BYTES = 300_000
# Customers who leave, from five made-up numbers each. With `pause`, an epoch takes so many seconds.
_RECIPE = {
    "config": """
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    units: int = 32
    learning_rate: float = 0.002
    pause: float = 0.0
    source: str = "files"
    batch_size: int = 64
    epochs: int = 10
""",
    "data": """
import numpy as np

CLASS_NAMES = ("stays", "leaves")


def find_source(config):
    return config.source


def build_data(config, split):
    random = np.random.default_rng(split == "train")
    x = random.normal(size=(3000, 5)).astype("float32")
    logit = 3 * x[:, 0] - 4 * x[:, 1] * (x[:, 2] > 0) + 2 * np.sin(3 * x[:, 3]) - 1
    noise = 0.0 if config.source == "synthetic" else 1.0
    label = logit + noise * random.logistic(size=3000) > 0
    return {"customer": x, "label": label.astype("float32")[:, None]}
""",
    "model": """
import time

import keras

import kerasdist


class Churn(kerasdist.Model):
    features = "customer"
    targets = "label"

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.hidden = [keras.layers.Dense(config.units, "relu") for _ in range(2)]
        self.out = keras.layers.Dense(1, "sigmoid")

    def call(self, customer):
        for layer in self.hidden:
            customer = layer(customer)
        return self.out(customer)

    def defaults(self):
        optimizer = keras.optimizers.Adam(self.config.learning_rate)
        return dict(optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy"])


def build_model(config):
    return Churn(config)


def build_callbacks(config):
    pause = lambda *_: time.sleep(config.pause)
    return [keras.callbacks.LambdaCallback(on_epoch_end=pause)]
""",
}
_NOTEBOOK_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 12px 24px; width: 1080px; }
.cell { display: grid; grid-template-columns: 56px 1fr; }
.number { color: #888; font: 13px monospace; padding-top: 7px; }
pre { font: 13px/1.35 monospace; margin: 4px 0; padding: 6px 8px; white-space: pre-wrap; }
.in { background: #f5f5f5; border: 1px solid #ddd; }
img { max-width: 100%; }
"""


def make_runs(folder: Path) -> None:
    """Trains runs that ended in several ways."""
    recipe = folder / "churn"
    recipe.mkdir()
    for name, content in _RECIPE.items():
        (recipe / f"{name}.py").write_text(content)
    for options in (
        ["--units", "32"],
        ["--units", "64", "--learning-rate", "0.004"],
        ["--units", "8", "--learning-rate", "0.0005"],
        ["--source", "synthetic"],
    ):
        _train(folder, options).wait()
    killed = _train(folder, ["--units", "16", "--pause", "2"])
    _wait_for_epoch(folder / "runs/churn/0005", 4)
    killed.kill()
    killed.wait()


def _train(folder: Path, options: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "kerasdist", "fit", "churn", "--no-resume", "--quiet", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _wait_for_epoch(run: Path, epoch: int) -> None:
    while f'"epoch": {epoch},' not in _text(run / "metrics.jsonl"):
        time.sleep(0.2)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


@contextlib.contextmanager
def training(folder: Path) -> Iterator[None]:
    """A run that trains inside the block."""
    process = _train(folder, ["--units", "128", "--pause", "4", "--epochs", "24"])
    try:
        _wait_for_epoch(folder / "runs/churn/0006", 6)
        yield
    finally:
        process.terminate()
        process.wait()


def board_pictures(runs: Path, browser: Browser) -> None:
    """The list on three screens, a run, and a comparison."""
    with Board(runs, port=0) as board:
        threading.Thread(target=board.serve_forever, daemon=True).start()
        several = "&".join(f"run=churn/{number:04d}" for number in (1, 2, 3, 4))
        for name, path, size, is_dark, height in (
            ("board", "/", DESKTOP, False, 620),
            ("board-dark", "/run?run=churn/0006", DESKTOP, True, 860),
            ("board-phone", "/", PHONE, False, 760),
            ("board-compare", f"/compare?{several}", DESKTOP, False, 1100),
        ):
            tab = browser.tab(board.url + path, size, dark=is_dark, scale=2 if size == PHONE else 1)
            time.sleep(1)
            # The folder of this machine says nothing to readers.
            tab.run("(e => { if (e) e.textContent = 'runs'; })(document.querySelector('.path'))")
            save(name, tab.screenshot(height))
        board.shutdown()


def report_pictures(sounds: Path, images: Path, browser: Browser) -> None:
    """The upper half of a report, and the classes and examples of another one."""
    tab = browser.tab((sounds / "report.html").as_uri(), DESKTOP)
    tab.run("document.querySelector('header .path').textContent = 'runs/audio/0001'")
    save("report", tab.screenshot(tab.run(_bottom("loss-and-metrics"))))
    tab = browser.tab((images / "report.html").as_uri(), DESKTOP)
    for name, sections in (
        ("report-examples", ["classes", "worst-and-best-examples"]),
        ("report-batch", ["a-training-batch"]),
    ):
        tab.run(
            "document.querySelectorAll('main > *').forEach(each => {"
            f"  each.style.display = {sections}.includes(each.id) ? '' : 'none'; }})"
        )
        save(name, tab.screenshot(tab.run(_bottom(sections[-1]))))


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
    parser.add_argument("--reports", type=Path, nargs=2, metavar="RUN", help="of which runs")
    reports = parser.parse_args().reports
    with tempfile.TemporaryDirectory() as work, Browser(Path(work)) as browser:
        notebook_picture(browser)
        if reports is not None:
            report_pictures(*reports, browser)
        make_runs(Path(work))
        with training(Path(work)):
            board_pictures(Path(work) / "runs", browser)


if __name__ == "__main__":
    main()
