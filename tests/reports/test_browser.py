"""The page in a browser: it fits the screen, and asks for nothing."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

from kerasdist.reports import answers
from tests.reports.pages import html_of, numbers

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"
)
# What Chromium asks for itself, whatever the page is.
OWN_HOSTS = re.compile(
    r"(clients\d?|accounts|www|android\.clients|mtalk)\.google\.com"
    r"|(update|optimizationguide-pa|content-autofill|safebrowsing)\.googleapis\.com"
    r"|(redirector|edgedl\.me)\.gvt1\.com"
)
# Measures a page in frames of two widths, and writes what it finds where --dump-dom prints it.
HARNESS = """<!doctype html><link rel="icon" href="data:,"><title>measures</title><pre></pre>
<script>
const found = {};
for (const width of [400, 1280]) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  frame.src = "page.html";
  frame.onload = () => {
    const inner = frame.contentDocument, root = inner.documentElement;
    const style = frame.contentWindow.getComputedStyle(inner.body);
    const text = inner.querySelector(".plot text");
    found[width] = {
      overflow: root.scrollWidth - width,
      sections: [...inner.querySelectorAll("h2")].map(e => e.textContent),
      ink: style.color, ground: style.backgroundColor,
      plots: [...inner.querySelectorAll(".plot")].map(e => e.getBoundingClientRect().width),
      letters: text ? text.getBoundingClientRect().height : null,
      pictures: [...inner.images].map(e => e.naturalWidth),
    };
    document.querySelector("pre").textContent = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"""


class Seen:
    """What a browser asked for, said on its console, and measured."""

    def __init__(self, text, folder, dark=False):
        self.requests = []
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Proxy, text, self.requests)
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            # Every request to anywhere comes to the server above.
            done = subprocess.run(
                [
                    *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                    *("--disable-background-networking", "--disable-component-update"),
                    *("--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr"),
                    *(["--blink-settings=preferredColorScheme=0"] if dark else []),
                    f"--user-data-dir={folder / 'chromium'}",
                    f"--proxy-server=127.0.0.1:{server.server_port}",
                    *("--proxy-bypass-list=<-loopback>", "--virtual-time-budget=10000"),
                    *("--dump-dom", "http://report.test/harness.html"),
                ],
                capture_output=True,
                text=True,
                timeout=120,
            )
        finally:
            server.shutdown()
            server.server_close()
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
        assert found, done.stderr[-2000:]
        self.measures = json.loads(found[1].replace("&lt;", "<").replace("&amp;", "&"))


class Proxy(http.server.BaseHTTPRequestHandler):
    """Serves the page to a browser whose proxy it is, and notes everything else."""

    def __init__(self, text, requests, *args):
        self.pages = {"harness.html": HARNESS, "page.html": text}
        self.requests = requests
        super().__init__(*args)

    def do_GET(self):
        body = self.pages.get(self.path.removeprefix("http://report.test/"))
        host = re.sub(r"^http://([^/]*).*", r"\1", self.path)
        if body is None and not OWN_HOSTS.fullmatch(host):
            self.requests.append(self.path)
        content = (body or "").encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_CONNECT(self):
        if not OWN_HOSTS.fullmatch(self.path.partition(":")[0]):
            self.requests.append(self.path)
        self.send_error(403)

    def log_message(self, *_):
        pass


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
    evaluation["classes"] = [f"a class with a long name {i}" for i in range(answers.MOST_COLUMNS)]
    evaluation["confusion"] = np.full((answers.MOST_COLUMNS,) * 2, 1234).tolist()
    (copy / "evaluation.json").write_text(json.dumps(evaluation))
    seen = Seen(html_of(copy), tmp_path, dark)
    assert seen.console == []
    assert seen.requests == []
    for width, measures in seen.measures.items():
        assert measures["overflow"] <= 0, width
        assert measures["sections"] == [
            "Summary",
            "Loss and metrics",
            "Learning rate and throughput",
            "Confusion matrix",
            "Worst and best examples",
            "Configuration",
            "Environment",
            "Commands",
        ]
        assert len(measures["plots"]) >= 3
        assert all(300 <= size <= 600 for size in measures["plots"]), width
        assert measures["letters"] >= 10
        assert measures["pictures"] == [6] * 16
        assert contrast(measures) > 7
    is_dark = sum(numbers(seen.measures["400"]["ground"])[:3]) < 200
    assert is_dark == dark


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
