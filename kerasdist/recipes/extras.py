"""Reads the optional parts of a recipe's data.py, for `evaluate` and `predict`.

- `CLASS_NAMES`: the name of each class; or a setting `class_names` that was learnt from the data.
- `describe(config)`: what was found in the data, as a dict of short texts by title.
- `build_groups(config, split)`: for each kind of group, the name of each example's group.
- `read_examples(config, paths)`: reads files as the model's features, one example per file.
- `read_sounds(config, split, positions)`: the sounds of some examples, for the report.
- `describe_examples(config, split, positions)`: short texts on some examples, for the report.
- `target_names(config)`: what a regression predicts, for the report.
- `EXAMPLE_SUFFIXES`: which files of a folder `read_examples` can read.
- `decode_files(config, contents)`: reads files as the model's features in a TensorFlow graph, from
  their bytes. An exported SavedModel has it.
- `raw_inputs(config)`: the way from raw strings and numbers to the model's features in a TensorFlow
  graph, with `inputs` (a `tf.TensorSpec` by name). An exported SavedModel has it.
- `read_rows(config, path)`: reads a file with many examples, such as a table, as the model's
  features.
- `row_numbers(config, path)`: the number of each of these examples in the file, counted from 1, if
  some were left out; else None.
- `describe_input(config)`: what a program must give to an exported model, in words.
- `build_views(config)`: returns a function that makes a list of views of the model's features, for
  test-time augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError, first_line
from kerasdist.recipes.recipe import Recipe


def _part(recipe: Recipe | None, name: str) -> Any:
    return None if recipe is None else recipe.optional(name)


def class_names(recipe: Recipe | None) -> tuple[str, ...] | None:
    learnt = getattr(None if recipe is None else recipe.config, "class_names", None)
    names = learnt or _part(recipe, "CLASS_NAMES")
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise KerasdistError(
            f"Received `CLASS_NAMES = {names!r}` from the recipe's data.py. Expected a tuple of "
            "strings, one per class. Correct it."
        )
    return tuple(names)


def description(recipe: Recipe | None) -> dict[str, str]:
    """What the recipe found in its data, to say before the training; nothing if it does not."""
    describe = _part(recipe, "describe")
    if recipe is None or describe is None:
        return {}
    return {str(title): str(text) for title, text in describe(recipe.config).items()}


def groups(recipe: Recipe | None, split: str) -> dict[str, np.ndarray]:
    build = _part(recipe, "build_groups")
    if recipe is None or build is None:
        return {}
    found = build(recipe.config, split)
    if not isinstance(found, Mapping) or any(np.ndim(names) != 1 for names in found.values()):
        raise KerasdistError(
            f"Received {type(found).__name__} from the recipe's `build_groups`. Expected a dict of "
            'lists with one name per example, such as {"speaker": names}. Correct it in data.py.'
        )
    return {str(kind): np.asarray(names) for kind, names in found.items() if len(names)}


def views(recipe: Recipe | None) -> Callable[[Any], list[Any]]:
    """The function that makes views of the features. Raises if the recipe has none."""
    build = _part(recipe, "build_views")
    if recipe is None or build is None:
        raise KerasdistError(
            "Received `--tta` for a run whose recipe has no views. Expected a recipe with "
            "`build_views(config)` in its data.py. Leave out `--tta`, or write this function."
        )
    return build(recipe.config)


def read_sounds(
    recipe: Recipe | None, split: str, positions: Sequence[int]
) -> list[tuple[np.ndarray, int]]:
    """`(samples, samples per second)` of examples of a split; nothing if the recipe has none.

    Args:
        recipe: The recipe.
        split: "train" or "validation".
        positions: The numbers of the examples in the data of the split.
    """
    read = _part(recipe, "read_sounds")
    if recipe is None or read is None or not positions:
        return []
    found = list(read(recipe.config, split, list(positions)))
    is_right = len(found) == len(positions) and all(
        isinstance(each, tuple) and len(each) == 2 and int(each[1]) > 0 for each in found
    )
    if not is_right:
        raise KerasdistError(
            f"Received {len(found)} items from the recipe's `read_sounds` for {len(positions)} "
            "examples. Expected a pair (samples, samples per second) for each. Correct it in "
            "data.py."
        )
    return [(np.asarray(samples), int(rate)) for samples, rate in found]


def describe_examples(
    recipe: Recipe | None, split: str, positions: Sequence[int]
) -> list[dict[str, str]]:
    """The values of examples of a split as texts by title; nothing if the recipe has none.

    Args:
        recipe: The recipe.
        split: "train" or "validation".
        positions: The numbers of the examples in the data of the split.
    """
    describe = _part(recipe, "describe_examples")
    if recipe is None or describe is None or not positions:
        return []
    found = list(describe(recipe.config, split, list(positions)))
    if len(found) != len(positions) or not all(isinstance(each, Mapping) for each in found):
        raise KerasdistError(
            f"Received {len(found)} items from the recipe's `describe_examples` for "
            f"{len(positions)} examples. Expected a dict of short texts for each. Correct it in "
            "data.py."
        )
    return [{str(title): str(value) for title, value in each.items()} for each in found]


def target_names(recipe: Recipe | None) -> tuple[str, ...]:
    """What a regression predicts; empty if the recipe does not say it."""
    find = _part(recipe, "target_names")
    return () if recipe is None or find is None else tuple(map(str, find(recipe.config)))


def file_decoder(recipe: Recipe | None) -> Callable[[Any], Mapping[str, Any]] | None:
    """A function of the bytes of files that makes the model's features; None without one."""
    decode = _part(recipe, "decode_files")
    if recipe is None or decode is None:
        return None
    return partial(decode, recipe.config)


