"""A process of `kerasdist bench`: trains one way, round by round, when it is told to.

It reads JSON objects from its standard input and answers each with one: first what to train, then
how many steps a round has, then `{"go": true}` for each round.
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

# Before TensorFlow: its messages are not for the one who asks.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from kerasdist.cli import options
from kerasdist.cli.job import Job
from kerasdist.data.feed import preparation
from kerasdist.data.streams import Stream, open_stream
from kerasdist.devices.placement import logical_cpus_if_more
from kerasdist.models.contract import Model, ensure_compiled
from kerasdist.models.fields import read
from kerasdist.training import api as training

# Before the rounds, to know how many steps one has.
TRIAL_STEPS, TRIAL_ROUNDS = 5, 4
# What `kerasdist.fit` and the rounds of Keras's own have alike.
FIT_OPTIONS = (
    "batch_size",
    "shards",
    "deterministic",
    "jit",
    "precision",
    "clip_norm",
    "seed",
    "allow_nan",
)


class Rounds(keras.callbacks.Callback):
    """An epoch is a round: waits for a word before each, and says afterwards how long it took."""

    def __init__(self, wait: Callable[[], bool], say: Callable[[dict[str, Any]], None]):
        super().__init__()
        self._wait, self._say = wait, say
        self._began = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        if epoch and not self._wait():  # The first is for compiling.
            self.model.stop_training = True
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        took = time.perf_counter() - self._began
        self._say({"round": epoch, "seconds": took, "memory": peak_memory()})


class Trial(keras.callbacks.Callback):
    """How long it takes to the end of the first step, and about how long a step takes then."""

    def __init__(self) -> None:
        super().__init__()
        self._times = [time.perf_counter()]

    def on_epoch_end(self, epoch, logs=None):
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
    """Bytes, of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Trainer:
    """Trains the job of a request, by kerasdist or by Keras's own `fit`."""

    def __init__(self, request: dict[str, Any]):
        parsed = options.parse_fit(request["argv"], "kerasdist bench", options.BENCH_OPTIONS)
        self._job = Job(parsed)
        self._runner, self._names = request["runner"], request["names"]
        self._arguments = {name: parsed.run[name] for name in FIT_OPTIONS}
        self._arguments["batch_size"] = request["batch_size"] or self._arguments["batch_size"]
        self._augment = None if self._job.recipe is None else self._job.recipe.build_augment()

    def run(self, steps_per_epoch: int, epochs: int, callback: Any, profile: str | None) -> Any:
        """The parts of a step, if it was traced."""
        train = self._by_keras if self._runner == "keras" else self._by_kerasdist
        return train(steps_per_epoch, epochs, callback, profile)

    def _stream(self) -> Stream:
        return open_stream(
            self._job.build_data("train"),
            batch_size=self._arguments["batch_size"],
            seed=self._arguments["seed"],
        )

    def examples_per_step(self) -> float:
        """On average over a pass, whose last batch may be smaller; else that of the first batch."""
        stream = self._stream()
        try:
            num_examples = getattr(stream, "num_examples", None)
            if num_examples and stream.num_batches:
                return num_examples / stream.num_batches
            return float(len(tf.nest.flatten(stream.first_batch())[0]))
        finally:
            stream.close()

    def _by_kerasdist(self, steps: int, epochs: int, callback: Any, profile: str | None) -> Any:
        history = training.fit(
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
        return history.profile

    def _by_keras(self, steps: int, epochs: int, callback: Any, profile: str | None) -> None:
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
    """A model whose `call` takes all inputs in one argument, as Keras's `fit` passes them."""

    def __init__(self, model: keras.Model):
        super().__init__()
        self.model_itself = model

    def call(self, inputs, training=None):
        return self.model_itself(*inputs, training=training)


def as_keras_takes_it(model: keras.Model) -> keras.Model:
    """A compiled model that Keras's own `fit` can train on the same data."""
    if not isinstance(model, Model) or isinstance(model.features, str):
        return model
    fitted = OneArgument(model)
    settings = keras.saving.deserialize_keras_object(model.get_compile_config())
    fitted.compile(**settings | {"optimizer": model.optimizer})
    return fitted


def _for_keras(model: keras.Model, *batch: Any) -> tuple:
    example = read(model, batch[0] if len(batch) == 1 else batch)
    parts = (example.x, example.y, example.sample_weight)
    return parts if example.sample_weight is not None else parts[:2]


def serve(source: TextIO, say: Callable[[dict[str, Any]], None]) -> None:
    """Answers requests until there are none."""
    request = json.loads(source.readline())
    if request["names"][0].startswith("CPU"):
        logical_cpus_if_more(len(request["names"]))
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
        # Traced in the epoch before the rounds.
        split = trainer.run(plan["steps"], plan["rounds"] + 1, Rounds(wait, say), folder)
    say({"split": None if split is None else split.parts()})


def main() -> None:
    # Whatever prints goes to the standard error: the answers are alone on the standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    serve(sys.stdin, say)


if __name__ == "__main__":
    main()
