"""Keras callbacks around the engine: they see an up-to-date model and can change it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasdist.engine.engine import Engine
from kerasdist.models import pure
from kerasdist.runs.atomic import write_text
from kerasdist.runs.metrics_log import NOT_METRICS
from kerasdist.training.epochs import early_stop
from kerasdist.training.epochs.callback_memory import CallbackMemory

# These write files. Of several workers, only the chief does.
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


# What metrics.jsonl and result.json say besides metrics. A callback's value does not replace it.
_OF_LOGS = (NOT_METRICS - {"learning_rate"}) | {
    "event",
    "status",
    "steps",
    "epochs",
    "examples_seen",
    "devices",
    "stopped",
    "saved",
    "weights_sha256",
}

# What a callback sets on the model to stop `fit`, `evaluate` or `predict`.
_STOPS = ("stop_training", "stop_evaluating", "stop_predicting")


class Hooks:
    """Calls Keras's hooks. The caller's variables are updated before, and read again after."""

    def __init__(
        self,
        engine: Engine,
        callbacks: Sequence[keras.callbacks.Callback],
        *,
        has_history: bool = True,
        is_watched: bool = False,
        **params: Any,
    ):
        self._engine = engine
        # Somebody else than a callback looks at the model between epochs.
        self._is_watched = is_watched
        is_chief = engine.placement.is_chief
        self._is_shared = bool(callbacks) and engine.placement.workers is not None
        self._callbacks = [c for c in callbacks if is_chief or not isinstance(c, _WRITERS)]
        self.history = keras.callbacks.History()
        # A list with a history becomes `model.history`: in Keras, only `fit` does that.
        members = [*self._callbacks, self.history] if has_history else self._callbacks
        self._list = keras.callbacks.CallbackList(members, model=engine.model, **params)
        # Of all callbacks, because all workers must run the same steps per call.
        self.every_train_batch = any(pure.wants_batches(c, "train") for c in callbacks)
        self.every_test_batch = any(pure.wants_batches(c, "test") for c in callbacks)
        self.every_predict_batch = any(pure.wants_batches(c, "predict") for c in callbacks)
        self._begun: tuple[str, int] | None = None
        self._memory = CallbackMemory(callbacks, self._callbacks)

    def until_batch_end(self, done: int) -> int:
        """The steps until the next `on_*_batch_end`: `compile(steps_per_execution=...)` joins some.

        It counts from the begin of an epoch, and `done` steps of it are done.
        """
        return self._together - done % self._together

    def index_of_batch_end(self, done: int) -> int:
        """What `on_*_batch_end` receives after `done` steps: as in Keras, of whole executions."""
        return (done - 1) // self._together * self._together + self._together - 1

    @property
    def _together(self) -> int:
        return int(self._engine.model.steps_per_execution or 1)

    @property
    def stop(self) -> bool:
        return bool(self._engine.model.stop_training)

    @property
    def stopped_early(self) -> bool:
        return self.stop and early_stop.is_early(self._callbacks)

    def stop_again(self, *, early: bool | None) -> None:
        """For a run that had been stopped, after `restore`: stops if the callbacks still would.

        `early` is `stopped_early` at that time; None if an older checkpoint does not say it.
        """
        early = early_stop.is_early(self._callbacks) if early is None else early
        stays = early_stop.still_holds(self._callbacks, early=early)
        self._engine.model.stop_training = stays
        if not stays:
            early_stop.forget(self._callbacks)

    def why_stopped(self) -> dict[str, str]:
        """For result.json: what stopped the training. Empty if nothing did."""
        return {"stopped": early_stop.reason(self._callbacks)} if self.stop else {}

    @contextlib.contextmanager
    def _visible(self) -> Iterator[None]:
        if not (self._callbacks or self._is_watched):
            yield
            return
        self._engine.state.write_back()
        yield
        self._engine.state.refresh("trainable", "other", "optimizer")

    def call(self, hook: str, *args: Any) -> None:
        """Calls a hook of every callback, for example `call("on_epoch_begin", 0)`."""
        if hook in ("on_epoch_begin", "on_test_begin", "on_predict_begin"):
            self._begun = None
        with self._visible():
            getattr(self._list, hook)(*args)
        if self._is_shared:  # A callback that stops one worker stops all of them.
            model = self._engine.model
            own = [bool(getattr(model, name, False)) for name in _STOPS]
            stops = self._engine.placement.of_all(*own).max(axis=0)
            for name, stop in zip(_STOPS, stops.tolist(), strict=True):
                setattr(model, name, bool(stop))

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Calls `on_epoch_end`. Returns `logs` with the numbers that callbacks added to it.

        Keras gives them a dict of their own. The history is the last one to see it.
        """
        history = self.history.history
        before = {name: len(values) for name, values in history.items()}
        self.call("on_epoch_end", epoch, dict(logs))
        new = {
            name: values
            for name, values in history.items()
            if len(values) > before.get(name, 0) and name not in logs
        }
        for values in new.values():
            values[-1] = _of_now(values[-1])
        added = {
            name: float(values[-1])
            for name, values in new.items()
            if name not in _OF_LOGS and isinstance(values[-1], (int, float, np.number))
        }
        return {**logs, **added}

    def batch(self, hook: str, index: int, logs: dict[str, Any] | None = None) -> None:
        """Calls a batch hook if some callback uses it."""
        wanted = {
            "train": self.every_train_batch,
            "test": self.every_test_batch,
            "predict": self.every_predict_batch,
        }[hook.split("_")[1]]
        # The batch can turn out to belong to the next pass over the data: begin it only once.
        if not wanted or self._begun == (hook, index):
            return
        self._begun = (hook, index)
        self.call(hook, index, logs)

    def state(self) -> dict[str, np.ndarray]:
        """What callbacks remember between epochs, for a checkpoint."""
        return self._memory.arrays()

    def restore(self, arrays: Mapping[str, np.ndarray]) -> str | None:
        """Restores `state`. Call it after `on_train_begin`, which resets it.

        Returns what to say of memory that found no callback.
        """
        unknown = self._memory.restore(arrays)
        if not unknown:
            return None
        return (
            f"the checkpoint has the memory of {len(unknown)} callback{'s' * (len(unknown) > 1)} "
            f"that this training does not have: {', '.join(unknown)}"
        )

    def rewind_logs(self, epoch: int) -> None:
        """Before `on_train_begin` of a resumed run: CSV files keep the finished epochs."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True
                _keep_epochs(Path(callback.filename).resolve(), callback.sep, epoch)

    def restored_epoch(self) -> int | None:
        """The epoch, from 1, whose weights an `EarlyStopping` put back at the end; None if none."""
        found = None
        for callback in self._callbacks:
            is_kind = isinstance(callback, keras.callbacks.EarlyStopping)
            if is_kind and callback.restore_best_weights and callback.best_weights is not None:
                found = int(callback.best_epoch) + 1
        last = self.history.epoch[-1] + 1 if self.history.epoch else None
        return None if found == last else found

    def accept_not_finite(self, index: int, logs: dict[str, Any]) -> bool:
        """Tells callbacks of a step that is not finite, if a `TerminateOnNaN` is among them.

        It ends the training. Every callback sees the loss, as in Keras.
        """
        if not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._callbacks):
            return False
        self.batch("on_train_batch_end", index, logs)
        return True


def _of_now(value: Any) -> Any:
    """The number in a tensor or variable, which would change, and which no file can hold."""
    if not (keras.ops.is_tensor(value) or isinstance(value, keras.Variable)):
        return value
    array = np.asarray(keras.ops.convert_to_numpy(value))
    return array if array.ndim else array.item()


def _keep_epochs(path: Path, separator: str, epoch: int) -> None:
    """Removes the rows of epochs that will be trained again."""
    if not path.is_file():
        return
    with path.open(newline="") as file:
        text = file.read()
    end = "\r\n" if "\r\n" in text else "\n"
    header, *rows = text.splitlines() or [""]
    column = header.split(separator).index("epoch") if "epoch" in header else 0
    kept = [row for row in rows if _is_before(epoch, row.split(separator)[column:])]
    # Without rows there is no header, either: `CSVLogger` writes one into an empty file.
    new = "".join(f"{line}{end}" for line in (header, *kept)) if kept else ""
    if new != text:
        write_text(path, new)


def _is_before(epoch: int, cells: list[str]) -> bool:
    """Whether a row is of an earlier epoch. A killed process may have left half a row."""
    return bool(cells) and cells[0].isdecimal() and int(cells[0]) < epoch
