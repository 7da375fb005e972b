"""Downloads into the cache: whole and checked, or not at all, whatever server and disk do."""

import dataclasses
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kerasdist.recipes import archives, downloads
from kerasdist.recipes.downloads import cache_folder, download
from tests.recipes.archive_server import FILES, find_clips, make_tar, make_zip, serve

ROOT = Path(__file__).resolve().parents[2]
TAR = make_tar(FILES)
# What another process does: it downloads, and prints the folder or the reason.
SCRIPT = """
import sys
from kerasdist.recipes.downloads import Archive, download
from tests.recipes.archive_server import find_clips
folder, reason = download(Archive("clips", "Clips", sys.argv[1], 1, sys.argv[2]), find_clips)
print(folder or reason)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERASDIST_DATA_DIR", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


@pytest.fixture
def server():
    with serve() as found:
        yield found


def process(archive):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, archive.url, archive.sha256],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def expected():
    return {Path(name).name: content for name, content in FILES.items()}


def left(cache):
    """Everything below the data set's folder in the cache, but for the empty lock."""
    return sorted(p.name for p in (cache / "clips").glob("*") if p.name != "lock")


def refused(archive, cache):
    folder, reason = download(archive, find_clips)
    assert folder is None
    assert archive.find(find_clips) is None
    assert left(cache) == []
    return reason


@pytest.mark.parametrize("content", [TAR, make_zip(FILES)], ids=["tar", "zip"])
def test_an_archive_is_downloaded_once(server, cache, capfd, content):
    archive = server.add(content)
    assert archive.find(find_clips) is None
    folder, reason = download(archive, find_clips)
    assert reason is None
    assert folder == cache / "clips" / archive.sha256[:12] / "clips" == archive.find(find_clips)
    assert contents(folder) == expected()
    assert left(cache) == [archive.sha256[:12]]
    assert server.requests == ["/clips.tar.gz"]
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == f"Downloading Clips (1 MB) to {folder.parent}\n"


def test_a_wrong_checksum_is_refused(server, cache):
    reason = refused(server.add(TAR, checksum="0" * 64), cache)
    assert "is not the known file: its SHA-256 is" in reason
    assert "0" * 64 in reason


def test_a_checksum_may_be_in_capital_letters(server):
    archive = server.add(TAR)
    capital = server.add(TAR, checksum=archive.sha256.upper())
    assert capital.folder == archive.folder
    assert download(capital, find_clips)[1] is None


def test_a_truncated_download_is_refused(server, cache):
    server.missing = 7
    reason = refused(server.add(TAR), cache)
    assert f"broke off after {len(TAR) - 7} of {len(TAR)} bytes" in reason


def test_a_stalled_download_is_given_up(server, cache, monkeypatch):
    monkeypatch.setattr(downloads, "READ_SECONDS", 0.3)
    server.resume.clear()
    assert "broke off (TimeoutError" in refused(server.add(TAR), cache)


@pytest.mark.parametrize("status", [404, 503])
def test_an_error_of_the_server_is_named(server, cache, status):
    server.status = status
    assert f"cannot be reached (HTTPError: HTTP Error {status}" in refused(server.add(TAR), cache)


def test_a_server_that_is_not_there_is_named(server, cache):
    archive = server.add(TAR)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    archive = dataclasses.replace(archive, url=f"http://127.0.0.1:{port}/clips.tar.gz")
    assert "cannot be reached (URLError" in refused(archive, cache)


def test_a_server_without_an_answer_costs_seconds(server, cache, monkeypatch):
    monkeypatch.setattr(downloads, "PROBE_SECONDS", 0.3)
    archive = server.add(TAR)
    stop = threading.Event()

    def be_silent(request, _):
        stop.wait(20)
        request.close()

    monkeypatch.setattr(server, "process_request", be_silent)
    began = time.perf_counter()
    assert "did not answer in" in refused(archive, cache)
    assert time.perf_counter() - began < 5
    stop.set()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({**FILES, "../x": b"evil"}, r"the name '../x' is not safe"),
        ({**FILES, "out": ".."}, "'out' is a link"),
        ({"other.txt": b"1"}, "does not have the files of Clips"),
    ],
)
def test_an_archive_with_other_content_is_refused(server, cache, files, expected):
    assert expected in refused(server.add(make_tar(files)), cache)
    assert not list(cache.parent.rglob("x"))


