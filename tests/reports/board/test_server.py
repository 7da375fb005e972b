"""The board answers browsers on this machine, shows what is in the folder, and nothing else."""

import doctest
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kerasdist.errors import KerasdistError
from kerasdist.reports import page as report
from kerasdist.reports.board import run_table, server
from kerasdist.reports.board.server import Board
from kerasdist.reports.live import write_report
from kerasdist.runs import reading
from kerasdist.runs.lock import RunLock
from tests import run_folders


def synthetic(folder, **options):
    """A finished run on synthetic data."""
    run_folders.finished(folder, **options)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "dataset": "synthetic"}))
    return folder


def names(text):
    return re.findall(r'<input type="checkbox" name="run" value="(.*?)"', text)


@pytest.fixture
def runs(tmp_path):
    """A run of each status, and one on synthetic data that looks best of all."""
    folder = tmp_path / "runs"
    for hour, name in enumerate(("good", "better")):
        environment = {**run_folders.ENVIRONMENT, "time": f"2026-11-16T1{hour}:00:00+00:00"}
        run_folders.finished(folder / name, loss=1.0 - 0.5 * hour, environment=environment)
    synthetic(folder / "made-up", loss=0.01)
    for status in ("diverged", "failed", "interrupted"):
        result = {"status": status, "error": f"why it {status}"}
        run_folders.write(folder / status, logged=run_folders.lines(1), result=result)
    run_folders.write(folder / "killed", logged=run_folders.lines(1))
    return folder


def test_the_list_shows_every_run_and_its_status(served, runs):
    with RunLock(runs / "good"):
        text = served.get("/").text
    assert sorted(names(text)) == sorted(path.name for path in runs.iterdir())
    found = re.findall(r'<span class="badge \S+" title="[^"]*">(.*?)<', text)
    badges = dict(zip(names(text), found, strict=True))
    assert badges == {
        "good": "running",
        "better": "finished",
        "made-up": "finished",
        "diverged": "diverged",
        "failed": "failed",
        "interrupted": "interrupted",
        "killed": "stopped",
    }
    assert "1 running" in text
    assert '<span class="unfinished">1 stopped</span>' in text


def test_synthetic_runs_are_marked_and_come_last_when_runs_are_ranked(served, runs):
    text = served.get("/?sort=value").text
    order = names(text)
    assert order[:2] == ["better", "good"]
    assert order[-1] == "made-up"
    assert "not ranked against the others" in text
    assert text.count("synthetic data</span>") == 1
    shutil.rmtree(runs / "made-up")
    assert "not ranked" not in served.get("/?sort=value").text


def test_a_comparison_does_not_rank_synthetic_runs(served, runs):
    text = served.of("compare", "good", "better", "made-up").text
    assert "not ranked against the others" in text
    best = re.findall(r'<td class="best">(.*?)</td>', text)
    assert "0.9267" in best  # val_accuracy of "better"
    assert "1.008" in text
    assert "1.008" not in best
    assert "<figcaption>val_accuracy</figcaption>" in text
    assert "<th>dataset</th>" in text


@pytest.mark.parametrize(
    ("sort", "first"), [("started", "better"), ("name", "better"), ("status", "diverged")]
)
def test_the_list_is_sorted(served, runs, sort, first):
    shutil.rmtree(runs / "made-up")
    assert names(served.get(f"/?sort={sort}&q=e").text)[0] == first


def test_the_list_is_filtered(served, runs):
    assert names(served.get("/?q=DIVER").text) == ["diverged"]
    assert names(served.get("/?q=finished+synth").text) == ["made-up"]
    assert "No run matches “&lt;b&gt;”" in served.get("/?q=%3Cb%3E").text


def test_a_long_list_is_cut(served, tmp_path, monkeypatch):
    monkeypatch.setattr(run_table, "MOST_ROWS", 2)
    for i in range(4):
        run_folders.write(tmp_path / "runs" / str(i), config={"recipe": "x"})
    text = served.get("/").text
    assert len(names(text)) == 2
    assert "Show all 4 runs" in text
    assert len(names(served.get("/?all=1").text)) == 4


