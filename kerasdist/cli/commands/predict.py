"""`kerasdist predict`: predicts files with a run's model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist.cli.commands.skipped_files import SkippedFiles
from kerasdist.cli.job import names_of, recipe_of
from kerasdist.errors import KerasdistError, first_line
from kerasdist.evaluation import answers_csv
from kerasdist.evaluation.classes import Guess, classes_of_run, likeliest, plain_values, rows
from kerasdist.model_files.loading import load_to_predict
from kerasdist.models.contract import Model
from kerasdist.models.fields import fields_read, read
from kerasdist.phases.phase import Phase, phase
from kerasdist.phases.text import decimal
from kerasdist.recipes import extras
from kerasdist.recipes.own_data.kinds import TABLES, TEXTS
from kerasdist.recipes.own_data.listing import files_below
from kerasdist.recipes.recipe import Recipe
from kerasdist.runs import architecture
from kerasdist.runs.atomic import as_json
from kerasdist.runs.file_names import MODEL
from kerasdist.training import api

ARRAY_SUFFIXES = (".npy", ".npz")
FILES_AT_ONCE = 128
ROWS_AT_ONCE = 1024
# Of an example with more output values, only the shape is printed.
MOST_VALUES = 10
# Of a printed number. --json prints all of them.
DIGITS = 6


def predict(run: Path, files: list[Path], options: dict[str, Any]) -> int:
    """`kerasdist predict`."""
    names = names_of(options)  # First, because building a model fixes the logical CPUs.
    recipe = recipe_of(run)
    is_read = extras.has_reader(recipe) or extras.has_rows(recipe)
    reader = "the run's recipe" if is_read else "`kerasdist predict`, without a recipe in the run,"
    paths = find(files, extras.suffixes(recipe) if is_read else ARRAY_SUFFIXES, reader)
    with phase("loading the model"):
        model = load_to_predict(run, options["which"])
    spec = architecture.read_spec(run / MODEL)
    classes, _ = classes_of_run(model, spec, extras.class_names(recipe))
    size = options["batch_size"]
    files_read = SkippedFiles(paths, skip_bad=options["skip_bad"])
    labels: list[dict[str, Any]]
    if recipe is not None and extras.has_rows(recipe):
        with phase("reading files"):
            labels, data = _rows(model, _for_rows(recipe, options["skip_bad"]), files_read)
        outputs = api.predict(model, data, batch_size=size or ROWS_AT_ONCE, devices=names)
    elif recipe is not None and extras.has_reader(recipe):
        at_once = size or FILES_AT_ONCE
        with phase("reading files", len(paths), unit="file") as reading:
            outputs = api.predict(
                model,
                lambda: _batches(model, recipe, paths, at_once, reading, files_read),
                devices=names,
            )
        labels = [{"file": str(path)} for path in files_read.good]
    else:
        labels, data = _arrays(model, spec, files_read)
        outputs = api.predict(model, data, batch_size=size, devices=names)
    files_read.tell()
    guesses: list[list[Guess] | None] = [None] * len(labels)
    if classes is not None:
        guesses = [*likeliest(classes, outputs, options["top"])]
    answers = list(zip(labels, rows(outputs), guesses, strict=True))
    if options["output"] is not None:
        answers_csv.write(Path(options["output"]).expanduser(), answers)
        if not options["json"] and not options["quiet"]:
            print(f"wrote {options['output']} ({len(answers):,} rows)")
            return 0
    for label, values, best in answers:
        if options["json"]:
            print(as_json({**label, **_fields(values, best)}))
        elif not options["quiet"]:
            print(f"{label['file']}{_place(label)}: {text_of(values, best)}")
    return 0


def _place(label: dict[str, Any]) -> str:
    if "row" in label:
        return f" row {label['row']}"
    return f" [{label['example']}]" if "example" in label else ""


def _for_rows(recipe: Recipe, skip_bad: bool) -> Recipe:
    """The recipe, which leaves out bad lines instead of the whole file if it can do so."""
    if not skip_bad or not hasattr(recipe.config, "skip_bad"):
        return recipe
    return dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, skip_bad=True))


def _rows(
    model: keras.Model, recipe: Recipe, files: SkippedFiles
) -> tuple[list[dict[str, Any]], Any]:
    """`(file and number of each row, counted from 1, all rows)` of files with many examples."""
    found = [files.read(lambda paths: extras.read_rows(recipe, paths[0]), [p]) for p in files.good]
    parts, paths = [part for part in found if part is not None], files.good
    labels = [
        {"file": str(path), "row": row}
        for path, part in zip(paths, parts, strict=True)
        for row in extras.row_numbers(recipe, path, len(next(iter(part.values()))))
    ]
    fields = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return labels, _as_features(model, fields)


def find(
    files: list[Path], suffixes: tuple[str, ...] | None, reader: str = "the run's recipe"
) -> list[Path]:
    """The files, and instead of a folder its files that end in one of `suffixes`, sorted."""
    found: list[Path] = []
    kinds = "any file" if suffixes is None else f"files that end in {', '.join(suffixes)}"
    for path in files:
        if path.is_dir():
            inside = [path / name for name in files_below(path) if _fits(path / name, suffixes)]
            if not inside:
                raise KerasdistError(
                    f"There is nothing to read in the folder {str(path)!r}. Expected {kinds}. Name "
                    "another folder, or the files."
                )
            found += inside
        elif not path.exists():
            raise KerasdistError(
                f"The file {str(path)!r} does not exist. Expected {kinds}, or a folder. Check the "
                "name."
            )
        elif not _fits(path, suffixes):
            raise KerasdistError(
                f"{reader[0].upper()}{reader[1:]} cannot read the file {str(path)!r}. Expected "
                f"{kinds}. {_instead(path, suffixes)}"
            )
        else:
            found.append(path)
    return found


def _instead(path: Path, suffixes: tuple[str, ...] | None) -> str:
    """What to do about a file that the recipe cannot read."""
    if suffixes == TEXTS.suffixes and path.suffix.lower() in TABLES.suffixes:
        return (
            "The run was trained on text files, and only a run that was trained on a table reads "
            "tables. Write each text into a .txt file."
        )
    return "Convert the file."


def _fits(path: Path, suffixes: tuple[str, ...] | None) -> bool:
    return suffixes is None or path.suffix.lower() in suffixes


def _batches(
    model: keras.Model,
    recipe: Recipe,
    paths: list[Path],
    size: int,
    reading: Phase,
    files: SkippedFiles,
) -> Iterator[Any]:
    def read(some: list[Path]) -> dict[str, np.ndarray]:
        return extras.read_examples(recipe, some)

    for start in range(0, len(paths), size):
        reading.reached(start)  # A generator may be read more than once.
        found = files.read(read, paths[start : start + size])
        if found is not None:
            yield _as_features(model, found)
    _ = files.good  # Raises if nothing could be read.


def _as_features(model: keras.Model, fields: dict[str, np.ndarray]) -> Any:
    """Arrays by name for a model that names its inputs, else the only array."""
    is_named = isinstance(model, Model) or isinstance(getattr(model, "input", None), dict)
    return fields if is_named or len(fields) > 1 else next(iter(fields.values()))


def _arrays(model: keras.Model, spec: Any, files: SkippedFiles) -> tuple[list[dict[str, Any]], Any]:
    """`(file and number of each example, all examples)` of .npy and .npz files."""
    features = read(model, spec, need_targets=False)
    wanted = {
        name: leaf
        for name, leaf in fields_read(model, spec)
        if any(leaf is x for x in keras.tree.flatten(features.args))
    }
    labels: list[dict[str, Any]] = []
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    for path in files.good:
        arrays = files.read(lambda paths: _read_arrays(paths[0], wanted), [path])
        if arrays is None:
            continue
        for name, array in arrays.items():
            pieces[name].append(array)
        count = len(next(iter(arrays.values())))
        labels += [{"file": str(path), "example": i} for i in range(count)]
    _ = files.good  # Raises if nothing could be read.
    try:
        fields = {name: np.concatenate(arrays) for name, arrays in pieces.items()}
    except ValueError as error:
        raise KerasdistError(
            f"Received files of different shapes: {error}. Expected the same shape in each. "
            "Predict them one by one."
        ) from None
    return labels, _as_features(model, fields)


def _read_arrays(path: Path, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            arrays = dict.fromkeys(wanted, loaded) if len(wanted) == 1 else {}
        else:
            arrays = {name: loaded[name] for name in loaded.files}
    except Exception as error:
        raise _wrong(path, f"cannot be read ({first_line(error)})", "a plain array") from error
    if len(arrays) == len(wanted) == 1 and not set(arrays) & set(wanted):
        arrays = dict(zip(wanted, arrays.values(), strict=True))  # np.savez(file, array)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise _wrong(path, f"has no field {missing[0]!r}", f"an .npz with {', '.join(wanted)}")
    found = {name: _as_batch(path, name, arrays[name], leaf) for name, leaf in wanted.items()}
    counts = {len(array) for array in found.values()}
    if len(counts) != 1:
        raise _wrong(
            path, f"has fields with {sorted(counts)} examples", "the same number in each field"
        )
    return found


def _as_batch(path: Path, name: str, array: np.ndarray, leaf: Any) -> np.ndarray:
    """Converts an array to the run's type and shape. A single example becomes a batch of one."""
    shape = leaf.shape
    if array.ndim == shape.rank - 1:
        array = array[np.newaxis]
    if array.ndim != shape.rank or not shape[1:].is_compatible_with(array.shape[1:]):
        raise _wrong(
            path,
            f"has {name!r} with the shape {array.shape}",
            f"{('n', *shape[1:])}, or one example without n",
        )
    kind = leaf.dtype.as_numpy_dtype
    if array.dtype != kind and not np.can_cast(array.dtype, kind, "same_kind"):
        raise _wrong(path, f"has {name!r} with the type {array.dtype}", leaf.dtype.name)
    return array.astype(kind)


