"""Data that was checked with its model, before anything is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data.augmentation import Augment, element_spec, first_batch
from kerasdist.data.feed import Feed
from kerasdist.data.forms.tf_datasets import has_examples
from kerasdist.data.preparation import preparation
from kerasdist.data.streams import KERAS_BATCH_SIZE, Stream, is_arrays, open_stream
from kerasdist.devices.placement import Placement
from kerasdist.errors import InexactLossError, InexactStateError, KerasdistError
from kerasdist.models import pure, refusals
from kerasdist.models.class_weights import weigh_batch, weighed_spec
from kerasdist.models.inspection import Findings
from kerasdist.models.memory.findings import built_for_prediction, inspected, inspected_own
from kerasdist.models.value_checks import AllowNan, check_arrays
from kerasdist.models.verdicts import Verdict, verdict
from kerasdist.training.epochs.plan import Plan
from kerasdist.training.options import DataLike, DataSource


@dataclass(frozen=True)
class CheckedData:
    """A feed, what a trace of the model on its batches found, and how the model is cut."""

    feed: Feed
    findings: Findings
    verdict: Verdict
    whole_reason: str = ""  # Why the model must run on whole batches; "" if it need not.

    @property
    def num_denominators(self) -> int:
        """How many denominators a step adds up. A loss over the whole batch needs no others."""
        found = self.findings
        is_needed = self.verdict.whole is None or found.num_call_denominators
        return found.num_denominators if is_needed else 0

    @property
    def stream(self) -> Stream:
        return self.feed.stream


@dataclass(frozen=True)
class DataChecker:
    """Opens data and checks it with a model, for its devices. The `stack` closes the data.

    Nothing is compiled here: every error comes before the first step. `whole_batch_loss` says
    whether to compute the loss over the whole batch; None finds out.
    """

    stack: contextlib.ExitStack
    model: keras.Model
    placement: Placement
    shards: int
    whole_batch_loss: bool | None = None

    def to_train(
        self,
        source: DataSource,
        plan: Plan,
        *,
        seed: int,
        deterministic: bool,
        chose_shards: bool = True,
    ) -> CheckedData:
        """The data that `fit` trains on. `chose_shards`: the caller gave the number of shards."""
        model, augment = self.model, source.augment
        stream = self._opened(
            source.data,
            batch_size=source.batch_size,
            shuffle=source.shuffle,
            seed=seed,
            steps=plan.steps_per_epoch,
        )
        check_stream(stream, self.shards if chose_shards else 1, plan, deterministic)
        findings = self._inspected(
            stream,
            "data",
            augment,
            allow_nan=source.allow_nan,
            class_weight=source.class_weight,
        )
        refusals.warn_if_frozen(model)
        refusals.refuse_random(model, findings.random_operations if deterministic else ())
        options = {"training": True, "class_weight": source.class_weight}
        found, reason = self._verdict(lambda: first_batch(stream, augment), findings, **options)
        feed = self._feed(
            stream, findings, found, "data", augment=augment, seed=seed, allow_nan=source.allow_nan
        )
        return CheckedData(feed, findings, found, reason)

    def to_validate(
        self, source: DataSource, plan: Plan, *, batch_size: int | None
    ) -> CheckedData | None:
        """The data that `fit` validates on, if there is any.

        `batch_size` is that of the training, for data whose batches are not arrays: these follow
        Keras.
        """
        if source.validation_data is None:
            return None
        refusals.refuse_bypassed(self.model, "evaluate")
        name = "validation_data"
        checked = self.to_test(
            source.validation_data,
            name=name,
            batch_size=_validation_batch_size(source),
            default_batch_size=batch_size,
            steps=source.validation_steps,
            allow_nan=source.allow_nan,
        )
        if source.validation_steps is None:
            check_ends(checked.stream, name, "validation_steps")
            num_passes = sum(map(source.is_validated, range(plan.initial_epoch, plan.epochs)))
            check_readable(checked.stream, name, num_passes)
        return checked

    def to_test(
        self,
        data: DataLike,
        *,
        name: str,
        batch_size: int | None = None,
        default_batch_size: int | None = None,
        steps: int | None = None,
        allow_nan: AllowNan = False,
    ) -> CheckedData:
        """Data to compute metrics on."""
        stream = self._opened(
            data,
            batch_size=batch_size,
            name=name,
            default_batch_size=default_batch_size or KERAS_BATCH_SIZE,
            steps=steps,
        )
        try:
            findings = self._inspected(stream, name, to_train=False, allow_nan=allow_nan)
        except KerasdistError as error:
            if name == "data" or name in str(error):
                raise
            raise type(error)(f"{error} The error is about `{name}`.") from error.__cause__
        found, reason = self._verdict(stream.first_batch, findings, training=False)
        feed = self._feed(stream, findings, found, name, allow_nan=allow_nan)
        return CheckedData(feed, findings, found, reason)

    def to_predict(
        self, data: DataLike, *, batch_size: int | None, steps: int | None = None
    ) -> CheckedData:
        """Data to compute outputs for, with or without targets."""
        stream = self._opened(
            data, batch_size=batch_size, default_batch_size=KERAS_BATCH_SIZE, steps=steps
        )
        if pure.overrides(self.model, "predict_step"):
            findings = self._inspected_own(stream, "predict_step")
        else:
            findings = built_for_prediction(self.model, stream.element_spec)
        found, reason = self._verdict(stream.first_batch, findings, training=False)
        share = self.placement.share(self.shards)
        prepare = preparation(
            self.model,
            stream,
            labels=(),
            name="data",
            need_targets=False,
            share=share,
            is_cut=findings.is_cut(self.shards),
        )
        feed = Feed(stream, prepare=prepare)
        self.stack.callback(feed.close)
        return CheckedData(feed, findings, found, reason)

    def _verdict(
        self, first: Callable[[], Any], findings: Findings, **options: Any
    ) -> tuple[Verdict, str]:
        """How the model is computed on shards, or why it must run on whole batches."""
        own = "" if findings.own_step is None else findings.own_step.must_be_whole
        reason = own or refusals.stateful_reason(self.model)
        if reason:
            return Verdict({}), reason
        try:
            whole = self.whole_batch_loss
            return verdict(self.model, first, findings, self.shards, whole=whole, **options), ""
        except (InexactLossError, InexactStateError) as error:
            if self.whole_batch_loss is False or self.placement.workers is not None:
                raise
            return Verdict({}), refusals.whole_batch_reason(error)

    def _inspected_own(
        self,
        stream: Stream,
        method: str,
        augment: Augment | None = None,
        class_weight: dict[int, float] | None = None,
    ) -> Findings:
        """Traces a step that the model's class overrides."""
        model, spec = self.model, element_spec(stream, augment)
        if class_weight:
            spec = weighed_spec(model, spec, class_weight)

        def first() -> Any:
            batch = first_batch(stream, augment)
            return weigh_batch(model, batch, class_weight) if class_weight else batch

        return inspected_own(model, method, spec, first, self.shards)

    def _opened(self, data: DataLike, **options: Any) -> Stream:
        stream = open_stream(data, **options)
        self.stack.callback(stream.close)
        return stream

    def _inspected(
        self,
        stream: Stream,
        name: str,
        augment: Augment | None = None,
        *,
        to_train: bool = True,
        allow_nan: AllowNan = False,
        class_weight: dict[int, float] | None = None,
    ) -> Findings:
        """Builds the model for the data if necessary, traces it, and checks arrays."""
        spec = element_spec(stream, augment)
        if spec is None:
            raise KerasdistError(
                f"`{name}` has no batches. Expected at least one. Check how the data is read."
            )
        model, method = self.model, "train_step" if to_train else "test_step"
        if pure.overrides(model, method):
            findings = self._inspected_own(stream, method, augment, class_weight)
        else:
            findings = inspected(model, spec, to_train=to_train, class_weight=class_weight)
        if stream.arrays is not None:
            check_arrays(model, stream.arrays, findings.labels, name, allow_nan=allow_nan)
        return findings

    def _feed(
        self,
        stream: Stream,
        findings: Findings,
        found: Verdict,
        name: str,
        *,
        augment: Augment | None = None,
        seed: int = 0,
        allow_nan: AllowNan = False,
    ) -> Feed:
        prepare = preparation(
            self.model,
            stream,
            labels=findings.labels,
            name=name,
            augment=augment,
            seed=seed,
            share=self.placement.share(self.shards),
            needs_whole=findings.gather_metrics or found.whole is not None,
            allow_nan=allow_nan,
            is_cut=findings.is_cut(self.shards),
        )
        feed = Feed(stream, prepare=prepare, name=name, takes_rows=not self.placement.is_gpu)
        self.stack.callback(feed.close)
        return feed


