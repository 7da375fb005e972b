"""`train_on_batch`, `test_on_batch` and `predict_on_batch`: compiled once, called in loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.preparation import part_of
from kerasdist.data.values import translate
from kerasdist.devices.placement import Placement
from kerasdist.engine import sums
from kerasdist.engine.compiled_loop import NOT_FINITE, Outcome
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.errors import InexactLossError, InexactStateError, KerasdistError
from kerasdist.models import inspection, pure, refusals
from kerasdist.models.contract import ensure_compiled
from kerasdist.models.inspection import Findings
from kerasdist.models.memory.kept import kept
from kerasdist.models.verdicts import Verdict, verdict
from kerasdist.programs.batch_queue import BatchQueue, spec_of
from kerasdist.programs.options import ProgramOptions
from kerasdist.runs.checkpoints.inherited import choose_seed, choose_shards
from kerasdist.training import jit
from kerasdist.training.epochs import not_finite
from kerasdist.training.epochs.validation import metric_results, reset_metrics
from kerasdist.training.model_source import fresh_seed

_KERAS_BATCH_SIZE = 32
_KIND = "single batches"


@dataclass
class _Compiled:
    """An engine for batches of one structure, and the queue that feeds it.

    `for_any_size` is False if it was made for a single row: that does not show whether the model
    can be computed on parts of a batch.
    """

    engine: Engine
    queue: BatchQueue | None
    for_any_size: bool


def batch_of(x: Any, y: Any, sample_weight: Any) -> Any:
    """The arguments of a call as one batch of tensors."""
    if y is None and sample_weight is not None:
        raise KerasdistError(
            "Received `sample_weight` without `y`. Expected targets to weigh. Give `y`, too, or "
            "leave out `sample_weight`."
        )
    batch = tuple(part for part in (x, y, sample_weight) if part is not None)
    # A list of inputs becomes a tuple, as in Keras's `fit`: a dataset would stack a list.
    return keras.tree.lists_to_tuples(keras.tree.map_structure(tf.convert_to_tensor, batch))


def single_batch(given: Mapping[str, Any]) -> Any | None:
    """The batch of a silent `predict` with these arguments, if it is only one; else None."""
    if given["verbose"] != 0 or given["callbacks"] is not None or given["steps"] is not None:
        return None
    leaves = keras.tree.flatten(given["x"])
    most = given["batch_size"] or _KERAS_BATCH_SIZE
    for leaf in leaves:
        is_numbers = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
        if not is_numbers or not leaf.ndim or not 1 <= len(leaf) <= most:
            return None
    if len({len(leaf) for leaf in leaves}) != 1:
        return None

    def as_keras(leaf: np.ndarray) -> np.ndarray:
        # As in Keras's `predict`, but not in its `predict_on_batch`.
        return leaf.astype(keras.config.floatx()) if leaf.dtype.kind == "f" else leaf

    return batch_of(keras.tree.map_structure(as_keras, given["x"]), None, None)


class SingleBatches:
    """Runs single batches of any model with the options of one program."""

    def __init__(self, options: ProgramOptions, placement: Placement, note: Callable[[str], None]):
        self._options, self._placement = options, placement
        # Says something of a model, such as that it is computed on one device.
        self._note = note

    def train(self, model: keras.Model, batch: Any) -> dict[str, Any]:
        """One training step. Returns the loss and the metrics of the batch."""
        with self._compiled(model, batch, "train") as compiled:
            engine = compiled.engine
            self._reset(engine)
            outcome = engine.train(self._fed(compiled, batch), 1)
            if outcome.status == NOT_FINITE:
                self._refuse(model, outcome)
            logs = metric_results(engine)
            engine.state.write_back()
            return logs

    def test(self, model: keras.Model, batch: Any) -> dict[str, Any]:
        """The loss and the metrics of one batch."""
        with self._compiled(model, batch, "test") as compiled:
            engine = compiled.engine
            self._reset(engine)
            engine.draws.begin()
            engine.test(self._fed(compiled, batch), 1)
            logs = metric_results(engine, "test_step")
            engine.state.write_back("trainable", "other", "metrics")
            return logs

    def predict(self, model: keras.Model, batch: Any) -> Any:
        """The outputs for one batch."""
        with self._compiled(model, batch, "predict") as compiled:
            share = self._placement.share(compiled.engine.settings.shards)
            own = batch if share is None else part_of(share, batch, is_whole=False)
            compiled.engine.draws.begin()
            found = compiled.engine.predict(own)
            compiled.engine.state.write_back("trainable", "other")
            return found

    def _reset(self, engine: Engine) -> None:
        if pure.RESETS_FOR_EACH_BATCH:
            reset_metrics(engine)

    def _fed(self, compiled: _Compiled, batch: Any) -> Any:
        if compiled.queue is None:
            raise KerasdistError("This engine was made to predict. Expected one to train or test.")
        compiled.queue.put(batch)
        return compiled.queue.iterator

    def _refuse(self, model: keras.Model, outcome: Outcome) -> None:
        """Nothing of the step was written. That is enough for a loss scale, or to skip it."""
        if not_finite.is_loss_scale(model, outcome, 1) or self._options.on_nan == "skip":
            return
        steps = pure.num_own_steps(model)
        step = (int(model.optimizer.iterations.numpy()) if steps is None else steps) + 1
        raise not_finite.error(step, outcome)

    @contextmanager
    def _compiled(self, model: keras.Model, batch: Any, kind: str) -> Iterator[_Compiled]:
        """The engine for this model and kind of batch, with the model's newest values."""
        placement, options = self._placement, self._options
        with (
            placement.together(),
            placement.guarded(),
            sums.fixed_graphs(options.deterministic, placement.is_gpu),
        ):
            if kind != "predict":
                ensure_compiled(model)
            spec = spec_of(batch)
            compiled = kept(model).take(_KIND, (self._key(model, spec, kind), True))
            if compiled is None and _is_one_row(batch):
                compiled = kept(model).take(_KIND, (self._key(model, spec, kind), False))
            if compiled is None:
                compiled = self._make(model, batch, spec, kind)
            else:
                # Somebody may have changed the weights: `set_weights`, or a model that shares them.
                compiled.engine.state.refresh()
            try:
                yield compiled
            except tf.errors.OpError as error:
                raise translate(error) or error from None
            # Not after an error: a batch may be left in its queue. Making the engine may have built
            # the model, which is part of the key.
            key = (self._key(model, spec, kind), compiled.for_any_size)
            for old in kept(model).give(_KIND, key, compiled):
                old.engine.close()

    def _key(self, model: keras.Model, spec: Any, kind: str) -> Any:
        """Cheaper than a fingerprint: there is a call for each batch."""
        flat = tuple((s.shape, s.dtype) for s in tf.nest.flatten(spec))
        layers = tuple((id(layer), layer.trainable) for layer in pure.all_layers(model))
        structure = repr(tf.nest.map_structure(lambda _: 0, spec))
        return kind, self._options, self._placement.names, flat, structure, layers

    def _make(self, model: keras.Model, batch: Any, spec: Any, kind: str) -> _Compiled:
        options, placement = self._options, self._placement
        refusals.refuse_scope()
        is_training = kind == "train"
        shards = placement.num_replicas
        if kind != "predict" or options.deterministic:
            shards = choose_shards(options.shards, placement, options.deterministic, None)
        if kind != "predict":
            refusals.refuse_unsupported(model, to_train=is_training)
        if pure.overrides(model, f"{kind}_step"):
            findings = inspection.inspect_own(model, f"{kind}_step", spec, lambda: batch, shards)
        elif kind == "predict":
            findings = inspection.build_for_prediction(model, spec)
        else:
            findings = inspection.inspect(model, spec, to_train=is_training)
        placement, shards = self._whole(model, findings, shards, kind)
        try:
            found = verdict(model, lambda: batch, findings, shards, training=is_training)
        except (InexactLossError, InexactStateError) as error:
            if placement.workers is not None:
                raise
            reason = refusals.whole_batch_reason(error)
            found, placement, shards = Verdict({}), self._alone(model, kind, reason), 1
        engine = Engine(model, placement, self._settings(model, kind, shards, findings, found))
        for_any_size = not (_is_one_row(batch) and _needs_rows(findings))
        if kind == "predict":
            return _Compiled(engine, None, for_any_size)
        return _Compiled(
            engine,
            BatchQueue(
                model,
                spec,
                labels=findings.labels,
                allow_nan=options.allow_nan,
                share=placement.share(shards),
                needs_whole=findings.gather_metrics or found.whole is not None,
            ),
            for_any_size,
        )

    def _synchronizes(self, findings: Findings) -> bool:
        return self._options.sync_batch_norm or findings.synchronizes

    def _whole(
        self, model: keras.Model, findings: Findings, shards: int, kind: str
    ) -> tuple[Placement, int]:
        """Devices and shards: one of each for a model that must run on whole batches."""
        own = "" if findings.own_step is None else findings.own_step.must_be_whole
        reason = own or refusals.stateful_reason(model)
        if kind == "train" and not reason and self._synchronizes(findings):
            if not self._options.deterministic:
                return self._placement, self._placement.num_replicas
            reason = "its statistics of whole batches must have the same bits everywhere"
        if not reason or shards == 1:
            return self._placement, shards
        if self._placement.workers is not None:
            refusals.refuse_whole_batch(model, reason)
        return self._alone(model, kind, reason), 1

    def _alone(self, model: keras.Model, kind: str, reason: str) -> Placement:
        """One device. What a step costs is another thing then, so it is said."""
        if kind != "predict":
            titles = self._placement.titles
            self._note(refusals.whole_batch_note(model, reason, titles, tests=kind == "test"))
        return self._placement.alone()

    def _settings(
        self,
        model: keras.Model,
        kind: str,
        shards: int,
        findings: Findings,
        found: Verdict,
    ) -> Settings:
        options, placement = self._options, self._placement
        plan = findings.own_step
        own = {} if plan is None else {plan.method: plan}
        # A loss over the whole batch needs no denominators but those of `call`.
        is_summed = found.whole is None or findings.num_call_denominators
        num_denominators = findings.num_denominators if is_summed else 0
        if kind != "train":
            return Settings(
                shards=shards,
                own_steps=own,
                deterministic=options.deterministic,
                gather_metrics=findings.gather_metrics,
                num_test_denominators=num_denominators,
                test_state_rules=found.rules,
                whole_test_loss=found.whole,
                drawn=findings.drawn,
            )
        deterministic = options.deterministic
        refusals.refuse_random(model, findings.random_operations if deterministic else ())
        refusals.warn_if_frozen(model)
        wanted = None if options.jit == "auto" else options.jit in (True, "on")
        return Settings(
            shards=shards,
            seed=choose_seed(None, fresh_seed(model), placement, None),
            deterministic=deterministic,
            clip_norm=options.clip_norm,
            gather_metrics=findings.gather_metrics,
            num_denominators=num_denominators,
            jit=jit.decide(wanted, model, placement, deterministic=deterministic).is_on,
            state_rules=found.rules,
            whole_loss=found.whole,
            synchronizes=self._synchronizes(findings) and not deterministic,
            synchronizes_all=options.sync_batch_norm,
            own_steps=own,
        )


def _is_one_row(batch: Any) -> bool:
    return all(leaf.shape[:1] == (1,) for leaf in tf.nest.flatten(batch))


def _needs_rows(findings: Findings) -> bool:
    """Whether only a batch shows how the model is computed on parts of it."""
    return bool(
        findings.own_step is not None
        or findings.has_own_calls
        or findings.has_own_loss_terms
        or findings.weighs_scalars
        or findings.tracked
        or findings.own_state
    )
