"""A file that says which array of a checkpoint belongs to which weight, for names that differ."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kerasdist.errors import KerasdistError, closest
from kerasdist.model_files.tf_checkpoints.contents import Entry, plain
from kerasdist.model_files.tf_checkpoints.files import listed
from kerasdist.model_files.tf_checkpoints.matching import Matches
from kerasdist.model_files.tf_checkpoints.names import Names, Weight

DRAFT = "init-map.json"
MapLike: TypeAlias = "Mapping[str, str | None] | str | os.PathLike[str]"
"""The name in the checkpoint of each weight, or of a layer's; None leaves a weight as it is."""


def read_map(init_map: MapLike | None) -> dict[str, str | None]:
    """A mapping from a JSON file or a dict, checked."""
    if init_map is None:
        return {}
    if isinstance(init_map, Mapping):
        return _checked(dict(init_map), "`init_map`")
    path = Path(init_map).expanduser()
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise KerasdistError(
            f"The mapping {str(path)!r} cannot be read: {reason}. Expected a JSON file such as "
            '{"conv1/kernel": "tower/conv1/weights"}. Check the name, or correct the file.'
        ) from error
    return _checked(found, repr(str(path)))


def _checked(found: Any, where: str) -> dict[str, str | None]:
    if not isinstance(found, dict):
        raise KerasdistError(
            f"The mapping in {where} is {type(found).__name__}. Expected names of weights and what "
            'they are called in the checkpoint, such as {"conv1/kernel": "tower/conv1/weights"}. '
            "Correct it."
        )
    for name, value in found.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise KerasdistError(
                f"The mapping in {where} has {value!r} for {name!r}. Expected one name in the "
                "checkpoint, or null to leave the weight as it is. Choose one."
            )
    return found


def resolve(
    mapping: Mapping[str, str | None],
    weights: Sequence[Weight],
    entries: Sequence[Entry],
    names: Names,
) -> tuple[list[tuple[Weight, Entry]], list[Weight]]:
    """`(pairs, weights to leave alone)` that a mapping names: weights, or whole layers."""
    pairs: list[tuple[Weight, Entry]] = []
    left_alone: list[Weight] = []
    of_weights = {weight.name: weight for weight in weights}
    in_file = {name: entry for entry in entries for name in (entry.key, *entry.names, entry.name)}
    # Whole layers first: a weight that is named itself wins.
    for name, target in sorted(mapping.items(), key=lambda item: item[0] in of_weights):
        inside = [w for w in weights if w.name == name or w.name.startswith(f"{name}/")]
        if not inside:
            known = sorted({*of_weights, *(w.name.rpartition("/")[0] for w in weights)} - {""})
            raise KerasdistError(
                f"The mapping names {name!r}, which is not a weight or a layer of the model."
                f"{closest(name, known)} Expected one of {listed(known, 20)}. Correct the name."
            )
        pairs = [pair for pair in pairs if pair[0] not in inside]
        left_alone = [weight for weight in left_alone if weight not in inside]
        if target is None:
            left_alone += inside
        elif name in of_weights:
            pairs.append((of_weights[name], _entry(plain(target), name, in_file)))
        else:
            pairs += _layer(name, target, inside, entries, names)
    _refuse_shapes(pairs)
    return pairs, left_alone


def _entry(target: str, name: str, in_file: Mapping[str, Entry]) -> Entry:
    if target not in in_file:
        raise KerasdistError(
            f"The mapping names {target!r} for {name!r}, which the checkpoint does not have."
            f"{closest(target, in_file)} Expected one of {listed(sorted(in_file), 20)}. Correct "
            "the name."
        )
    return in_file[target]


def _layer(
    name: str, target: str, inside: Sequence[Weight], entries: Sequence[Entry], names: Names
) -> list[tuple[Weight, Entry]]:
    """The weights of a layer and the arrays of a scope with the same names."""
    scope = {}
    for entry in entries:
        for own, form in zip(entry.names, names.of_entry(entry), strict=False):
            if own.startswith(f"{target}/"):
                scope[form[target.count("/") + 1 :]] = entry
    pairs = []
    depth = name.count("/") + 1
    for weight in inside:
        forms = [name[depth:] for name in weight.names if name[depth:] in scope]
        if not forms:
            there = listed([e.name for e in entries if e.name.startswith(f"{target}/")])
            scopes = {scope for e in entries for own in e.names for scope in _scopes(own)}
            guess = "" if there else closest(target, sorted(scopes))
            raise KerasdistError(
                f"The mapping names {target!r} for the layer {name!r}, but the checkpoint has no "
                f"{weight.name[len(name) + 1 :]!r} there.{guess} Expected the same names in both. "
                f"Map each weight by itself; the checkpoint has {there or 'nothing there'}."
            )
        pairs.append((weight, scope[forms[0]]))
    return pairs


def _scopes(name: str) -> list[str]:
    """The scopes that a name is in: `a` and `a/b` for `a/b/w`."""
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _refuse_shapes(pairs: Sequence[tuple[Weight, Entry]]) -> None:
    for weight, entry in pairs:
        if weight.shape != entry.shape:
            raise KerasdistError(
                f"The mapping names {entry.name!r} of shape {entry.shape} for {weight.name!r} of "
                f"shape {weight.shape}. Expected the same shape. Choose another array."
            )


def draft(found: Matches) -> dict[str, Any]:
    """A mapping to edit: what was found, and what is open with all that would do."""
    lines: dict[str, Any] = {weight.name: entry.name for weight, entry in found.pairs}
    lines |= {weight.name: [e.name for e in some] for weight, some in found.ambiguous}
    return lines | {weight.name: None for weight in found.missing}


def write_draft(found: Matches, folder: Path | None = None) -> str:
    """Writes a draft to a new file in a folder, and says so; says what to write if it cannot."""
    folder = folder or Path.cwd()
    text = json.dumps(draft(found), indent=2) + "\n"
    for number in range(1, 100):
        path = folder / (DRAFT if number == 1 else f"init-map-{number}.json")
        try:
            with path.open("x") as file:
                file.write(text)
        except FileExistsError:
            continue
        except OSError:
            break
        return f"The draft {str(path)!r} has all names: choose one where there are several, and "
    return "Write a JSON file of the weights' names and their names in the checkpoint, and "