def raw_inputs(recipe: Recipe | None) -> Any:
    """The way from raw values to the model's features in a graph; None without one."""
    build = _part(recipe, "raw_inputs")
    return None if recipe is None or build is None else build(recipe.config)


def has_rows(recipe: Recipe | None) -> bool:
    return _part(recipe, "read_rows") is not None


def read_rows(recipe: Recipe, path: Path) -> dict[str, np.ndarray]:
    """Reads all examples of a file."""
    rows = _part(recipe, "read_rows")(recipe.config, path)
    return {str(name): np.asarray(array) for name, array in rows.items()}


def row_numbers(recipe: Recipe, path: Path, count: int) -> list[int]:
    """The number in a file of each of its examples that were read, counted from 1."""
    find = _part(recipe, "row_numbers")
    found = None if find is None else find(recipe.config, path)
    numbers = list(range(1, 1 + count)) if found is None else [int(number) for number in found]
    if len(numbers) != count:
        raise KerasdistError(
            f"Received {len(numbers)} numbers from the recipe's `row_numbers` for {count} rows. "
            "Expected one per row. Correct it in data.py."
        )
    return numbers


def input_in_words(recipe: Recipe | None) -> str | None:
    """What a program must give to an exported model, if the recipe says so."""
    describe = _part(recipe, "describe_input")
    return None if recipe is None or describe is None else str(describe(recipe.config))


def suffixes(recipe: Recipe | None) -> tuple[str, ...] | None:
    """The suffixes of files that `read_examples` takes, in lower case; None for any file."""
    found = _part(recipe, "EXAMPLE_SUFFIXES")
    return None if found is None else tuple(suffix.lower() for suffix in found)


def has_reader(recipe: Recipe | None) -> bool:
    return _part(recipe, "read_examples") is not None


def read_examples(recipe: Recipe, paths: list[Path]) -> dict[str, np.ndarray]:
    """Reads one example per file. An error names the file."""
    read = _part(recipe, "read_examples")
    try:
        examples = read(recipe.config, paths)
    except KerasdistError:
        raise
    except Exception as error:
        for path in paths if len(paths) > 1 else ():
            read_examples(recipe, [path])  # Raises for the broken file.
        raise KerasdistError(
            f"The file {str(paths[0])!r} cannot be read: {type(error).__name__}: "
            f"{first_line(error)}. Expected a complete file of its type. Replace the file, or "
            "leave it out."
        ) from error
    if not isinstance(examples, Mapping):
        raise KerasdistError(
            f"Received {type(examples).__name__} from the recipe's `read_examples`. Expected a "
            "dict with an array for each of the model's features. Correct it in data.py."
        )
    examples = {str(name): np.asarray(array) for name, array in examples.items()}
    for name, array in examples.items():
        if array.ndim == 0 or len(array) != len(paths):
            raise KerasdistError(
                f"Received {name!r} of the shape {array.shape} from the recipe's `read_examples` "
                f"for {len(paths)} files. Expected one example per file. Correct it in data.py."
            )
    return examples
