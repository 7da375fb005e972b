"""A measuring process of `kerasdist bench`, which trains one round at a time.

It reads JSON objects from its standard input and answers each with one: first what to train, then
the number of steps per round, then `{"go": true}` for each round.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

# Before TensorFlow is imported: nobody reads its messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from kerasdist.cli.bench.rounds import FEWEST_STEPS, CountedSteps, Rounds, Say, Timed, Trial
from kerasdist.cli.fit_arguments import parse_bench
from kerasdist.cli.job import FIT_OPTIONS, Job
from kerasdist.data.forms.tensor_stream import TensorStream
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import Stream, open_stream
from kerasdist.devices import gpus, visible_gpus
from kerasdist.devices.names import logical_cpus_if_more
from kerasdist.devices.placement import place
from kerasdist.models.contract import Model, ensure_compiled
from kerasdist.models.fields import read
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.options import (
    DataSource,
    ModelSource,
    RunOptions,
    StepOptions,
    TrainingOptions,
    WatchOptions,
)
from kerasdist.training.progress.profile import Split
from kerasdist.training.session import train

# The trial, which measures about how long a step takes.
TRIAL_STEPS, TRIAL_ROUNDS = 5, 4
# The options that concern the data, and those that concern one training step.
DATA_OPTIONS = ("batch_size", "allow_nan")
STEP_OPTIONS = tuple(
    name for name in FIT_OPTIONS if name not in ("steps", "ema", "precision", *DATA_OPTIONS)
)


class Trainer:
    """Trains the job of a request, with kerasdist's or with Keras's `fit`."""

    def __init__(self, request: dict[str, Any]):
        parsed, _ = parse_bench(request["argv"])
        self._job = Job(parsed)
        self._runner, self._names = request["runner"], request["names"]
        self._options = dict(parsed.run)
        self._options["batch_size"] = request["batch_size"] or self._options["batch_size"]
        self._augment = None if self._job.recipe is None else self._job.recipe.build_augment()

    def run(
        self,
        steps_per_round: int,
        rounds: int,
        callback: Timed,
        profile: str | None,
    ) -> Split | None:
        """Trains, and returns the parts of a step if it was traced.

        If a pass over the data is shorter than a round, a round has several passes, each an epoch:
        what an epoch costs counts. If a pass is longer, or its length is unknown, a round is an
        epoch with exactly these steps.
        """
        num_batches = self._num_batches()
        steps: int | None = steps_per_round
        if num_batches is not None and FEWEST_STEPS <= num_batches < steps_per_round:
            callback.epochs_per_round, steps = round(steps_per_round / num_batches), None
        epochs = rounds * callback.epochs_per_round
        if self._runner == "keras":
            self._by_keras(steps, epochs, callback)
            return None
        return self._by_kerasdist(steps, epochs, callback, profile)

    def _chosen(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._options[name] for name in names}

    def _stream(self) -> Stream:
        return open_stream(
            self._job.build_data("train"),
            batch_size=self._options["batch_size"],
            seed=self._options["seed"],
        )

    def _num_batches(self) -> int | None:
        stream = self._stream()
        try:
            return stream.num_batches
        finally:
            stream.close()

    def _repeated(self) -> tf.data.Dataset | None:
        """The batches without an end, as Keras gets them, so that no round waits for a new pass.

        None where kerasdist has its own way: it slices arrays, and asks Python for batches.
        """
        stream = self._stream()
        has_rows = self._augment is None and stream.rows(0, 0) is not None
        if has_rows or not isinstance(stream, TensorStream):
            stream.close()
            return None
        return repeated(stream)

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
        self, steps: int | None, epochs: int, callback: Timed, profile: str | None
    ) -> Split | None:
        counted = CountedSteps()
        callback.count = lambda: counted.done
        data = self._job.build_data("train")
        read = self._chosen(DATA_OPTIONS)
        repeated = None if steps is None else self._repeated()
        if repeated is not None:
            data, read["batch_size"] = repeated, None
        options = TrainingOptions(
            source=ModelSource.checked(self._job.build_model, self._options["precision"], None),
            data=DataSource.checked(data, augment=self._augment, **read),
            plan=Plan.checked(
                epochs=epochs, steps=None, steps_per_epoch=steps, repeats=bool(steps)
            ),
            step=StepOptions.checked(**self._chosen(STEP_OPTIONS)),
            keeping=RunOptions.checked(),
            watching=WatchOptions.checked(counted, run_dir=None, profile=profile or False),
            callbacks=[callback],
        )
        split: Split | None = train(options, place(self._names)).profile
        return split

    def _by_keras(self, steps: int | None, epochs: int, callback: Timed) -> None:
        strategy = tf.distribute.get_strategy()
        if len(self._names) > 1:
            strategy = tf.distribute.MirroredStrategy(self._names)
        with strategy.scope():
            model = self._job.build_model()
            ensure_compiled(model)
            fitted = as_keras_takes_it(model)
        stream, seed = self._stream(), self._options["seed"]
        prepare = preparation(
            model, stream, labels=(), name="data", augment=self._augment, seed=seed
        )
        dataset = prepare(one_pass(stream) if steps is None else repeated(stream), 0, 0)
        dataset = dataset.map(lambda *batch: _for_keras(model, *batch)).prefetch(tf.data.AUTOTUNE)
        callback.count = lambda: int(keras.ops.convert_to_numpy(fitted.optimizer.iterations))
        fitted.fit(
            dataset,
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=[callback],
            shuffle=False,  # It would warn.
            verbose=0,
        )


def repeated(stream: Stream) -> tf.data.Dataset:
    """The batches of a stream, pass after pass."""
    if isinstance(stream, TensorStream):
        return stream.open(0, 0).repeat()

    def passes() -> Iterator[Any]:
        for number in itertools.count():  # Python's batches of a pass can be read only once.
            batches = iter(stream.open(number, 0))
            first = next(batches, None)
            if first is None:
                return
            yield from itertools.chain([first], batches)

    return tf.data.Dataset.from_generator(passes, output_signature=stream.element_spec)


def one_pass(stream: Stream) -> tf.data.Dataset:
    """The batches of one pass: of another one each time they are read."""
    if isinstance(stream, TensorStream):
        return stream.open(0, 0)
    numbers = itertools.count()

    def batches() -> Iterator[Any]:
        yield from stream.open(next(numbers), 0)

    found = tf.data.Dataset.from_generator(batches, output_signature=stream.element_spec)
    # Keras warns when data of unknown length ends.
    return found.apply(tf.data.experimental.assert_cardinality(stream.num_batches))


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
