"""`kerasdist devices`: lists the devices, and which of them "auto" uses."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.table import Table

from kerasdist.devices import gpus
from kerasdist.devices.names import Device, list_devices
from kerasdist.phases.prose import say
from kerasdist.runs.atomic import as_json

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices(options: dict[str, Any]) -> int:
    """`kerasdist devices`."""
    found = list_devices()
    if options["json"]:
        for device in found:
            print(as_json({**vars(device), _VISIBLE.lower(): os.environ.get(_VISIBLE)}))
    if options["json"] or options["quiet"]:
        return 0
    table = Table()
    for column in ("device", "description", "memory", 'used by "auto"'):
        table.add_column(column)
    for device in found:
        is_taken = "yes" if device.used_by_auto else ""
        table.add_row(device.name, device.description, _memory(device), is_taken)
    Console(markup=False, emoji=False).print(table)
    cpus = sum(device.kind == "CPU" for device in found)
    say(f"logical CPUs: {cpus}; `--devices cpu:4` splits this processor into four")
    print(f"{_VISIBLE}: {os.environ.get(_VISIBLE, 'not set')}")
    unusable = gpus.unusable_gpus()
    if unusable is not None:
        say(unusable)
    return 0


def _memory(device: Device) -> str:
    return "" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GB"
