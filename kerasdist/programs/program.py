"""A program whose calls of Keras's methods go through kerasdist."""

from __future__ import annotations

import functools
from typing import Any

import keras

from kerasdist.devices.placement import Placement, place
from kerasdist.models import pure, refusals
from kerasdist.models.contract import Model
from kerasdist.programs import notes, numbered_fits, validation_data
from kerasdist.programs.numbered_fits import with_callback
from kerasdist.programs.options import ProgramOptions
from kerasdist.programs.single_batches import SingleBatches, batch_of, single_batch
from kerasdist.training import keras_calls
from kerasdist.training.progress import listener
from kerasdist.training.progress.reporter import mode_of


class Program:
    """Keras's methods with the options of `enable`. All arguments have Keras's meaning."""

    def __init__(self, options: ProgramOptions):
        self.options = options
        self._placement: Placement | None = None
        self.told: set[str] = set()
        self.tells_devices = False

    def fit(self, model: keras.Model, **given: Any) -> keras.callbacks.History:
        _check_compiled(model, "fit")
        if not validation_data.is_preprocessed_by(model, given):
            return self._fit(model, given)
        given = validation_data.preprocessed(model, given)
        with refusals.called_by_model("fit", "evaluate"):
            return self._fit(model, given)

    def _fit(self, model: keras.Model, given: dict[str, Any]) -> keras.callbacks.History:
        notes.tell_devices(self)
        with listener.heard_by(functools.partial(notes.pass_on, self)):
            return self._train(model, given)

    def _train(self, model: keras.Model, given: dict[str, Any]) -> keras.callbacks.History:
        options, fits = self.options, numbered_fits.of(self.options.run_dir)
        if fits is None or fits.is_training:  # A fit in a callback is repeated with its epoch.
            return _shown(model, given, options.of_fit())
        with fits.next(model, given, self.place()) as (folder, given):
            kept = {"run_dir": folder, **options.of_run()}
            return _shown(model, given, {**options.of_fit(), **kept})

    def evaluate(self, model: keras.Model, **given: Any) -> Any:
        _check_compiled(model, "evaluate")
        if validation_data.catch(given):
            return {}
        notes.tell_devices(self)
        options = self.options
        return keras_calls.evaluate(model, **given, **options.of_test())

    def predict(self, model: keras.Model, **given: Any) -> Any:
        batch = single_batch(given)
        if batch is not None:  # Often in a loop, where it must not be compiled again.
            return self._batches().predict(model, batch)
        notes.tell_devices(self)
        return keras_calls.predict(model, **given, **self.options.of_predict())

    def train_on_batch(
        self,
        model: keras.Model,
        x: Any,
        y: Any,
        sample_weight: Any,
        class_weight: Any,
        return_dict: bool,
    ) -> Any:
        _check_compiled(model, "train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Arguments `sample_weight` and `class_weight` cannot be specified at the same "
                    f"time. Received: sample_weight={sample_weight}, class_weight={class_weight}"
                )
            sample_weight = pure.class_weights(y, class_weight)
        notes.tell_of_steps(self)
        logs = self._batches().train(model, batch_of(x, y, sample_weight))
        return logs if return_dict else pure.in_order(model, logs)

    def test_on_batch(
        self, model: keras.Model, x: Any, y: Any, sample_weight: Any, return_dict: bool
    ) -> Any:
        _check_compiled(model, "test_on_batch")
        logs = self._batches().test(model, batch_of(x, y, sample_weight))
        return logs if return_dict else pure.in_order(model, logs)

    def predict_on_batch(self, model: keras.Model, x: Any) -> Any:
        return self._batches().predict(model, batch_of(x, None, None))

    def _batches(self) -> SingleBatches:
        notes.tell_devices(self)
        return SingleBatches(self.options, self.place(), functools.partial(notes.pass_on, self))

    def place(self) -> Placement:
        """The devices. Finding them again for each batch would take too long."""
        if self._placement is None:
            self._placement = place(self.options.devices)
        return self._placement


def _shown(
    model: keras.Model, given: dict[str, Any], own: dict[str, Any]
) -> keras.callbacks.History:
    """Trains, and shows what Keras would: a script's output may be read by others."""
    verbose = given["verbose"]
    has_display = verbose in (1, "auto") and mode_of("auto") in ("live", "notebook")
    if verbose == 0 or has_display:
        return keras_calls.fit(model, **given, **own)
    callbacks = with_callback(given["callbacks"], pure.EpochLines(verbose))
    history = keras_calls.fit(model, **{**given, "callbacks": callbacks}, **own, progress=False)
    history.params = {**history.params, "verbose": verbose}
    return history


def _check_compiled(model: keras.Model, method: str) -> None:
    """Keras's own error. A `kerasdist.Model` can compile itself."""
    if not isinstance(model, Model):
        pure.check_compiled(model, method)