def test_a_run_has_its_curves_and_its_error(served, runs):
    text = served.of("run", "good").text
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert captions == ["accuracy", "loss", "examples per second"]
    assert "<b>84.3%</b>" in text
    assert "why it diverged" in served.of("run", "diverged").text
    assert "/report?" not in text
    assert write_report(runs / "good")
    assert "/report?run=good" in served.of("run", "good").text


def test_a_run_that_has_logged_nothing_has_a_page(served, tmp_path):
    folder = run_folders.write(tmp_path / "runs/new", config={"recipe": "x"})
    with RunLock(folder):
        text = served.of("run", "new").text
    assert "No value is logged yet" in text
    assert "starting" in text


def test_new_lines_are_shown(served, tmp_path):
    folder = run_folders.write(tmp_path / "runs/a", logged=run_folders.lines(1))
    assert "<b>50.0%</b>" in served.of("run", "a").text or "51.0%" in served.of("run", "a").text
    with open(folder / "metrics.jsonl", "a") as file:
        line = {"kind": "epoch", "step": 9, "epoch": 2, "val_accuracy": 0.875}
        file.write(json.dumps(line)[:10])
        file.flush()
        assert "87.5%" not in served.of("run", "a").text
        file.write(json.dumps(line)[10:] + "\n")
        file.flush()
        assert "<b>87.5%</b>" in served.of("run", "a").text


def test_a_part_is_sent_only_if_it_changed(served, runs):
    whole, part = served.get("/"), served.get("/", **{"X-Kerasdist-Part": "1"})
    assert "<!doctype html>" in whole.text
    assert "<html" not in part.text
    assert 'data-part="runs"' in part.text
    again = served.get("/", **{"X-Kerasdist-Part": "1", "If-None-Match": part.headers["ETag"]})
    assert (again.status, again.text) == (304, "")
    shutil.rmtree(runs / "killed")
    again = served.get("/", **{"X-Kerasdist-Part": "1", "If-None-Match": part.headers["ETag"]})
    assert again.status == 200


def test_a_deleted_run_is_not_there_any_more(served, runs):
    assert served.of("run", "good").status == 200
    shutil.rmtree(runs / "good")
    gone = served.of("run", "good")
    assert gone.status == 404
    assert "not any more" in gone.text
    assert "good" not in names(served.get("/").text)
    left = served.of("compare", "good", "better")
    assert left.status == 200
    assert "1 run<" in left.text
    assert served.of("compare", "good").status == 404


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_runs_says_how_to_start_one(served, tmp_path, exists):
    if exists:
        (tmp_path / "runs").mkdir()
    text = served.get("/").text
    assert ("has no runs yet" if exists else "does not exist yet") in text
    assert "kerasdist fit cifar10" in text
    run_folders.write(tmp_path / "runs/a/0001", config={"recipe": "x"})
    assert names(served.get("/").text) == ["a/0001"]


def test_the_folder_may_be_a_run(tmp_path):
    folder = run_folders.finished(tmp_path / "alone")
    with Board(folder, port=0) as board:
        assert list(board.runs.look()) == ["alone"]


def test_a_report_is_shown_as_a_foreign_page(served, runs):
    assert served.of("report", "good").status == 404
    (runs / "good/report.html").write_text("<h1>mine</h1>")
    found = served.of("report", "good")
    assert (found.status, found.text) == (200, "<h1>mine</h1>")
    policy = found.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/report?run=..",
        "/report?run=../runs/good",
        "/report?run=%2fetc%2fpasswd",
        "/run?run=/etc",
        "/runs/good/config.json",
        "/good/config.json",
        "//etc/passwd",
        "/report",
        "/run",
        "/favicon.ico",
    ],
)
def test_only_runs_that_were_found_are_read(served, runs, path):
    (runs.parent / "secret.txt").write_text("a secret")
    (runs.parent / "report.html").write_text("a secret")
    (runs / "good/report.html").write_text("mine")
    found = served.get(path)
    assert found.status == 404
    assert "secret" not in found.text
    assert "mine" not in found.text
    assert "root:" not in found.text


