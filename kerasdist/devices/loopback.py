"""Blocks other machines from the port of TensorFlow's server.

The server listens on every address of a machine, even if its own address is a loopback address, and
it does not ask for a password (TF 2.21). A filter on the listening socket drops every packet that
was not sent to a loopback address, before TensorFlow sees it. Connections inherit the filter. It
works only on Linux, and does not need root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys

_ATTACH_FILTER = 26
# A program in classic BPF. The packet starts with its TCP header. The addresses are in the network
# header before it.
_NETWORK = 0xFFF00000
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
_LAST_V4, _LAST_V6 = _NETWORK + 16, _NETWORK + 24
_PROGRAM = (
    (_LOAD_BYTE, 0, 0, _NETWORK),
    (_SHIFT_RIGHT, 0, 0, 4),
    (_IF_EQUAL, 2, 0, 4),  # IPv4
    (_IF_EQUAL, 3, 0, 6),  # IPv6
    (_RETURN, 0, 0, 0),
    (_LOAD_BYTE, 0, 0, _LAST_V4),
    (_IF_EQUAL, 8, 9, 127),  # 127.x.x.x
    (_LOAD_WORD, 0, 0, _LAST_V6),
    (_IF_EQUAL, 0, 7, 0),
    (_LOAD_WORD, 0, 0, _LAST_V6 + 4),
    (_IF_EQUAL, 0, 5, 0),
    (_LOAD_WORD, 0, 0, _LAST_V6 + 8),
    (_IF_EQUAL, 0, 3, 0),  # ::1
    (_LOAD_WORD, 0, 0, _LAST_V6 + 12),
    (_IF_EQUAL, 0, 1, 1),
    (_RETURN, 0, 0, 0xFFFFFFFF),
    (_RETURN, 0, 0, 0),
)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("program", ctypes.POINTER(_Instruction)))


def refuse_others(listening: socket.socket) -> None:
    """Drops all packets to a listening socket that were not sent to a loopback address."""
    program = (_Instruction * len(_PROGRAM))(*(_Instruction(*each) for each in _PROGRAM))
    whole = _Filter(len(_PROGRAM), program)
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, bytes(whole))


def keep_to_loopback(port: int) -> bool:
    """Blocks other machines from the `port` that this process listens on; False if it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    found = False
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                is_listening = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if is_listening and copy.getsockname()[1] == port:
                    refuse_others(copy)
                    found = True
    return found
