"""The machine, load, date and versions that every measurement is printed with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from pathlib import Path
from typing import Any


def about() -> dict[str, Any]:
    names = ("tensorflow", "keras", "numpy")
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in names},
        },
    }


def _processor() -> str:
    """The name of the processor, and its widest instruction set that has specialised kernels."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    name = re.search(r"model name\s*: (.*)", text)
    found = [each for each in ("amx_tile", "avx512_bf16", "avx512_vnni", "avx2") if each in text]
    return ", ".join([name[1] if name else platform.machine(), *found[:1]])


def as_line(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"{facts['machine']}; load {facts['load'][0]}; {versions}; {facts['date']}"
