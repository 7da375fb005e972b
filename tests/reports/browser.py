"""A page in Chromium: what it asks for, says on its console, and measures."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest

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
