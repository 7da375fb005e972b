"""Which array of a checkpoint belongs to which weight of a model: by name, or by shape if clear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kerasdist.model_files.tf_checkpoints.contents import Entry
from kerasdist.model_files.tf_checkpoints.names import Name, Names, Weight

_Item = TypeVar("_Item", Weight, Entry)
# The name and shape of each array of a layer; the names may be empty.
Signature = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass
class Matches:
    """What was found.

    Attributes:
        by_map: Pairs that a mapping names.
        by_name: Pairs with the same name and shape.
        by_shape: Pairs of the only two layers of their shape.
        mismatched: Pairs with the same name and different shapes.
        ambiguous: Weights for which several arrays, or arrays for which several weights would do.
        missing: Weights without an array.
        unused: Arrays without a weight.
    """

    by_map: list[tuple[Weight, Entry]] = field(default_factory=list)
    by_name: list[tuple[Weight, Entry]] = field(default_factory=list)
    by_shape: list[tuple[Weight, Entry]] = field(default_factory=list)
    mismatched: list[tuple[Weight, Entry]] = field(default_factory=list)
    ambiguous: list[tuple[Weight, list[Entry]]] = field(default_factory=list)
    missing: list[Weight] = field(default_factory=list)
    unused: list[Entry] = field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[Weight, Entry]]:
        """All pairs that are loaded."""
        return [*self.by_map, *self.by_name, *self.by_shape]


def match(
    weights: Sequence[Weight],
    entries: Sequence[Entry],
    names: Names,
    *,
    mapped: Sequence[tuple[Weight, Entry]] = (),
    left_alone: Sequence[Weight] = (),
) -> Matches:
    """Finds the array of each weight.

    Args:
        weights: The weights of the model, in its order.
        entries: The arrays of the checkpoint.
        names: What compares their names.
        mapped: Pairs that are decided already.
        left_alone: Weights that keep their values.
    """
    found = Matches(by_map=list(mapped))
    known = {id(w) for w, _ in mapped} | {id(w) for w in left_alone}
    used = {id(e) for _, e in mapped}
    open_weights = [w for w in weights if id(w) not in known]
    open_entries = [e for e in entries if id(e) not in used]
    _by_name(open_weights, open_entries, names, found)
    open_weights, open_entries = _left(open_weights, open_entries, found)
    _by_shape(open_weights, open_entries, names, found)
    open_weights, found.unused = _left(open_weights, open_entries, found)
    unclear = {id(w) for w, _ in found.ambiguous}
    found.missing = [w for w in open_weights if id(w) not in unclear] + list(left_alone)
    return found


def _left(
    weights: list[Weight], entries: list[Entry], found: Matches
) -> tuple[list[Weight], list[Entry]]:
    pairs = [*found.by_name, *found.by_shape, *found.mismatched]
    weights_done = {id(w) for w, _ in pairs}
    entries_done = {id(e) for _, e in pairs}
    return (
        [w for w in weights if id(w) not in weights_done],
        [e for e in entries if id(e) not in entries_done],
    )


def _by_name(
    weights: Sequence[Weight], entries: Sequence[Entry], names: Names, found: Matches
) -> None:
    """Pairs of which each is the other's best match. Equal ones are left to the shapes."""
    of_entries = [names.of_entry(entry) for entry in entries]
    by_end: dict[Name, set[int]] = defaultdict(set)
    for i, known in enumerate(of_entries):
        for name in known:
            by_end[name[-2:]].add(i)
    scores: dict[tuple[int, int], int] = {}
    for w, weight in enumerate(weights):
        near = set().union(*(by_end.get(name[-2:], set()) for name in weight.names))
        for e in near:
            score = max(_agreement(a, b) for a in weight.names for b in of_entries[e])
            if score:
                scores[w, e] = score
    best_of_weight, best_of_entry = _best(scores, 0), _best(scores, 1)
    for w, candidates in sorted(best_of_weight.items()):
        fitting = [e for e in candidates if entries[e].shape == weights[w].shape]
        chosen = fitting if len(fitting) == 1 else candidates
        if len(chosen) > 1 or w not in best_of_entry[chosen[0]]:
            continue
        (e,) = chosen
        rivals = [r for r in best_of_entry[e] if weights[r].shape == weights[w].shape]
        if len(rivals) > 1 and fitting:
            continue
        (found.by_name if fitting else found.mismatched).append((weights[w], entries[e]))


