"""A real browser that is driven: Chromium without a window, over a pipe, in plain Python."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"
)
PHONE, DESKTOP = (390, 844), (1280, 900)


class Browser:
    """Chromium, until `close`. Each tab is a `Tab`."""

    def __init__(self, folder):
        from_browser, to_us = os.pipe()
        from_us, to_browser = os.pipe()
        self._read, self._write = from_browser, to_browser

        def connect():  # Chromium reads from 3 and writes to 4.
            # First out of the way: one of them may be 3 or 4 already.
            ours, theirs = (os.dup(fd) for fd in (from_us, to_us))
            for source, fd in ((ours, 3), (theirs, 4)):
                os.dup2(source, fd)
                os.set_inheritable(fd, True)

        self._process = subprocess.Popen(
            [
                *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder / 'chromium'}"),
                "about:blank",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(OSError):
            self._send("Browser.close", {}, None)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _send(self, method, params, session):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return number

    def call(self, method, session=None, **params):
        """Calls a method of the DevTools protocol, and returns its result."""
        number = self._send(method, params, session)
        deadline = time.monotonic() + 60
        while True:
            for message in self._messages(deadline):
                if message.get("id") == number:
                    assert "error" not in message, message["error"]
                    return message["result"]

    def _messages(self, deadline):
        left = deadline - time.monotonic()
        is_there = left > 0 and select.select([self._read], [], [], left)[0]
        assert is_there, "no answer from Chromium"
        content = os.read(self._read, 1 << 20)
        assert content, "Chromium ended"
        *whole, self._rest = (self._rest + content).split(b"\0")
        found = [json.loads(text) for text in whole]
        self.events += [message for message in found if "method" in message]
        return found

    def tab(self, url, size=DESKTOP, *, dark=False, scale=1):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, session, url, size, dark, scale)


class Tab:
    """A page in the browser."""

    def __init__(self, browser, session, url, size, dark, scale):
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(size, scale)
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        # Hidden tabs do not ask for news.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.open(url)

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, size, scale=1):
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 500,
        )  # fmt: skip

    def run(self, script):
        """The value of a JavaScript expression."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script, seconds=20):
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):  # The page is just being replaced.
                if self.run(script):
                    return
            assert time.monotonic() < deadline, f"{script}\n{self.text()[:2000]}"
            time.sleep(0.05)

    def text(self):
        return self.run("document.body.innerText")

    def overflow(self):
        """By how many pixels the page is wider than the window."""
        return self.run("document.documentElement.scrollWidth - innerWidth")

    def point_at(self, selector):
        """Moves the mouse to the middle of an element."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{element}.scrollIntoView({{block: 'center'}})")
        # The page is told about the scrolling with the next frame.
        self.run("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
        x, y = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self):
        """What the page said on its console, and what its policy refused."""
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] in kinds and event.get("sessionId") == self._session
        ]

    def requests(self):
        """The addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event["method"] == "Network.requestWillBeSent"
            and event.get("sessionId") == self._session
        ]

    def screenshot(self, height=None):
        """A PNG of the window, or of the page from its top to `height`."""
        more = {}
        if height is not None:
            width = self.run("innerWidth")
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            more = {"clip": clip, "captureBeyondViewport": True}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"])
