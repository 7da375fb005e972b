"""A measuring process of `kerasdist bench`, which trains one round at a time.

It reads JSON objects from its standard input and answers each with one: first what to train, then
the number of steps per round, then `{"go": true}` for each round.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, TextIO

# Before TensorFlow is imported: nobody reads its messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from kerasdist.cli.fit_arguments import parse_bench
from kerasdist.cli.job import FIT_OPTIONS, Job
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import Stream, open_stream
from kerasdist.devices import gpus, visible_gpus
from kerasdist.devices.names import logical_cpus_if_more
from kerasdist.models.contract import Model, ensure_compiled
from kerasdist.models.fields import read
from kerasdist.training import api
from kerasdist.training.progress.profile import Split

# The trial, which measures about how long a step takes.
TRIAL_STEPS, TRIAL_ROUNDS = 5, 4
# The options that concern one training step, for `kerasdist.fit`.
STEP_OPTIONS = tuple(name for name in FIT_OPTIONS if name not in ("steps", "ema"))

# Sends an answer to the process that asked.
Say = Callable[[dict[str, Any]], None]
# Keras's logs of an epoch.
Logs = dict[str, Any] | None


class Rounds(keras.callbacks.Callback):
    """Makes each epoch a round: waits before it, and afterwards says how long it took."""

    def __init__(self, wait: Callable[[], bool], say: Say):
        super().__init__()
        self._wait, self._say = wait, say
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if epoch and not self._wait():  # The first epoch compiles, and starts at once.
            self.model.stop_training = True
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        took = time.perf_counter() - self._began
        self._say({"round": epoch, "seconds": took, "memory": peak_memory()})


class Trial(keras.callbacks.Callback):
    """Measures the time until the end of the first step, and about the time per later step."""

    def __init__(self) -> None:
        super().__init__()
        self._times = [time.perf_counter()]

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._times.append(time.perf_counter())

    @property
    def seconds_per_step(self) -> float:
        took = [after - before for before, after in itertools.pairwise(self._times)]
        return min(took[1:]) / TRIAL_STEPS

    @property
    def first_step(self) -> float:
        whole = self._times[1] - self._times[0]
        return whole - (TRIAL_STEPS - 1) * self.seconds_per_step


def peak_memory() -> int:
    """The peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Trainer:
    """Trains the job of a request, with kerasdist's or with Keras's `fit`."""

    def __init__(self, request: dict[str, Any]):
        parsed, _ = parse_bench(request["argv"])
        self._job = Job(parsed)
        self._runner, self._names = request["runner"], request["names"]
        self._arguments = {name: parsed.run[name] for name in STEP_OPTIONS}
        self._arguments["batch_size"] = request["batch_size"] or self._arguments["batch_size"]
        self._augment = None if self._job.recipe is None else self._job.recipe.build_augment()

    def run(
        self,
        steps_per_epoch: int,
        epochs: int,
        callback: keras.callbacks.Callback,
        profile: str | None,
    ) -> Split | None:
        """Trains, and returns the parts of a step if it was traced."""
        train = self._by_keras if self._runner == "keras" else self._by_kerasdist
        return train(steps_per_epoch, epochs, callback, profile)

    def _stream(self) -> Stream:
        return open_stream(
            self._job.build_data("train"),
            batch_size=self._arguments["batch_size"],
            seed=self._arguments["seed"],
        )

    def examples_per_step(self) -> float:
        """The average over a pass, whose last batch may be smaller; else the first batch's."""
        stream = self._stream()
        try:
            num_examples = getattr(stream, "num_examples", None)
            if num_examples and stream.num_batches:
                return num_examples / stream.num_batches
            return float(len(tf.nest.flatten(stream.first_batch())[0]))
        finally:
            stream.close()

    def _by_kerasdist(
        self, steps: int, epochs: int, callback: keras.callbacks.Callback, profile: str | None
    ) -> Split | None:
        history = api.fit(
            self._job.build_model,
            self._job.build_data("train"),
            devices=self._names,
            augment=self._augment,
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=[callback],
            progress=False,
            profile=profile or False,
            **self._arguments,
        )
        split: Split | None = history.profile
        return split

    def _by_keras(
        self, steps: int, epochs: int, callback: keras.callbacks.Callback, profile: str | None
    ) -> None:
        strategy = tf.distribute.get_strategy()
        if len(self._names) > 1:
            strategy = tf.distribute.MirroredStrategy(self._names)
        with strategy.scope():
            model = self._job.build_model()
            ensure_compiled(model)
            fitted = as_keras_takes_it(model)
        stream, seed = self._stream(), self._arguments["seed"]
        prepare = preparation(
            model, stream, labels=(), name="data", augment=self._augment, seed=seed
        )
        dataset = prepare(stream.open(0, 0), 0, 0).repeat()
        dataset = dataset.map(lambda *batch: _for_keras(model, *batch)).prefetch(tf.data.AUTOTUNE)
        fitted.fit(dataset, epochs=epochs, steps_per_epoch=steps, callbacks=[callback], verbose=0)


class OneArgument(keras.Model):
    """A model whose `call` takes all inputs in one argument, as Keras's `fit` gives them."""

    def __init__(self, model: keras.Model):
        super().__init__()
        self.model_itself = model

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model_itself(*inputs, training=training)


def as_keras_takes_it(model: keras.Model) -> keras.Model:
    """A compiled model that Keras's `fit` can train on the same data."""
    if not isinstance(model, Model) or isinstance(model.features, str):
        return model
    fitted = OneArgument(model)
    settings = keras.saving.deserialize_keras_object(model.get_compile_config())
    fitted.compile(**settings | {"optimizer": model.optimizer})
    return fitted


def _for_keras(model: keras.Model, *batch: Any) -> tuple[Any, ...]:
    example = read(model, batch[0] if len(batch) == 1 else batch)
    parts = (example.x, example.y, example.sample_weight)
    return parts if example.sample_weight is not None else parts[:2]


def prepare_devices(names: list[str]) -> None:
    """Leaves the first GPUs visible, as many as there are `names`, or makes logical CPUs."""
    is_cpu = names[0].startswith("CPU")
    if is_cpu:
        logical_cpus_if_more(len(names))
    visible_gpus.keep([] if is_cpu else range(len(names)))  # Keras would use a GPU that it sees.
    gpus.spare_others([])  # The processes of all measurements share the same GPUs.


def serve(source: TextIO, say: Say) -> None:
    """Answers the requests of one measurement."""
    request = json.loads(source.readline())
    prepare_devices(request["names"])
    trainer = Trainer(request)
    trial = Trial()
    trainer.run(TRIAL_STEPS, TRIAL_ROUNDS, trial, None)
    say(
        {
            "seconds_per_step": trial.seconds_per_step,
            "first_step": trial.first_step,
            "examples_per_step": trainer.examples_per_step(),
        }
    )
    plan = json.loads(source.readline())

    def wait() -> bool:
        return bool(source.readline().strip())

    with tempfile.TemporaryDirectory() as folder:
        # The first epoch is traced; the rounds follow it.
        split = trainer.run(plan["steps"], plan["rounds"] + 1, Rounds(wait, say), folder)
    say({"split": None if split is None else split.parts()})


def main() -> None:
    """Answers on the standard output, and sends everything else to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    serve(sys.stdin, say)


if __name__ == "__main__":
    main()