def _agreement(a: Name, b: Name) -> int:
    """How many parts from the end agree, if the shorter name is the end of the longer one."""
    length = min(len(a), len(b))
    if a[-length:] != b[-length:]:
        return 0
    if a == b:
        return 1000 + length
    # A lone "kernel" is the end of every kernel's name.
    return length if length > 1 else 0


def _best(scores: dict[tuple[int, int], int], side: int) -> dict[int, list[int]]:
    """The best partners of each one on a side; several if they are equally good."""
    found: dict[int, tuple[int, list[int]]] = {}
    for pair, score in sorted(scores.items()):
        own, other = pair[side], pair[1 - side]
        top, partners = found.get(own, (0, []))
        if score > top:
            found[own] = score, [other]
        elif score == top:
            partners.append(other)
    return {own: partners for own, (_, partners) in found.items()}


def _by_shape(
    weights: Sequence[Weight], entries: Sequence[Entry], names: Names, found: Matches
) -> None:
    """Pairs of layers whose arrays have the same names and shapes, or else only the same shapes.

    Several layers of the same shapes are paired in order, if the checkpoint has an order.
    """
    for with_leaf in (True, False):
        weights, entries = _left(list(weights), list(entries), found)
        of_model = _by_signature(
            _groups(weights, [(weight.layer,) for weight in weights]),
            lambda weight: weight.leaf,
            with_leaf,
        )
        scopes = _groups(entries, [names.of_entry(entry)[0][:-1] for entry in entries])
        if all(entry.order is not None for entry in entries):
            scopes.sort(key=lambda scope: min(entry.order or () for entry in scope))
        in_file = _by_signature(scopes, lambda entry: names.of_entry(entry)[0][-1], with_leaf)
        for signature in of_model.keys() & in_file.keys():
            own, other = of_model[signature], in_file[signature]
            has_order = all(entry.order is not None for scope in other for entry in scope)
            if len(own) == len(other) and (len(own) == 1 or has_order):
                for layer, scope in zip(own, other, strict=True):
                    found.by_shape += zip(layer, scope, strict=True)
            elif not with_leaf or not _has_distinct_shapes(own[0]):
                for place, weight in ((i, w) for layer in own for i, w in enumerate(layer)):
                    found.ambiguous.append((weight, [scope[place] for scope in other]))
    _check_order(found)


def _check_order(found: Matches) -> None:
    """Takes pairs by shape back, if they are in another order in the checkpoint."""
    pairs = sorted(found.by_shape, key=lambda pair: pair[0].layer)
    orders = {w.layer: e.order for w, e in pairs if e.order is not None}
    firsts = [min(e.order for w, e in pairs if w.layer == n and e.order) for n in orders]
    if firsts != sorted(firsts):
        found.ambiguous += [(weight, [entry]) for weight, entry in pairs]
        found.by_shape.clear()


def _groups(items: Sequence[_Item], keys: Sequence[tuple[object, ...]]) -> list[list[_Item]]:
    found: dict[tuple[object, ...], list[_Item]] = {}
    for item, key in zip(items, keys, strict=True):
        found.setdefault(key, []).append(item)
    return list(found.values())


def _by_signature(
    groups: Sequence[list[_Item]], leaf: Callable[[_Item], str], with_leaf: bool
) -> dict[Signature, list[list[_Item]]]:
    """The groups by the shapes in them, each sorted alike, so that their items can be paired."""
    found: dict[Signature, list[list[_Item]]] = {}
    for group in groups:
        if not with_leaf and not _has_distinct_shapes(group):
            continue
        signed = sorted(
            ((leaf(item) if with_leaf else "", item.shape), i) for i, item in enumerate(group)
        )
        signature = tuple(sign for sign, _ in signed)
        found.setdefault(signature, []).append([group[i] for _, i in signed])
    return found


def _has_distinct_shapes(group: Sequence[Weight | Entry]) -> bool:
    return len({item.shape for item in group}) == len(group)
