"""A local HTTP server with small archives, which can also misbehave."""

import contextlib
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

from kerasdist.recipes.downloads import Archive

FILES = {"clips/one.txt": b"1" * 5000, "clips/two.txt": b"22"}


def make_tar(files, mode="w:gz"):
    """The bytes of a tar file. A value of None is a folder, and a `str` the target of a link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return stream.getvalue()


def make_zip(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def find_clips(folder):
    found = folder / "clips"
    return found if (found / "one.txt").is_file() else None


class Server(http.server.ThreadingHTTPServer):
    """Answers each path with its content.

    Attributes:
        contents: The content of each path.
        requests: The paths that were asked for.
        status: The status of each answer.
        missing: How many bytes at the end are not sent.
        halfway: Is set in the middle of a content.
        resume: Is awaited in the middle of the content.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents, self.requests = {}, []
        self.status, self.missing = 200, 0
        self.halfway, self.resume = threading.Event(), threading.Event()
        self.resume.set()

    def add(self, content, path="/clips.tar.gz", checksum=None):
        """Serves a content, and returns what `download` needs to know about it."""
        self.contents[path] = content
        url = f"http://127.0.0.1:{self.server_port}{path}"
        return Archive("clips", "Clips", url, 1, checksum or sha256(content))

    def handle_error(self, request, client_address):
        """A client that goes away is part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        content = server.contents[self.path]
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        middle = len(content) // 2
        self.wfile.write(content[:middle])
        self.wfile.flush()
        server.halfway.set()
        server.resume.wait(60)
        self.wfile.write(content[middle : len(content) - server.missing])

    def log_message(self, *args):
        """Says nothing."""


@contextlib.contextmanager
def serve():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.resume.set()
            server.shutdown()
            thread.join()