def _wrong(path: Path, found: str, expected: str) -> KerasdistError:
    return KerasdistError(
        f"The file {str(path)!r} {found}. Expected {expected}, like the data that the run was "
        "trained on. Write the file again."
    )


def _fields(values: Any, best: list[Guess] | None) -> dict[str, Any]:
    if best is None:
        return {"values": plain_values(values)}
    top = [{"class": g.name, "index": g.index, _kind(g): g.score} for g in best]
    return {"class": best[0].name, _kind(best[0]): best[0].score, "top": top}


def _kind(guess: Guess) -> str:
    return "probability" if guess.is_probability else "score"


def text_of(values: Any, best: list[Guess] | None) -> str:
    if best is not None:
        if not best[0].is_probability:
            return ", ".join(f"{g.name} (score {decimal(g.score)})" for g in best)
        return ", ".join(f"{g.name} {g.score:.1%}" for g in best)
    leaves = keras.tree.flatten(values)
    if sum(np.size(leaf) for leaf in leaves) > MOST_VALUES:
        shapes = ", ".join(str(np.shape(leaf)) for leaf in leaves)
        return f"values with the shape {shapes}; --json prints them"
    found = (value for leaf in leaves for value in np.ravel(leaf).tolist())
    return ", ".join(decimal(value, DIGITS) for value in found)
