"""`kerasdist evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kerasdist import training
from kerasdist.commands.jobs import Job, names_of
from kerasdist.options import parse_fit
from kerasdist.reporting import as_json, as_text


def evaluate(run: Path, options: dict[str, Any]) -> int:
    """`kerasdist evaluate`."""
    names = names_of(options)  # Before a model starts TensorFlow, which fixes the logical CPUs.
    data = Job(parse_fit([str(run)])).build_data(options["split"])
    results = training.evaluate(
        run,
        data,
        batch_size=options["batch_size"],
        steps=options["steps"],
        devices=names,
    )
    if options["json"]:
        print(as_json(results))
    elif not options["quiet"]:
        print(as_text(results))
    return 0
