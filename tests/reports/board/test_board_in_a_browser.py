"""The board in a real browser: it follows runs by itself, on a desktop and on a phone."""

import json
import shutil
import time

import pytest

from kerasdist.reports.live import write_report
from kerasdist.runs.lock import RunLock
from tests import run_folders
from tests.reports.devtools import DESKTOP, PHONE, Browser, needs_chromium

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    run_folders.finished(folder / "cifar10/0001", num_epochs=4)
    run_folders.finished(folder / ("a-very-long-name-" * 6) / "0001")
    run_folders.write(folder / "cifar10/0002", logged=run_folders.lines(2))
    return folder


def append(folder, **fields):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "epoch", **fields}) + "\n")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_pages_fit_the_screen(browser, served, runs, size, dark):
    for path in ("/", "/run?run=cifar10/0001", "/compare?run=cifar10/0001&run=cifar10/0002"):
        tab = browser.tab(served.url + path, size, dark=dark)
        assert tab.overflow() <= 0, path
        assert tab.complaints() == []
        ground = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(22, 22, 20)") == dark
        assert all(r.startswith((served.url, "data:", "about:")) for r in tab.requests())


def test_a_running_run_is_followed_until_it_is_killed(browser, served, runs):
    folder = runs / "cifar10/0002"
    lock = RunLock(folder)
    lock.acquire()
    tab, second = (browser.tab(f"{served.url}/run?run=cifar10/0002") for _ in range(2))
    assert "running" in tab.text()
    append(folder, step=9, epoch=3, accuracy=0.6, val_accuracy=0.8125)
    for each in (tab, second):
        each.wait("document.body.innerText.includes('81.2%')")
    drawn = tab.run("document.querySelectorAll('figure .line').length")
    assert drawn >= 4
    lock.release()  # As the kernel does when the process is killed.
    tab.wait("document.querySelector('.badge').textContent === 'stopped'")
    shutil.rmtree(folder)
    tab.wait("document.body.innerText.includes('not any more')")
    assert [c for c in tab.complaints() if "exceptionDetails" in c] == []


def test_the_list_follows_and_keeps_what_was_chosen(browser, served, runs):
    tab = browser.tab(f"{served.url}/")
    assert tab.run("document.querySelector('#choice button').disabled")
    tab.run("document.querySelector('input[value=\"cifar10/0001\"]').click()")
    run_folders.finished(runs / "new/0001")
    tab.wait("document.body.innerText.includes('new/0001')")
    chosen = "[...document.querySelectorAll('input:checked')].map(e => e.value)"
    assert tab.run(chosen) == ["cifar10/0001"]
    tab.run("document.querySelector('input[value=\"new/0001\"]').click()")
    assert tab.run("document.querySelector('#choice button').textContent") == "Compare 2 runs"
    tab.run("document.querySelector('#choice button').click()")
    tab.wait("location.pathname === '/compare'")
    tab.wait("document.querySelectorAll('figure').length >= 4")
    assert "Settings that differ" in tab.text()


def test_the_list_is_filtered_while_one_types(browser, served, runs):
    tab = browser.tab(f"{served.url}/")
    tab.run("document.querySelector('[name=q]').focus()")
    tab.call("Input.insertText", text="0002")
    tab.wait("document.querySelectorAll('.runs tbody tr').length === 1")
    assert tab.run("document.activeElement.name") == "q"
    assert "q=0002" in tab.run("location.href")


def test_values_are_shown_under_the_pointer(browser, served, runs):
    tab = browser.tab(f"{served.url}/run?run=cifar10/0001")
    tab.point_at(".plot")
    tab.wait("!document.querySelector('.hover').hidden")
    shown = tab.run("document.querySelector('.hover').innerText").split("\n")
    assert shown[0].startswith("step ")
    step = int(shown[0].removeprefix("step "))
    assert step in (4, 6)
    assert shown[1] == f"training {1 - 1 / step:.5g}"
    assert tab.run("document.querySelectorAll('.plot .cursor').length") == 1


def test_a_report_opens_and_cannot_read_the_board(browser, served, runs):
    folder = runs / "cifar10/0001"
    assert write_report(folder)
    tab = browser.tab(f"{served.url}/run?run=cifar10/0001")
    tab.run("document.querySelector('a.button').click()")
    tab.wait("location.pathname === '/report' && document.querySelectorAll('.plot').length > 2")
    tab.point_at(".plot")  # Its own script runs.
    tab.wait("!document.querySelector('.hover').hidden")
    assert tab.run("origin") == "null"
    page = (folder / "report.html").read_text()
    bad = "<script>document.title = 'read'; fetch('/')</script>"
    (folder / "report.html").write_text(page.replace("</main>", f"{bad}</main>"))
    tab.open(f"{served.url}/report?run=cifar10/0001")
    time.sleep(0.2)
    assert tab.run("document.title") != "read"


def test_a_board_that_has_stopped_is_noticed(browser, served, runs):
    tab = browser.tab(f"{served.url}/")
    line = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.call("Network.emulateNetworkConditions", offline=True, **line)
    tab.wait("!document.getElementById('lost').hidden")
    assert "kerasdist board has stopped" in tab.text()
    assert "cifar10/0001" in tab.text()
    tab.call("Network.emulateNetworkConditions", offline=False, **line)
    tab.wait("document.getElementById('lost').hidden")


def test_a_browser_notices_what_must_not_be(browser, tmp_path):
    """The tests above can fail."""
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><p style='width: 3000px'>x<script>undefinedName()</script>")
    tab = browser.tab(page.as_uri(), PHONE)
    assert tab.overflow() > 0
    assert tab.complaints()
