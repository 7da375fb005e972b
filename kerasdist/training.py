"""`fit`, `evaluate` and `predict`: the loops around the compiled step."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import arguments, inspection, pure
from kerasdist.data import Stream, open_stream
from kerasdist.devices import Placement, place
from kerasdist.errors import DivergedError, KerasdistError
from kerasdist.feeding import Feed, element_spec, preparation, translate
from kerasdist.hooks import Hooks
from kerasdist.loops import END_OF_DATA, NOT_FINITE
from kerasdist.models import ensure_compiled
from kerasdist.reporting import Meter, Reporter, as_number, mode_of
from kerasdist.runs import RunFolder
from kerasdist.steps import Engine, Settings

# A call of the compiled loop lasts about this long: signals, logs and callbacks wait for its end.
SECONDS_PER_CALL = 0.5
DEFAULT_TEST_BATCH_SIZE = 128
# Steps in a row that a float16 loss scale may skip: it is halved each time, from 2**15 to nothing.
MOST_LEFT_OUT = 50


def fit(
    model: keras.Model | Callable[[], keras.Model],
    data: Any,
    *,
    validation_data: Any = None,
    validation_steps: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    devices: Any = "auto",
    shards: int | None = None,
    deterministic: bool = False,
    precision: str | None = None,
    clip_norm: float | None = None,
    ema: float | None = None,
    class_weight: dict[int, float] | None = None,
    augment: Callable | None = None,
    shuffle: bool | int = True,
    seed: int = 0,
    run_dir: Any = None,
    resume: bool = True,
    init_from: Any = None,
    save_every: Any = None,
    keep: int = 2,
    monitor: str | None = None,
    on_nan: str = "stop",
    log_every: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    progress: Any = "auto",
) -> keras.callbacks.History:
    """Trains a Keras model on one device or several, with the maths of one.

    Args:
        model: A compiled `keras.Model`, a `kerasdist.Model`, or a function that returns one. It may
            be built anywhere; it holds the trained weights afterwards.
        data: Arrays `(x, y[, sample_weight])` or a dict of them, a `tf.data.Dataset`, a
            random-access source, a `keras.utils.PyDataset`, a provider with `get_batch_data()`, or
            a generator function. See docs/data.md.
        validation_data: Data of any of these forms, evaluated after each epoch.
        validation_steps: How many batches of it; all by default.
        epochs: How many epochs to train.
        steps: How many steps to train instead, over as many epochs as that takes.
        steps_per_epoch: How many steps make an epoch; one pass over the data by default.
        batch_size: The examples of one step over all devices, for data that is not in batches.
        devices: "auto" (every GPU, else the CPU), a number, indices, names, "cpu" or "cpu:4".
        shards: Into how many equal parts a batch is cut: a multiple of the devices. More parts than
            devices accumulate gradients and save memory.
        deterministic: Whether the same `shards` give the same bits on any number of devices.
        precision: "mixed_bfloat16", "mixed_float16" or another Keras dtype policy, for a `model`
            that is a function.
        clip_norm: The largest global norm of the gradients, taken over the whole batch.
        ema: The decay of an average of the weights, used for validation; the model keeps its own
            weights, and `history.ema_weights` has the average.
        class_weight: The weight of each class in the loss.
        augment: `augment(batch, seed)` changes a batch, with TensorFlow's stateless functions.
        shuffle: Whether examples are shuffled (for a dataset of examples: or the buffer's size).
        seed: Decides the order of the data, dropout and augmentation.
        run_dir: A folder for configuration, metrics and the trained model; none by default.
        resume: Without effect in this version, which has no checkpoints yet.
        init_from: Not in this version.
        save_every: Not in this version.
        keep: Without effect in this version.
        monitor: Not in this version.
        on_nan: "stop": a NaN or infinity stops the training before it reaches the weights.
        log_every: Steps between two log lines; by default a line each epoch.
        callbacks: Keras callbacks.
        progress: False is silent, "json" prints one JSON object a line.

    Returns:
        Keras's `History`.

    Raises:
        KerasdistError: For anything the caller can fix.
        DivergedError: If a step was not finite; the weights are those of the step before.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.linspace(0, 1, 64)[:, None]
        >>> history = kerasdist.fit(model, (x, 2 * x), batch_size=16, epochs=2, progress=False)
        >>> sorted(history.history)
        ['loss']
    """
    arguments.check_counts(
        epochs=epochs,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        validation_steps=validation_steps,
        log_every=log_every,
    )
    arguments.check_choices(clip_norm=clip_norm, ema=ema, on_nan=on_nan, seed=seed)
    arguments.refuse_reserved(init_from=init_from, save_every=save_every, monitor=monitor)
    placement = place(devices)
    num_shards = arguments.resolve_shards(shards, placement.num_replicas, deterministic)
    model = _make(model, precision, seed)
    ensure_compiled(model)
    inspection.refuse_unsupported(model)
    inspection.check_precision(model, precision)
    reporter = progress if isinstance(progress, Reporter) else Reporter(mode_of(progress))

    with contextlib.ExitStack() as stack:
        stream = open_stream(data, batch_size=batch_size, shuffle=shuffle, seed=seed)
        stack.callback(stream.close)
        arguments.check_stream(stream, num_shards, epochs, steps, steps_per_epoch, deterministic)
        findings = _inspect(model, stream, "data", augment)
        feed = Feed(
            stream,
            prepare=preparation(
                model, stream, labels=findings.labels, name="data", augment=augment, seed=seed
            ),
        )
        stack.callback(feed.close)
        validation = None
        if validation_data is not None:
            validation = _validation_feed(
                stack, model, validation_data, stream.batch_size, validation_steps, epochs
            )
        folder = run_dir
        if run_dir is not None and not isinstance(run_dir, RunFolder):
            folder = RunFolder(run_dir, {"batch_size": batch_size, "epochs": epochs, "seed": seed})
        settings = Settings(
            shards=num_shards,
            seed=seed,
            deterministic=deterministic,
            clip_norm=clip_norm,
            ema=ema,
            class_weight=class_weight,
            gather_metrics=findings.gather_metrics,
            num_denominators=findings.num_denominators,
        )
        stack.enter_context(fixed_additions(deterministic, placement))
        engine = Engine(model, placement, settings)
        plan = Plan(epochs, steps, steps_per_epoch or None, stream.num_batches)
        hooks = Hooks(engine, callbacks, epochs=epochs, steps=plan.epoch_steps, verbose=0)
        loop = Loop(engine, feed, plan, hooks, reporter, folder, log_every)
        try:
            loop.train(
                lambda: _test(engine, validation, validation_steps, hooks, use_ema=bool(ema))
            )
        except tf.errors.OpError as error:
            raise _during_run(translate(error) or error) from None
        except KerasdistError as error:
            raise _during_run(error) from error.__cause__
        finally:
            engine.write_back()
        history = hooks.history
        history.ema_weights = engine.ema_weights() if ema else None
        if folder is not None:
            folder.finish(model, loop.result(placement), history.ema_weights)
    return history


def _during_run(error: Exception) -> Exception:
    """Marks an error as one of a run that had begun, for the exit code."""
    error.during_run = True
    return error


@dataclass(frozen=True)
class Plan:
    """How long to train."""

    epochs: int
    steps: int | None
    steps_per_epoch: int | None
    num_batches: int | None

    @property
    def epoch_steps(self) -> int | None:
        return self.steps_per_epoch or self.num_batches

    def is_done(self, epoch: int, step: int) -> bool:
        return step >= self.steps if self.steps is not None else epoch >= self.epochs

    def steps_left(self, step: int, step_in_epoch: int) -> int:
        left = self.steps - step if self.steps is not None else 2**40
        if self.steps_per_epoch is not None:
            left = min(left, self.steps_per_epoch - step_in_epoch)
        return left


class Loop:
    """Epochs and steps around the engine, and what is told about them."""

    def __init__(
        self,
        engine: Engine,
        feed: Feed,
        plan: Plan,
        hooks: Hooks,
        reporter: Reporter,
        folder: RunFolder | None,
        log_every: int | None,
    ):
        self._engine, self._feed, self._plan, self._hooks = engine, feed, plan, hooks
        self._reporter, self._folder, self._log_every = reporter, folder, log_every
        self._meter = Meter()
        self._seconds_per_step: float | None = None
        self._left_out = 0
        self.step = 0
        self.epoch = 0
        self.examples = 0
        self.logs: dict[str, Any] = {}

    def train(self, validate: Callable[[], dict[str, Any]]) -> None:
        self._feed.open(0)
        self._hooks.call("on_train_begin")
        while not self._plan.is_done(self.epoch, self.step) and not self._hooks.stop:
            self._hooks.call("on_epoch_begin", self.epoch)
            reset_metrics(self._engine)
            self._train_epoch()
            self.logs = metric_results(self._engine)
            self.logs |= {f"val_{name}": value for name, value in validate().items()}
            self._reporter.epoch(
                self.epoch, None if self._plan.steps else self._plan.epochs, self.logs
            )
            if self._folder is not None:
                self._folder.log(kind="epoch", step=self.step, epoch=self.epoch + 1, **self.logs)
            self._hooks.call("on_epoch_end", self.epoch, dict(self.logs))
            self.epoch += 1
        self._hooks.call("on_train_end", dict(self.logs))

    def _train_epoch(self) -> None:
        in_epoch = 0
        self._meter.restart()
        while self._plan.steps_left(self.step, in_epoch) > 0 and not self._hooks.stop:
            wanted = min(self._plan.steps_left(self.step, in_epoch), self._steps_per_call())
            self._hooks.batch("on_train_batch_begin", in_epoch)
            began = time.perf_counter()
            outcome = self._engine.train(self._feed.iterator, wanted)
            self._took(time.perf_counter() - began, outcome.num_steps, outcome.num_examples)
            self.step += outcome.num_steps
            in_epoch += outcome.num_steps
            self.examples += outcome.num_examples
            self._feed.advance(outcome.num_steps)
            if outcome.num_steps:
                self._left_out = 0
                self._log(outcome.loss)
                if self._hooks.every_train_batch:
                    logs = metric_results(self._engine)
                    self._hooks.batch("on_train_batch_end", in_epoch - 1, logs)
            if outcome.status == NOT_FINITE:
                self._feed.advance(1)
                self._not_finite(outcome, in_epoch)
            if outcome.status == END_OF_DATA and self._feed.is_over():
                self._feed.open(self._feed.epoch + 1)
                if self._plan.steps_per_epoch is None:
                    return

    def _steps_per_call(self) -> int:
        if self._hooks.every_train_batch or self._seconds_per_step is None:
            return 1
        wanted = max(1, int(SECONDS_PER_CALL / max(self._seconds_per_step, 1e-6)))
        if self._log_every:
            wanted = min(wanted, self._log_every - self.step % self._log_every)
        return wanted

    def _took(self, seconds: float, num_steps: int, num_examples: int) -> None:
        if self.step == 0:  # Tracing and compiling are in it.
            self._meter.restart()
            self._seconds_per_step = 0.05
        elif num_steps:
            self._meter.add(num_steps, num_examples)
            self._seconds_per_step = seconds / num_steps

    def _log(self, loss: float) -> None:
        if not self._log_every or self.step % self._log_every:
            return
        rate, seconds = self._meter.rates()
        self._reporter.step(self.step, loss, rate, seconds)
        if self._folder is not None:
            self._folder.log(
                kind="step", step=self.step, loss=loss, examples_per_second=round(rate, 3)
            )

    def _not_finite(self, outcome, in_epoch: int) -> None:
        scaled = isinstance(self._engine.model.optimizer, keras.optimizers.LossScaleOptimizer)
        self._left_out += 1
        if scaled and math.isfinite(outcome.loss) and self._left_out <= MOST_LEFT_OUT:
            return  # The loss scale was too large for float16: it was halved, the step left out.
        if self._hooks.accept_not_finite(in_epoch, outcome.loss):
            return
        step = self.step + 1
        raise DivergedError(
            f"Received a step that is not finite: step {step}, loss {outcome.loss:g}, first in the "
            f"{outcome.not_finite[0]}. Expected finite numbers; nothing of this step was written. "
            "Lower the learning rate, set `clip_norm`, or look at the batch.",
            step=step,
            names=outcome.not_finite,
        )

    def result(self, placement: Placement) -> dict[str, Any]:
        """The content of result.json but for the weights' hash."""
        rate, _ = self._meter.rates()
        return {
            "status": "finished",
            "steps": self.step,
            "epochs": self.epoch,
            "examples_seen": self.examples,
            **self.logs,
            "examples_per_second": round(rate, 3),
            "devices": list(placement.names),
        }


def evaluate(
    model_or_run: keras.Model,
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    devices: Any = "auto",
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, Any]:
    """Computes loss and metrics over all of `data`, exactly, on any number of devices.

    Args:
        model_or_run: A compiled `keras.Model`, or a `kerasdist.Model`.
        data: Data in any form that `fit` takes.
        batch_size: Examples a batch, over all devices, for data that is not in batches.
        steps: How many batches; all by default.
        devices: As in `fit`.
        callbacks: Keras callbacks, for their `on_test_*` hooks.

    Returns:
        A dict of floats by name.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(loss="mse", optimizer="sgd")
        >>> kerasdist.evaluate(model, (np.ones((3, 2)), np.ones((3, 1))))
        {'loss': 1.0}
    """
    arguments.check_counts(epochs=1, steps=steps)
    placement = place(devices)
    model = model_or_run
    ensure_compiled(model)
    inspection.refuse_unsupported(model)
    with contextlib.ExitStack() as stack:
        feed, findings = _test_feed(stack, model, data, batch_size, "data", None)
        if steps is None:
            arguments.check_ends(feed.stream, "data", "steps")
        settings = Settings(
            shards=placement.num_replicas,
            gather_metrics=findings.gather_metrics,
            num_denominators=findings.num_denominators,
        )
        engine = Engine(model, placement, settings)
        hooks = Hooks(engine, callbacks)
        return _test(engine, feed, steps, hooks, use_ema=False)


def prepare(model: keras.Model, data: Any) -> None:
    """Compiles and builds a model for `data`, so that weights can be loaded into it."""
    ensure_compiled(model)
    stream = open_stream(data, default_batch_size=DEFAULT_TEST_BATCH_SIZE)
    try:
        _inspect(model, stream, "data")
    finally:
        stream.close()


def predict(
    model_or_run: keras.Model,
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    devices: Any = "auto",
) -> Any:
    """Computes the model's outputs for all of `data`, in its order.

    Args:
        model_or_run: A `keras.Model`; it need not be compiled.
        data: Data in any form that `fit` takes; targets may be missing.
        batch_size: Examples a batch, over all devices, for data that is not in batches.
        steps: How many batches; all by default.
        devices: As in `fit`.

    Returns:
        Arrays in the structure of the model's outputs.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Rescaling(2.0)])
        >>> kerasdist.predict(model, np.array([[1.0], [3.0]])).tolist()
        [[2.0], [6.0]]
    """
    arguments.check_counts(epochs=1, steps=steps)
    placement = place(devices)
    model = model_or_run
    with contextlib.ExitStack() as stack:
        stream = open_stream(
            data, batch_size=batch_size, default_batch_size=DEFAULT_TEST_BATCH_SIZE
        )
        stack.callback(stream.close)
        if steps is None:
            arguments.check_ends(stream, "data", "steps")
        inspection.build_for_prediction(model, stream.element_spec)
        prepare = preparation(model, stream, labels=(), name="data", need_targets=False)
        feed = Feed(stream, prepare=prepare)
        stack.callback(feed.close)
        engine = Engine(model, placement, Settings(shards=placement.num_replicas))
        feed.open(0)
        pieces = []
        while steps is None or len(pieces) < steps:
            batch = next(feed.iterator, None)
            if batch is not None:
                feed.advance(1)
                pieces.append(engine.predict(batch))
            elif feed.is_over():
                break
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *pieces)


