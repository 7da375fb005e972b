"""Other machines cannot reach the ports of workers on loopback addresses."""

import socket
import sys

import pytest

from kerasdist.devices import cluster, loopback
from tests.devices.real_workers import connects


def test_only_this_machine_reaches_a_port_on_loopback():
    if not sys.platform.startswith("linux"):
        pytest.skip("the filter is Linux's")
    outside = own_address()
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("::", 0))
        server.listen()
        port = server.getsockname()[1]
        assert connects("127.0.0.1", port)
        assert outside is None or connects(outside, port)
        assert loopback.keep_to_loopback(port)
        assert connects("127.0.0.1", port)
        assert connects("::1", port)
        if outside is None:
            pytest.skip("this machine has no address but loopback")
        assert not connects(outside, port)


def own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing.
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if cluster.is_loopback(address) else address
