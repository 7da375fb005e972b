"""Machine and versions, without which no number says anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from typing import Any


def about() -> dict[str, Any]:
    names = ("tensorflow", "keras", "numpy")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in names},
        },
    }


def as_line(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"{facts['machine']}; load {facts['load'][0]}; {versions}; {facts['date']}"
