"""Replaces attributes of other libraries' classes and modules for a while, and puts them back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

Replace = Callable[[Any, str, Any], None]


class Replacements:
    """Attributes that are replaced while any thread is inside `active()`.

    Args:
        apply: Gets a function `replace(owner, name, value)`, and calls it for each attribute.

    Example:
        >>> class Dog:
        ...     sound = "woof"
        >>> quiet = Replacements(lambda replace: replace(Dog, "sound", ""))
        >>> with quiet.active():
        ...     Dog.sound
        ''
        >>> Dog.sound
        'woof'
    """

    def __init__(self, apply: Callable[[Replace], None]):
        self._apply = apply
        self._lock = threading.RLock()
        self._depth = 0
        self._originals: list[tuple[Any, str, Any]] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._apply(self._replace)
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self._undo()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def _undo(self) -> None:
        while self._originals:
            setattr(*self._originals.pop())