def test_a_full_disk_is_named(server, cache, monkeypatch):
    def write(source, target):
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(source.read())

    monkeypatch.setattr(archives.shutil, "copyfileobj", write)
    reason = refused(server.add(TAR), cache)
    assert f"the disk of {cache} is full" in reason


def test_a_cache_that_cannot_be_written_is_named(server, cache):
    cache.write_text("not a folder")
    folder, reason = download(server.add(TAR), find_clips)
    assert folder is None
    assert f"{cache} cannot be written" in reason


def test_two_processes_download_once(server, cache):
    archive = server.add(TAR)
    server.resume.clear()
    with process(archive) as first:
        assert server.halfway.wait(60)
        while not left(cache):
            time.sleep(0.01)
        with process(archive) as second:
            waiting = "Waiting for another process that downloads Clips\n"
            assert any(line == waiting for line in second.stderr)
            server.resume.set()
            found = [p.communicate(timeout=60)[0].strip() for p in (first, second)]
    assert found == [str(archive.find(find_clips))] * 2
    assert contents(archive.find(find_clips)) == expected()
    assert left(cache) == [archive.sha256[:12]]
    # Each asked once, and the second did not ask again after it had waited.
    assert len(server.requests) == 2


def test_without_locks_the_first_one_counts(server, cache, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(downloads.fcntl, "flock", no_locks)
    archive = server.add(TAR)
    server.resume.clear()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(download(archive, find_clips)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while len(server.requests) < 3:
        time.sleep(0.01)
    server.resume.set()
    for thread in threads:
        thread.join()
    assert found == [(archive.folder / "clips", None)] * 3
    assert contents(archive.folder / "clips") == expected()
    assert left(cache) == [archive.sha256[:12]]


def test_a_killed_download_leaves_no_data_and_is_cleaned_up(server, cache):
    archive = server.add(TAR)
    server.resume.clear()
    with process(archive) as killed:
        assert server.halfway.wait(60)
        while not left(cache):
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
    server.resume.set()
    (leftover,) = (cache / "clips").glob("part-*")
    assert archive.find(find_clips) is None
    # It may still be in use on another machine, so it stays for a while.
    assert download(archive, find_clips) == (archive.folder / "clips", None)
    assert leftover.is_dir()
    long_ago = time.time() - 2 * downloads.LEFTOVER_SECONDS
    for path in (*leftover.iterdir(), leftover):
        os.utime(path, (long_ago, long_ago))
    other = server.add(make_zip(FILES), "/clips.zip")
    assert download(other, find_clips)[1] is None
    assert left(cache) == sorted(a.sha256[:12] for a in (archive, other))


def test_an_interrupt_leaves_nothing(server, cache, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "unpack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download(server.add(TAR), find_clips)
    assert left(cache) == []


def test_a_damaged_folder_in_the_cache_is_replaced(server, cache):
    archive = server.add(TAR)
    folder, _ = download(archive, find_clips)
    (folder / "one.txt").unlink()
    assert archive.find(find_clips) is None
    assert download(archive, find_clips) == (folder, None)
    assert contents(folder) == expected()
    assert left(cache) == [archive.sha256[:12]]


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("KERASDIST_DATA_DIR", "~/data")
    assert cache_folder() == tmp_path / "data"
    monkeypatch.setenv("KERASDIST_DATA_DIR", "")
    assert cache_folder() == tmp_path / "caches" / "kerasdist"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "kerasdist"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "kerasdist"


@pytest.mark.parametrize("name", ["", "../x", "glue/cola", "a b"])
def test_a_name_is_one_folder_of_the_cache(cache, name):
    folder = downloads.Archive(name, "Clips", "http://localhost/x", 1, "ab" * 32).folder
    assert folder.resolve().parents[1] == cache