def test_a_report_that_is_a_link_is_not_followed(served, runs):
    (runs.parent / "secret.txt").write_text("a secret")
    (runs / "good/report.html").symlink_to(runs.parent / "secret.txt")
    assert "secret" not in served.of("report", "good").text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:6180", 200),
        ("localhost:8888", 200),  # an SSH tunnel from another port
        ("localhost", 200),
        ("evil.example", 403),
        ("evil.example:6180", 403),
        ("127.0.0.1.evil.example:6180", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_only_this_machines_names_are_answered(served, runs, host, status):
    """A foreign page can let its own name point to 127.0.0.1."""
    found = served.get("/", host=host)
    assert found.status == status
    assert ("good" in found.text) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_the_board_changes_nothing(served, runs, method):
    before = sorted((str(p), p.stat().st_mtime_ns) for p in runs.rglob("*"))
    assert served.get("/", method=method).status == 501
    for path in ("/", "/?sort=value&all=1", "/nothing"):
        served.get(path)
    served.of("run", "good")
    served.of("compare", "good", "better")
    assert sorted((str(p), p.stat().st_mtime_ns) for p in runs.rglob("*")) == before


def test_it_listens_on_the_loopback_interface_only(served):
    assert served.board.socket.getsockname()[0] == "127.0.0.1"
    assert served.get("/").headers["X-Frame-Options"] == "DENY"
    policy = served.get("/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    head = served.get("/", method="HEAD")
    assert (head.status, head.text) == (200, "")


def test_nothing_from_a_run_is_html(served, tmp_path):
    bad = "<script>alert('x')</script><img src=x onerror=1>\"'&"
    folder = tmp_path / "runs" / "<img src=x>" / '"onclick="1'
    run_folders.write(
        folder,
        config={"recipe": bad, "settings": {bad: bad}, "options": {"epochs": bad, "steps": bad}},
        environment={"time": bad, "devices": [bad], "dataset": bad, "git": bad},
        result={"status": bad, "error": bad, "dataset": bad, "devices": [bad], bad: 1.0},
        logged=[
            {"kind": "epoch", "step": i, "epoch": i, bad: 1.0, f"val_{bad}": i} for i in (1, 2)
        ],
    )
    name = '<img src=x>/"onclick="1'
    for answer in (served.get("/"), served.of("run", name), served.of("compare", name)):
        assert answer.status == 200
        assert answer.text.count("<script") == 2
        assert "<img" not in answer.text
        assert 'onclick="1"' not in answer.text


@pytest.mark.parametrize("value", [[], 3, "x", None, {"a": 1}, [1, 2], True])
def test_files_with_other_things_in_them_are_no_error(served, tmp_path, value):
    folder = run_folders.finished(tmp_path / "runs/a")
    for name, keys in (
        ("config", ("recipe", "settings", "options", "model")),
        ("result", ("status", "steps", "epochs", "devices", "dataset", "error", "val_loss")),
        ("environment", ("time", "devices", "packages", "git", "dataset")),
    ):
        content = json.loads((folder / f"{name}.json").read_text())
        for key in keys:
            (folder / f"{name}.json").write_text(json.dumps({**content, key: value}))
            for page in ("", "run", "compare"):
                assert served.of(page, "a").status == 200, (name, key)
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_a_folder_whose_name_is_not_utf_8_hides_no_other_run(served, tmp_path):
    (tmp_path / "runs").mkdir()
    odd = os.fsdecode(os.fsencode(tmp_path / "runs") + b"/caf\xe9")
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    for folder in (odd, tmp_path / "runs/plain"):
        run_folders.finished(Path(folder) / "0001")
    answer = served.get("/")
    assert answer.status == 200
    assert names(answer.text) == ["plain/0001", "caf?/0001"]
    page = served.get("/run?run=caf%E9/0001")
    assert page.status == 200
    assert "/report?run=caf%E9%2F0001" not in page.text  # It has none.


@pytest.mark.parametrize(
    "content",
    ["[" * 10**5, f'{{"kind": "epoch", "step": 2, "epoch": 1, "loss": 1{"0" * 400}}}'],
)
@pytest.mark.parametrize("file", ["metrics.jsonl", "result.json", "environment.json"])
def test_a_damaged_file_hides_no_other_run(served, tmp_path, file, content):
    good, bad = (run_folders.finished(tmp_path / f"runs/{n}") for n in ("good", "bad"))
    (bad / file).write_text(content)
    assert sorted(names(served.get("/").text)) == ["bad", "good"]
    for page in (served.of("run", bad.name), served.of("compare", good.name, bad.name)):
        assert page.status == 200
    report.render(reading.read(bad))


def test_hundreds_of_runs_are_listed_quickly(served, tmp_path):
    for i in range(300):
        run_folders.finished(tmp_path / f"runs/many/{i:04d}", num_epochs=5)
    for _ in range(20):  # The first answers do not wait for all logs.
        began = time.perf_counter()
        text = served.get("/?all=1").text
        first = time.perf_counter() - began
        if not served.board.runs.num_pending:
            break
    assert len(names(text)) == 300
    assert first < 5
    began = time.process_time()
    again = served.get("/?all=1")
    assert time.process_time() - began < 2
    assert len(again.text) < 1_000_000


def test_a_page_that_cannot_be_made_says_why(served, runs, monkeypatch):
    monkeypatch.setattr(run_table, "table", lambda *_, **__: 1 / 0)
    found = served.get("/")
    assert found.status == 404
    assert "This page cannot be shown. ZeroDivisionError: division by zero" in found.text
    assert served.of("run", "good").status == 200


@pytest.mark.parametrize("path", ["/?" + "&".join(["a=1"] * 1001), "/run?run=%ff%fe", "/?q=%00"])
def test_strange_addresses_are_answered(served, runs, path):
    assert served.get(path).status in (200, 404)


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(server).failed == 0


def test_two_clients_at_once(served, runs):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: served.of("run", "good").status, range(40)))
    assert found == [200] * 40