def _validation_batch_size(source: DataSource) -> int | None:
    """Keras's: `validation_batch_size`, or the training's, if the data has no batches yet."""
    if source.validation_batch_size is not None:
        return source.validation_batch_size
    data = source.validation_data
    is_examples = isinstance(data, tf.data.Dataset) and has_examples(data)
    return source.batch_size if is_examples or is_arrays(data) else None


def check_stream(stream: Stream, shards: int, plan: Plan, deterministic: bool) -> None:
    """What the form of the data rules out."""
    if stream.batch_size is not None and shards > stream.batch_size:
        raise KerasdistError(
            f"Received `batch_size={stream.batch_size}` and {shards} shards. Expected at least one "
            "example per shard. Use a larger batch, fewer shards or fewer devices."
        )
    if plan.steps is None and plan.steps_per_epoch is None:
        check_ends(stream, "data", "steps_per_epoch")
    if deterministic and stream.num_threads > 1:
        raise KerasdistError(
            f"Received `deterministic=True` and a provider read by {stream.num_threads} threads, "
            "whose order is not the same every time. Expected one thread. Use `reader_threads=1`."
        )


def check_ends(stream: Stream, name: str, argument: str) -> None:
    """Endless data needs a number of steps."""
    if stream.is_endless:
        raise KerasdistError(
            f"`{name}` never ends and `{argument}` is missing. Expected a number of steps. "
            f"Give for example `{argument}=1000`."
        )


def check_readable(stream: Stream, name: str, num_passes: int) -> None:
    """A generator object can be read only once."""
    if stream.is_one_shot and num_passes > 1:
        raise KerasdistError(
            f"Received `{name}`, a generator that can be read only once, and "
            f"`epochs={num_passes}`. Expected a generator function, which gives a new generator "
            "for each epoch. Pass the function itself, not its result."
        )
