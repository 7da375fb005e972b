"""What was made for a model and is used again, until the model changes; it is freed with the model.

It is an attribute of the model. In a weak dictionary it would keep the model alive, which it
reaches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import keras

from kerasdist.models import pure
from kerasdist.models.memory.fingerprint import Same, fingerprint

Made = TypeVar("Made")

_ATTRIBUTE = "kerasdist_kept"
# For each kind of thing. A GAN's loop freezes and thaws layers.
_MOST_KEPT = 8


class Kept:
    """Things by kind and key. Copies and files of a model begin with nothing."""

    def __init__(self) -> None:
        self._things: dict[str, OrderedDict[Hashable, Any]] = {}
        self._compilation: tuple[Same, ...] = ()

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def take(self, kind: str, key: Hashable) -> Any | None:
        """Removes a thing and returns it, so that only one call at a time uses it."""
        things = self._things.get(kind)
        return None if things is None else things.pop(key, None)

    def give(self, kind: str, key: Hashable, thing: Any) -> list[Any]:
        """Keeps a thing. Returns what it drops: the one that was not used for the longest time."""
        things = self._things.setdefault(kind, OrderedDict())
        things[key] = thing
        things.move_to_end(key)
        return [things.popitem(last=False)[1] for _ in range(len(things) - _MOST_KEPT)]

    def drop_if_compiled_again(self, model: keras.Model) -> None:
        """Frees what an earlier `compile` led to."""
        made = (*pure.compilation(model), pure.mark_of_compilation(model))
        now = tuple(map(Same, made))
        if now != self._compilation:
            self._things.clear()
            self._compilation = now


def kept(model: keras.Model) -> Kept:
    """What is kept of a model."""
    found = vars(model).get(_ATTRIBUTE)
    if found is None:
        found = Kept()
        # Not by Keras's `__setattr__`, which would look for layers in it.
        object.__setattr__(model, _ATTRIBUTE, found)
    found.drop_if_compiled_again(model)
    return found


def remembered(
    model: keras.Model,
    kind: str,
    key: Hashable,
    make: Callable[[], Made],
    *,
    is_final: Callable[[Made], bool] = lambda made: True,
) -> Made:
    """What `make` returns, or what it returned earlier for the same unchanged model and `key`.

    What is not `is_final` is made again the next time.
    """
    print_of_model = fingerprint(model)
    made: Made | None = kept(model).take(kind, (print_of_model, key))
    if made is None:
        made = make()
        print_of_model = fingerprint(model)  # Making it may have built the model.
    if is_final(made):
        kept(model).give(kind, (print_of_model, key), made)
    return made
