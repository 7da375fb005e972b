"""What a script downloads: small made-up files, chosen by the last part of the address."""

import io
import urllib.error
import urllib.request
from email.message import Message

from tests.keras_examples.synthetic import archives, tables

FILES = tables.FILES | archives.FILES


def content_of(address):
    """The bytes of a made-up file.

    Raises:
        urllib.error.URLError: Nothing is made up for this address.
    """
    address = getattr(address, "full_url", address)
    name = str(address).split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    if name not in FILES:
        raise urllib.error.URLError(f"nothing is made up for {address}; there is {sorted(FILES)}")
    return FILES[name]()


class _Response(io.BytesIO):
    """As much of an HTTP response as readers of files use."""

    def __init__(self, content):
        super().__init__(content)
        self.headers = Message()
        self.headers["Content-Length"] = str(len(content))
        self.status = self.code = 200

    def info(self):
        return self.headers

    def getcode(self):
        return self.status


def urlopen(address, *args, **kwargs):
    return _Response(content_of(address))


def urlretrieve(address, filename=None, reporthook=None, data=None):
    content = content_of(address)
    with open(filename, "wb") as file:
        file.write(content)
    return filename, Message()


def replace():
    """Every download of the standard library, which pandas, NumPy and Keras use too."""
    urllib.request.urlopen = urlopen
    urllib.request.urlretrieve = urlretrieve