def _make(model: Any, precision: str | None, seed: int) -> keras.Model:
    """The model itself, or what its function builds, reproducibly and under `precision`."""
    if isinstance(model, keras.Model):
        return model
    if not callable(model):
        raise KerasdistError(
            f"Received `model` of type {type(model).__name__}. Expected a `keras.Model`, or a "
            "function without arguments that returns one. Build one, for example with "
            "`keras.Sequential`."
        )
    policy, state = keras.config.dtype_policy(), random.getstate()
    try:
        if precision is not None:
            keras.config.set_dtype_policy(precision)
        random.seed(seed)  # Keras draws the seeds of initializers from here.
        built = model()
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(state)
    if not isinstance(built, keras.Model):
        raise KerasdistError(
            f"Received a function as `model` that returned {type(built).__name__}. Expected a "
            "`keras.Model`. Return the model from it."
        )
    return built


def _inspect(
    model: keras.Model, stream: Stream, name: str, augment: Callable | None = None
) -> inspection.Findings:
    spec = element_spec(stream, augment)
    if spec is None:
        raise KerasdistError(
            f"Received `{name}` without a single batch. Expected at least one. Check how it is "
            "read."
        )
    findings = inspection.inspect(model, spec)
    if stream.arrays is not None:
        inspection.check_arrays(model, stream.arrays, findings.labels, name)
    return findings