def test_a_port_in_use_is_said(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(KerasdistError, match=f"`--port {port}`, which cannot be used") as error:
            Board(tmp_path, port)
    assert "`--port 0` for any free port" in str(error.value)


def test_without_a_port_the_next_free_one_is_taken(tmp_path):
    with Board(tmp_path) as first, Board(tmp_path) as second:
        assert first.server_port < second.server_port


def test_the_command_serves_until_ctrl_c(tmp_path):
    run_folders.finished(tmp_path / "runs/a/0001")
    process = subprocess.Popen(
        [sys.executable, "-m", "kerasdist", "board", "--json", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        said = json.loads(process.stdout.readline())
        assert said["folder"] == "runs"
        # A connection that a browser keeps open does not keep the board from ending.
        address = said["url"].removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1]))):
            with urllib.request.urlopen(said["url"], timeout=20) as answer:
                assert "a/0001" in answer.read().decode()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "The folder 'nope' does not exist"),
        (["a", "b"], "Received the folders 'a', 'b'. Expected one folder"),
        (["--port", "70000"], "Expected a port from 0 to 65535"),
        (["--prot", "1"], "--prot"),
    ],
)
def test_wrong_arguments_are_refused(command, tmp_path, arguments, message):
    done = command("board", *arguments)
    assert done.code == 2
    assert message in done.err


def test_the_value_in_the_list_is_that_of_the_saved_model(served, tmp_path):
    """Not the best epoch's: the report, `kerasdist runs` and `evaluate` say the last one."""
    logged = list(run_folders.lines(3))
    logged[-3]["val_accuracy"] = 0.999  # The best epoch is before the last one.
    folder = run_folders.finished(tmp_path / "runs/x/0007")
    text = "".join(f"{json.dumps(line)}\n" for line in logged)
    (folder / "metrics.jsonl").write_text(text)
    last = reading.read(folder).final["val_accuracy"]
    page = served.get("/").text
    assert f"<b>{last:.1%}</b>" in page
    assert "<b>99.9%</b>" not in page
    assert ">last value</a>" in page


def test_between_two_validations_the_value_is_that_of_the_last_one(served, tmp_path):
    logged = list(run_folders.lines(3))
    del logged[-1]["val_accuracy"], logged[-1]["val_loss"]
    folder = run_folders.write(tmp_path / "runs/x/0008", logged=logged)
    before = [line for line in logged if line["kind"] == "epoch"][-2]["val_accuracy"]
    assert f"<b>{before:.1%}</b>" in served.get("/").text
    assert f"<b>{before:.1%}</b>" in report.render(reading.read(folder))
