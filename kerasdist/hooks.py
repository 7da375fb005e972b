"""Keras callbacks around the engine: they see the caller's model up to date, and may change it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from kerasdist import pure
from kerasdist.steps import Engine


class Hooks:
    """Calls Keras's hooks. Values go to the caller's objects before, and come back after."""

    def __init__(
        self, engine: Engine, callbacks: Sequence[keras.callbacks.Callback], **params: Any
    ):
        self._engine = engine
        self._callbacks = list(callbacks)
        self.history = keras.callbacks.History()
        self._list = keras.callbacks.CallbackList(
            [*self._callbacks, self.history], model=engine.model, **params
        )
        self.every_train_batch = any(pure.wants_batches(c, "train") for c in self._callbacks)
        self.every_test_batch = any(pure.wants_batches(c, "test") for c in self._callbacks)
        self._begun: tuple[str, int] | None = None

    @property
    def stop(self) -> bool:
        return bool(self._engine.model.stop_training)

    @contextlib.contextmanager
    def _visible(self) -> Iterator[None]:
        if not self._callbacks:
            yield
            return
        self._engine.write_back()
        yield
        self._engine.refresh("trainable", "other", "optimizer")

    def call(self, hook: str, *args: Any) -> None:
        """Calls a hook of every callback, for example `call("on_epoch_begin", 0)`."""
        with self._visible():
            getattr(self._list, hook)(*args)

    def batch(self, hook: str, index: int, logs: dict | None = None) -> None:
        """Calls a batch hook where some callback asks for it."""
        wanted = self.every_test_batch if "test" in hook else self.every_train_batch
        # A batch that turned out to be of the next pass over the data is begun once.
        if not wanted or self._begun == (hook, index):
            return
        self._begun = (hook, index)
        self.call(hook, index, logs)

    def accept_not_finite(self, index: int, loss: float) -> bool:
        """Whether a `TerminateOnNaN` callback takes care of a loss that is not finite."""
        watchers = [c for c in self._callbacks if isinstance(c, keras.callbacks.TerminateOnNaN)]
        for callback in watchers:
            callback.on_batch_end(index, {"loss": loss})
        return bool(watchers)