def _test_feed(stack, model, data, batch_size, name: str, default_batch_size: int | None):
    stream = open_stream(
        data,
        batch_size=batch_size,
        name=name,
        default_batch_size=default_batch_size or DEFAULT_TEST_BATCH_SIZE,
    )
    stack.callback(stream.close)
    findings = _inspect(model, stream, name)
    prepare = preparation(model, stream, labels=findings.labels, name=name)
    feed = Feed(stream, prepare=prepare, name=name)
    stack.callback(feed.close)
    return feed, findings


def _validation_feed(
    stack, model, data, batch_size: int | None, steps: int | None, epochs: int
) -> Feed:
    feed, _ = _test_feed(stack, model, data, None, "validation_data", batch_size)
    if steps is None:
        arguments.check_ends(feed.stream, "validation_data", "validation_steps")
        arguments.check_readable(feed.stream, "validation_data", epochs)
    return feed


def _test(
    engine: Engine, feed: Feed | None, steps: int | None, hooks: Hooks, *, use_ema: bool
) -> dict[str, Any]:
    """One pass over a feed with the metrics of the model."""
    if feed is None:
        return {}
    feed.open(0)
    hooks.call("on_test_begin")
    reset_metrics(engine)
    done = 0
    try:
        while steps is None or done < steps:
            left = 2**40 if steps is None else steps - done
            hooks.batch("on_test_batch_begin", done)
            outcome = engine.test(
                feed.iterator, 1 if hooks.every_test_batch else left, use_ema=use_ema
            )
            done += outcome.num_steps
            feed.advance(outcome.num_steps)
            if hooks.every_test_batch and outcome.num_steps:
                hooks.batch("on_test_batch_end", done - 1, metric_results(engine))
            if outcome.status == END_OF_DATA and feed.is_over():
                break
    except tf.errors.OpError as error:
        raise translate(error) or error from None
    logs = metric_results(engine)
    hooks.call("on_test_end", dict(logs))
    return logs


def reset_metrics(engine: Engine) -> None:
    engine.model.reset_metrics()
    engine.refresh("metrics")


def metric_results(engine: Engine) -> dict[str, Any]:
    """The loss and the metrics so far, as floats."""
    engine.write_back("metrics")
    model = engine.model
    results = {"loss": pure.loss_so_far(model), **model.get_metrics_result()}
    return {name: as_number(value) for name, value in results.items()}


@contextlib.contextmanager
def fixed_additions(deterministic: bool, placement: Placement) -> Iterator[None]:
    """Keeps the order of additions as written while `deterministic`; puts the option back."""
    if not deterministic:
        yield
        return
    if placement.is_gpu:
        # Has no off switch (TF 2.21), so only where kernels need it.
        tf.config.experimental.enable_op_determinism()
    option = "arithmetic_optimization"
    before = tf.config.optimizer.get_experimental_options().get(option)
    tf.config.optimizer.set_experimental_options({option: False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({option: before})
