"""Ports of this machine that workers listen on."""

from __future__ import annotations

import contextlib
import socket

from kerasdist.devices.cluster import Cluster
from kerasdist.errors import KerasdistError


def free_ports(count: int) -> list[int]:
    """Ports that no program on this machine uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def check_own_port(cluster: Cluster) -> None:
    """Raises an error if another program uses the port of this worker.

    TensorFlow's message for it would be hard to understand.
    """
    address = cluster.hosts[cluster.index]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise KerasdistError(
                f"Cannot use the port of this worker's address {address!r}: {error.strerror}. "
                "Expected a free port. Choose another one, or end the program that uses it."
            ) from None
