"""`kerasdist export`: writes a run's model for other programs, and compares it with the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.cli.job import Job, recipe_of
from kerasdist.cli.quiet import tensorflow_messages
from kerasdist.data.folders.file_source import FileSource
from kerasdist.data.streams import open_stream
from kerasdist.errors import RunFailedError
from kerasdist.evaluation.classes import Classes, classes_of_run
from kerasdist.evaluation.served_files import answers_of, careful_with_files, logits_in_words
from kerasdist.model_files import formats
from kerasdist.model_files.export_target import Target, num_bytes
from kerasdist.model_files.formats import saved_model
from kerasdist.model_files.loading import load_to_predict
from kerasdist.model_files.served import RawInputs, reason
from kerasdist.models.fields import read
from kerasdist.phases.phase import phase
from kerasdist.phases.prose import say
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe
from kerasdist.runs import architecture
from kerasdist.runs.atomic import as_json
from kerasdist.runs.catalog import read_config
from kerasdist.runs.file_names import MODEL

NUM_CHECKED = 256
NUM_FILES = 16
_PROGRAM = "a Python program made this run, and only the program has its data"


def export(run: Path, target: Target, options: dict[str, Any]) -> int:
    """`kerasdist export`."""
    recipe = recipe_of(run)
    with phase("loading the model"):
        model = load_to_predict(run, options["which"])
    with phase("reading examples to check the file with"):
        served, batches, inputs, files = _served(run, model)
    served, classes = _with_answers(run, served, recipe)
    form = formats.FORMATS[target.format]
    with target.draft() as draft:
        with tensorflow_messages(options["verbose"]):
            outcome = _written(form, served, draft, batches)
        if isinstance(outcome, Exception):
            raise outcome
        notes, found = outcome
        notes += _notes(recipe)
        logits = logits_in_words(classes, _signature(target.format, served))
        notes += [] if logits is None else [f"output: {logits}"]
        if target.format == "saved_model":
            notes += _careful(recipe, files)
        if not found.is_small:
            raise RunFailedError(
                f"The {target.format} file does not compute the same as the model: "
                f"on {found.examples} {inputs}, the {_difference(found)}. Expected at most "
                f"{formats.LIMIT:g} of it. The file was removed. Use another format."
            )
        about = {
            "format": target.format,
            "which": options["which"],
            "inputs": {spec.name: [spec.dtype.name, *spec.shape[1:]] for spec in served.inputs},
            "outputs": list(served.output_names),
            **({} if classes is None else {"classes": list(classes.names)}),
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
        say(f"exported {target.path} ({options['which']} model, {about['bytes']:,} bytes)")
        say(f"checked on {found.examples} {inputs}:")
        say(f"  {_in_words(found)}")
        for note in notes:
            say(f"note: {note}")
        for line in _call(target.format, target.path, served):
            print(line)  # To be copied: never broken.
    return 0


def _with_answers(
    run: Path, served: formats.Served, recipe: Recipe | None
) -> tuple[formats.Served, Classes | None]:
    """The model with what it tells of files, if the recipe can decode them; and its classes."""
    spec = architecture.read_spec(run / MODEL)
    classes, _ = classes_of_run(served.model, spec, extras.class_names(recipe))
    decode, raw = extras.file_decoder(recipe), extras.raw_inputs(recipe)
    if decode is not None:
        served = replace(served, files=answers_of(served, decode, classes))
    if raw is not None:
        answers = answers_of(served, raw, classes)
        served = replace(served, raw=RawInputs(tuple(raw.inputs.values()), answers, raw))
    return served, classes


def _notes(recipe: Recipe | None) -> list[str]:
    given = extras.input_in_words(recipe)
    return [] if given is None else [f"input: {given}"]


def _signature(name: str, served: formats.Served) -> str | None:
    """The signature of a file that tells classes and probabilities, if it has one."""
    if name != "saved_model" or (served.files is None and served.raw is None):
        return None
    return saved_model.RAW if served.files is None else saved_model.FILES


def _careful(recipe: Recipe | None, files: list[Path]) -> list[str]:
    """A note if the file decodes other files in another way than training did."""
    decode = extras.file_decoder(recipe)
    if recipe is None or decode is None or not extras.has_reader(recipe) or not files:
        return []
    with phase("comparing how files are decoded"):
        note = careful_with_files(decode, partial(extras.read_examples, recipe), files)
    return [] if note is None else [note]


def _written(
    form: ModuleType, served: formats.Served, draft: Path, batches: list[list[np.ndarray]]
) -> tuple[list[str], formats.Difference] | Exception:
    """`(notes, difference)`, or the error.

    The caller raises it, outside of the block that hides TensorFlow's messages.
    """
    try:
        with phase("writing the file"):
            notes = form.write(served, draft)
        try:
            with phase("comparing the file with the model"):
                runtime = form.opened(draft, served)
                return notes, formats.compare(served, runtime, batches)
        except Exception as error:
            raise RunFailedError(
                f"The exported file cannot be run: {reason(error)} It was removed. Use another "
                "format."
            ) from error
    except Exception as error:  # noqa: BLE001 - so may a converter
        return error


def _difference(found: formats.Difference) -> str:
    return (
        f"largest difference {found.largest:.2g}, which is {found.relative:.2g} of the largest "
        f"output, {found.scale:.3g}"
    )


def _in_words(found: formats.Difference) -> str:
    if found.largest == 0:
        return "the exported model gives exactly the same outputs as the model of the run"
    return f"the exported model gives the same outputs up to rounding ({_difference(found)})"


def _call(name: str, path: Path, served: formats.Served) -> list[str]:
    """How to call a SavedModel by its most useful signature, in Python."""
    if name != "saved_model":
        return []
    if served.files is not None:
        signature, given = saved_model.FILES, "contents=tf.constant([open('FILE', 'rb').read()])"
    elif served.raw is not None:
        signature = saved_model.RAW
        empty = {tf.string: "['']", tf.float32: "[0.0]", tf.float64: "[0.0], tf.float64"}
        given = ", ".join(
            f"{spec.name}=tf.constant({empty[spec.dtype]})" for spec in served.raw.inputs
        )
    else:
        signature = saved_model.DEFAULT
        given = ", ".join(f"{spec.name}=..." for spec in served.inputs)
    return [
        "call it from Python:",
        "  import tensorflow as tf",
        f"  model = tf.saved_model.load({str(path)!r})",
        f"  print(model.signatures[{signature!r}]({given}))",
    ]


# The model with its inputs, batches to compare on, a description of these, and example files.
_Examples = tuple[formats.Served, list[list[np.ndarray]], str, list[Path]]


def _served(run: Path, model: keras.Model) -> _Examples:
    spec = architecture.read_spec(run / MODEL)
    try:
        config = read_config(run) or {}
        if "recipe" not in config:
            maker = "a provider feeds this run" if "model" in config else _PROGRAM
            return _on_random_examples(model, spec, maker)
        job = Job(parse_fit([str(run)]))
        data = job.build_data("validation")
        fed, batches = _first(model, data)
        # The shapes of validation data: training data may be cropped.
        served = formats.serve(model, spec, fed)
        inputs = f"examples of the validation data ({job.source})"
        return served, batches, inputs, _example_files(data)
    except Exception as error:  # noqa: BLE001 - the model can be exported without its data
        return _on_random_examples(model, spec, reason(error))


def _example_files(data: Any) -> list[Path]:
    """Some files of the data, if it has any: of each suffix one, and others evenly spread."""
    if not isinstance(data, FileSource):
        return []
    step = -(-len(data) // NUM_FILES)
    names = {*data.names[::step], *{Path(name).suffix: name for name in data.names}.values()}
    return [data.folder / name for name in sorted(names)]


def _on_random_examples(model: keras.Model, spec: Any, why: str) -> _Examples:
    served = formats.serve(model, spec)
    return served, [formats.random_inputs(served, NUM_CHECKED)], f"random examples ({why})", []


def _first(model: keras.Model, data: Any) -> tuple[Any, list[list[np.ndarray]]]:
    """`(spec, the first batches)` of any data, with `NUM_CHECKED` examples in all."""
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
