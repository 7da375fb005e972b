"""`kerasdist devices`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from kerasdist.devices import list_devices
from kerasdist.reporting import as_json


def devices(options: dict[str, Any]) -> int:
    """`kerasdist devices`."""
    found = list_devices()
    if options["json"]:
        for device in found:
            print(as_json(vars(device)))
    if options["json"] or options["quiet"]:
        return 0
    table = Table()
    for column in ("device", "description", 'taken by "auto"'):
        table.add_column(column)
    for device in found:
        table.add_row(device.name, device.description, "yes" if device.used_by_auto else "")
    Console().print(table)
    return 0
