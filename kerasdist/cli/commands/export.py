"""`kerasdist export`: a run's model as a file for other programs, checked against the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist.cli.job import Job
from kerasdist.cli.options import parse_fit
from kerasdist.cli.quiet import tensorflow_messages
from kerasdist.data.streams import open_stream
from kerasdist.errors import KerasdistError
from kerasdist.model_files import formats
from kerasdist.model_files.export_target import Target, num_bytes
from kerasdist.model_files.loading import load
from kerasdist.model_files.served import failed, first_line
from kerasdist.models.fields import read
from kerasdist.runs import architecture, folder
from kerasdist.runs.atomic import as_json

NUM_CHECKED = 256


def export(run: Path, target: Target, options: dict[str, Any]) -> int:
    """`kerasdist export`."""
    model = load(run, options["which"])
    served, batches, inputs = _served(run, model)
    form = formats.FORMATS[target.format]
    with target.draft() as draft:
        with tensorflow_messages(options["verbose"]):
            outcome = _written(form, served, draft, batches)
        if isinstance(outcome, Exception):
            raise outcome
        notes, found = outcome
        if not found.is_small:
            raise failed(
                f"Received a {target.format} file that computes something else than the model: "
                f"{_in_words(found, inputs)}. Expected at most {formats.LIMIT:g} of it. Use "
                "another format; nothing was kept of this one."
            )
        about = {
            "format": target.format,
            "which": options["which"],
            "inputs": {spec.name: [spec.dtype.name, *spec.shape[1:]] for spec in served.inputs},
            "outputs": list(served.output_names),
            "bytes": num_bytes(draft),
            "checked_on": inputs,
            "examples": found.examples,
            "largest_difference": found.largest,
            "relative_difference": found.relative,
            "notes": notes,
        }
        target.place(draft, about)
    if options["json"]:
        print(as_json({"run": str(run), "path": str(target.path), **about}))
    elif not options["quiet"]:
        print(f"exported {target.path} ({about['bytes']:,} bytes)")
        print(f"checked: {_in_words(found, inputs)}")
        for note in notes:
            print(f"note: {note}")
    return 0


def _written(form: Any, served: formats.Served, draft: Path, batches: list) -> Any:
    """`(notes, difference)`, or the error: raised outside, where messages are shown again."""
    try:
        notes = form.write(served, draft)
        try:
            runtime = form.opened(draft, served)
            return notes, formats.compare(served, runtime, batches)
        except Exception as error:  # noqa: BLE001 - a runtime raises what it likes
            return failed(
                f"Received a file that its own runtime cannot run: {first_line(error)} Expected a "
                "whole one. Use another format; nothing was kept of this one.",
                error,
            )
    except Exception as error:  # noqa: BLE001
        return error


def _in_words(found: formats.Difference, inputs: str) -> str:
    return (
        f"largest difference {found.largest:.2g} on {found.examples} {inputs}, "
        f"{found.relative:.2g} of the largest output {found.scale:.3g}"
    )


def _served(run: Path, model: keras.Model) -> tuple[formats.Served, list, str]:
    """The model with its inputs, batches to compare on, and in words what these are."""
    spec = architecture.read_spec(run / folder.MODEL)
    try:
        if "recipe" not in (folder.read_config(run) or {}):
            raise KerasdistError("the run has no recipe")
        job = Job(parse_fit([str(run)]))
        fed, batches = _first(model, job.build_data("validation"))
        # What is predicted on looks like these: training's may be cut out of them.
        served = formats.serve(model, spec, fed)
        return served, batches, f"examples of the validation data ({job.source})"
    except Exception as error:  # noqa: BLE001
        # Data that is gone must not keep anybody from their model.
        served = formats.serve(model, spec)
        batches = [formats.random_inputs(served, NUM_CHECKED)]
        return served, batches, f"random examples ({first_line(error)})"


def _first(model: keras.Model, data: Any) -> tuple[Any, list[list[np.ndarray]]]:
    """`(spec, the first examples)` of any data, in its own batches."""
    stream = open_stream(data, default_batch_size=NUM_CHECKED)
    left, batches = NUM_CHECKED, []
    try:
        spec = stream.element_spec
        for batch in stream.open(0, 0):
            args = read(model, batch, need_targets=False).args
            batches.append([np.asarray(t)[:left] for t in keras.tree.flatten(args)])
            left -= len(batches[-1][0])
            if left <= 0:
                break
    finally:
        stream.close()
    return spec, batches
