"""Ports of workers."""

import socket

import pytest

from kerasdist import KerasdistError
from kerasdist.devices import ports
from kerasdist.devices.cluster import Cluster


def test_free_ports_differ_and_are_free():
    found = ports.free_ports(5)
    assert len(set(found)) == 5
    for port in found:
        ports.check_own_port(Cluster((f"localhost:{port}", "b:1"), 0))


def test_a_port_in_use_is_named_for_this_worker_only():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        hosts = (f"localhost:{taken.getsockname()[1]}", f"localhost:{ports.free_ports(1)[0]}")
        with pytest.raises(KerasdistError, match=f"port of this worker's address '{hosts[0]}'"):
            ports.check_own_port(Cluster(hosts, 0))
        ports.check_own_port(Cluster(hosts, 1))
