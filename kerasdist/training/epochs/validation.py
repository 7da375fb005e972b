"""One pass over data: validation, `evaluate` and `predict`."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data.feed import Feed
from kerasdist.data.values import translate
from kerasdist.devices.placement import fetched
from kerasdist.engine.compiled_loop import END_OF_DATA, SECONDS_PER_CALL
from kerasdist.engine.engine import Engine
from kerasdist.models import pure
from kerasdist.models.tensors.composites import as_tensor, concatenated
from kerasdist.runs.atomic import as_number
from kerasdist.training.epochs.callbacks import Hooks

# More steps than any data has: the compiled loop needs a number.
NO_LIMIT = 2**40


def test(
    engine: Engine,
    feed: Feed,
    steps: int | None,
    hooks: Hooks,
    *,
    use_ema: bool,
    call: int | None,
    show: Callable[[int, int | None], None] | None = None,  # noqa: PT028 - no pytest's test
) -> dict[str, Any]:
    """One pass over a feed: the loss and metrics of the model.

    `call` numbers the validations of a training, whose random numbers depend on it.
    `show(batches done, total)` is called before the first call of the compiled loop and after each.
    With it, a call takes about as long as one in training.
    """
    feed.open(0)
    engine.model.stop_evaluating = False
    engine.draws.begin(call)
    hooks.call("on_test_begin")
    reset_metrics(engine)
    done, per_call = 0, 1
    total = steps or feed.stream.num_batches
    if show is not None:
        show(done, total)
    try:
        while steps is None or done < steps:
            left = NO_LIMIT if steps is None else steps - done
            if show is not None and not hooks.every_test_batch:
                left = min(left, per_call)
            (left,) = engine.placement.of_chief(left)  # Only the chief has a display.
            if not feed.is_at_end():
                hooks.batch("on_test_batch_begin", done)
            began = time.perf_counter()
            if engine.takes_one_batch_a_call:
                left = 1
            elif hooks.every_test_batch or engine.model.stop_evaluating:
                left = min(left, hooks.until_batch_end(done))
            engine.calls.begin("test")
            outcome = engine.test(feed.batches, left, use_ema=use_ema)
            engine.calls.end(outcome.num_steps)
            seconds = max(time.perf_counter() - began, 1e-6)
            per_call = max(1, int(SECONDS_PER_CALL * outcome.num_steps / seconds))
            done += outcome.num_steps
            feed.advance(outcome.num_steps)
            if show is not None:
                show(done, total)
            if hooks.every_test_batch and outcome.num_steps:
                index = hooks.index_of_batch_end(done)
                hooks.batch("on_test_batch_end", index, metric_results(engine, "test_step"))
            # A callback asks to stop. As in Keras, one that asks at the begin gets one execution.
            if engine.model.stop_evaluating and outcome.num_steps:
                break
            if outcome.status == END_OF_DATA and feed.is_over():
                _tell_end(engine, feed, done, steps)
                break
    except tf.errors.OpError as error:
        raise translate(error) or error from None
    logs = metric_results(engine, "test_step")
    hooks.call("on_test_end", dict(logs))
    return logs


def outputs(
    engine: Engine,
    feed: Feed,
    steps: int | None,
    hooks: Hooks,
    show: Callable[[int], None] = lambda done: None,
) -> Any:
    """One pass over a feed: the outputs of the model, in their structure.

    `show(batches done)` is called after each.
    """
    feed.open(0)
    engine.model.stop_predicting = False
    engine.draws.begin()
    hooks.call("on_predict_begin")
    batches = read_batches(feed)
    pieces: list[Any] = []
    while steps is None or len(pieces) < steps:
        done = len(pieces)
        if not feed.is_at_end():
            hooks.batch("on_predict_batch_begin", done)
        by_execution = hooks.every_predict_batch or engine.model.stop_predicting
        together = hooks.until_batch_end(done) if by_execution else 1
        together = together if steps is None else min(together, steps - done)
        found = [_predicted(engine, batch) for batch in itertools.islice(batches, together)]
        pieces += found
        show(len(pieces))
        if found and hooks.every_predict_batch:
            index = hooks.index_of_batch_end(len(pieces))
            shown = keras.tree.map_structure(as_tensor, _joined(found))
            hooks.batch("on_predict_batch_end", index, {"outputs": shown})
        if len(found) < together:
            _tell_end(engine, feed, len(pieces), steps)
            break
        if engine.model.stop_predicting:
            break
    hooks.call("on_predict_end")
    return _joined(pieces)


def _predicted(engine: Engine, batch: Any) -> Any:
    engine.calls.begin("predict")
    found = engine.predict(batch)
    engine.calls.end(1)
    return found


def _joined(pieces: list[Any]) -> Any:
    """All rows of the outputs for some batches."""
    return keras.tree.map_structure(lambda *parts: concatenated(parts), *pieces)


def read_batches(feed: Feed) -> Iterator[Any]:
    """The batches of an open feed, one by one, to its end."""
    while True:
        try:
            batch = next(feed.iterator, None)
        except tf.errors.OpError as error:
            raise translate(error) or error from None
        if batch is not None:
            feed.advance(1)
            yield batch
        elif feed.is_over():
            return


def _tell_end(engine: Engine, feed: Feed, done: int, steps: int | None) -> None:
    """Warns, as Keras does, if the data has fewer batches than were asked for."""
    if steps is not None and engine.placement.is_chief:
        warnings.warn(
            f"`{feed.name}` ended after {done} of {steps} requested batches. The result covers "
            "only these. Ask for fewer batches, or repeat the data.",
            stacklevel=2,
        )


def reset_metrics(engine: Engine) -> None:
    engine.model.reset_metrics()
    engine.state.refresh("metrics")


def metric_results(engine: Engine, method: str = "train_step") -> dict[str, Any]:
    """The loss and the metrics so far, as floats.

    Of a step that the model's class overrides, these are the values that it returned last. As in
    Keras, values with the names of the model's metrics come from these.
    """
    engine.state.write_back("metrics")
    model = engine.model
    results: dict[str, Any]
    if method not in engine.settings.own_steps:
        results = {"loss": pure.loss_so_far(model), **model.get_metrics_result()}
    elif not engine.settings.own_steps[method].needs_logs:
        results = model.get_metrics_result()
    else:
        results = _flat(engine.last_logs(method))
    return {name: _logged(fetched(value)) for name, value in results.items()}


def _logged(value: Any) -> Any:
    """A value as Keras logs it: a float, or an array if a metric has a number for each class."""
    found = getattr(value, "numpy", lambda: value)()
    return found if getattr(found, "ndim", 0) else as_number(found)


def _flat(logs: Any) -> dict[str, Any]:
    """The values of nested dicts by their innermost names, as Keras shows them."""
    found: dict[str, Any] = {}
    for name, value in (logs or {}).items():
        found |= _flat(value) if isinstance(value, dict) else {name: value}
    return found
