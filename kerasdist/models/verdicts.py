"""Checks once per model that its loss and state can be computed on shards; remembers the result."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import tensorflow as tf

from kerasdist.models import pure
from kerasdist.models.additive_loss import find_inexact
from kerasdist.models.fields import Batch
from kerasdist.models.inspection import Findings
from kerasdist.models.state_rules import find_rules
from kerasdist.models.whole_batch.mixed_rows import refuse_mixed_rows
from kerasdist.models.whole_batch.separation import Separation, separate


@dataclass(frozen=True)
class Verdict:
    """How a model is computed on shards.

    `rules` has the rule of each state variable by its id, where the first batch shows one. `whole`
    says how to compute the loss if it needs the whole batch; None if it adds up over shards.
    """

    rules: Mapping[int, str]
    whole: Separation | None = None


def verdict(
    model: keras.Model,
    first_batch: Callable[[], Batch],
    findings: Findings,
    shards: int,
    *,
    training: bool,
    whole: bool | None = None,
) -> Verdict:
    """Decides how the loss and the state of a model are computed on shards.

    `whole` says whether to compute the loss on the outputs for the whole batch. None does so if
    the first batch shows that the loss does not add up over shards. Refuses a loss or state that
    cannot be computed. The verdict about a model is remembered until the model is compiled again
    or changed.
    """
    needs_check = findings.has_own_loss_terms or findings.own_state or findings.has_own_calls
    if shards == 1 or not (needs_check or whole):
        return Verdict({})
    batch = first_batch()
    own = findings.own_state
    kinds = (findings.has_own_loss_terms, findings.has_own_calls, findings.has_targets)
    of_data = (*kinds, _kind(model, batch))
    key = (training, whole, *of_data)
    memory = _memory(model)
    remembered = memory.get(key)
    if remembered is not None and remembered.is_of(model, own):
        rules = dict(zip(map(id, own), remembered.rules, strict=True))
        return Verdict(rules, remembered.whole)
    has_loss, separation = True, None
    if whole:
        separation = separate(model, batch, training=training)
    elif findings.has_own_loss_terms:
        found = find_inexact(model, batch, shards, training=training)
        has_loss = found.is_compared
        if found.error is not None and whole is False:
            raise found.error
        if found.error is not None:
            separation = separate(model, batch, training=training)
    targets, with_loss = findings.has_targets, separation is None
    if findings.has_own_calls and separation is None:
        refuse_mixed_rows(model, batch, training=training, targets=targets)
    rules = find_rules(model, batch, own, training=training, targets=targets, with_loss=with_loss)
    # Not remembered if something could not be compared: another batch may show it.
    if has_loss and len(rules) == len(own):
        memory[key] = _Verdict.of(model, own, rules, separation)
    return Verdict(rules, separation)


@dataclass(frozen=True)
class _Verdict:
    """The rules of a model's state, and how its loss is computed.

    It holds weak references only. They do not keep the model alive, and unlike an id they are never
    mistaken for a new object.
    """

    compilation: tuple[Callable[[], Any], ...]
    own_state: tuple[Callable[[], Any], ...]
    rules: tuple[str, ...]
    whole: Separation | None

    @classmethod
    def of(
        cls,
        model: keras.Model,
        own_state: Sequence[keras.Variable],
        rules: Mapping[int, str],
        whole: Separation | None,
    ) -> Self:
        return cls(
            tuple(_reference(made) for made in pure.compilation(model)),
            tuple(weakref.ref(v) for v in own_state),
            tuple(rules[id(v)] for v in own_state),
            whole,
        )

    def is_of(self, model: keras.Model, own_state: Sequence[keras.Variable]) -> bool:
        references = (*self.compilation, *self.own_state)
        now = (*pure.compilation(model), *own_state)
        return len(references) == len(now) and all(
            reference() is thing for reference, thing in zip(references, now, strict=True)
        )


def _reference(thing: Any) -> Callable[[], Any]:
    return (lambda: None) if thing is None else weakref.ref(thing)


_SET_BY_LOOPS = {"stop_training", "stop_evaluating", "stop_predicting"}
_VERDICTS: weakref.WeakKeyDictionary[Any, dict[Any, _Verdict]] = weakref.WeakKeyDictionary()


def _memory(model: keras.Model) -> dict[Any, _Verdict]:
    return {} if type(model).__hash__ is None else _VERDICTS.setdefault(model, {})


def _kind(model: keras.Model, batch: Batch) -> str:
    """Shapes and dtypes of the batch, and the settings of the model, its layers and losses."""

    def spec(leaf: Any) -> tuple[Any, str]:
        return tuple(getattr(leaf, "shape", ())), str(getattr(leaf, "dtype", type(leaf)))

    def settings(thing: Any) -> dict[str, Any]:
        plain = bool | int | float | str
        pairs = getattr(thing, "__dict__", {}).items()
        return {k: v for k, v in pairs if isinstance(v, plain) and k not in _SET_BY_LOOPS}

    things = [model, *pure.all_layers(model), *tf.nest.flatten(getattr(model, "loss", None))]
    return repr((tf.nest.map_structure(spec, batch), [settings(thing) for thing in things]))
