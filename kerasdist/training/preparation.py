"""Model and data of a training, checked together before anything is compiled."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasdist.devices import private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.engine.settings import Settings
from kerasdist.model_files.initial_weights import load_weights
from kerasdist.models import pure, refusals
from kerasdist.models.contract import ensure_compiled
from kerasdist.models.memory.operations import of_operations
from kerasdist.models.precision import check_precision
from kerasdist.runs import identity
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.checkpoints.inherited import choose_seed, choose_shards
from kerasdist.runs.file_names import CHECKPOINTS
from kerasdist.training import arguments
from kerasdist.training.best.monitor import check_monitor
from kerasdist.training.checked_data import CheckedData, DataChecker
from kerasdist.training.jit import Jit, decide
from kerasdist.training.model_source import built, fresh_seed
from kerasdist.training.options import TrainingOptions
from kerasdist.training.stages import seed_of_stage


@dataclass(frozen=True)
class Prepared:
    """A built, compiled model and its data, which fit each other; and what was chosen for them."""

    model: keras.Model
    data: CheckedData
    validation: CheckedData | None
    placement: Placement
    shards: int
    seed: int
    jit: Jit
    whole_reason: str = ""  # Why the model runs on whole batches, on one device.
    synchronizes: bool = False  # Whether layers take statistics over all replicas.

    @property
    def steps_shards(self) -> int:
        """Into how many shards a step cuts its batch: no more than layers allow."""
        if self.whole_reason:
            return 1
        return self.placement.num_replicas if self.synchronizes else self.shards


def prepare(
    stack: contextlib.ExitStack, options: TrainingOptions, placement: Placement
) -> Prepared:
    """Builds and checks everything. The `stack` closes the data."""
    source, step, earlier = options.source, options.step, options.keeping.earlier
    arguments.check_backup(
        options.callbacks,
        run_dir=options.keeping.run_dir,
        steps=options.plan.steps,
        ema=step.ema,
        workers=placement.workers,
    )
    shards = choose_shards(step.shards, placement, step.deterministic, earlier)
    fresh = fresh_seed(source.model) if step.seed is None else 0
    seed = choose_seed(step.seed, fresh, placement, earlier)
    model = built(source.model, source.precision, seed)
    ensure_compiled(model)
    refusals.refuse_unsupported(model)
    refusals.refuse_bypassed(model, "fit")
    check_precision(model, source.precision)
    checker = DataChecker(stack, model, placement, shards, step.whole_batch_loss)
    data = checker.to_train(
        options.data,
        options.plan,
        seed=seed,
        deterministic=step.deterministic,
        chose_shards=step.shards is not None,
    )
    size = data.stream.batch_size
    # Validation computes the loss as training does.
    if data.verdict.whole is not None:
        checker = replace(checker, whole_batch_loss=True)
    validation = checker.to_validate(options.data, options.plan, batch_size=size)
    if options.keeping.is_kept:
        check_monitor(model, options.keeping.monitor, is_validated=validation is not None)
    if source.load_initial is not None and placement.is_chief and not _has_checkpoint(options):
        source.load_initial(model)
    if source.init_from is not None and placement.is_chief:  # The other workers get its weights.
        report = load_weights(
            model,
            source.init_from,
            init_map=source.init_map,
            init_averages=source.init_averages,
        )
        options.watching.reporter.say(report.summary())
    reason = data.whole_reason or ("" if validation is None else validation.whole_reason)
    synchronizes = step.sync_batch_norm or data.findings.synchronizes
    if synchronizes and step.deterministic and not reason:
        reason = "it takes statistics over whole batches, and must have the same bits everywhere"
    if reason and shards > 1:
        if placement.workers is not None:
            refusals.refuse_whole_batch(model, reason)
        placement = placement.alone()
    jit = decide(
        step.jit,
        model,
        placement,
        deterministic=step.deterministic,
        spec=data.stream.element_spec,
    )
    return Prepared(model, data, validation, placement, shards, seed, jit, reason, synchronizes)


def note(options: TrainingOptions, prepared: Prepared) -> str | None:
    """What is said once of a model whose result depends on the shards, or that needs one device."""
    model, shards = prepared.model, prepared.shards
    if prepared.whole_reason and shards > 1:
        return refusals.whole_batch_note(model, prepared.whole_reason, prepared.placement.titles)
    if options.step.sync_batch_norm:
        return None
    return refusals.batch_norm_note(model, prepared.data.stream.batch_size, shards)


def _has_checkpoint(options: TrainingOptions) -> bool:
    """Whether the run resumes. The weights that it started from are not needed then."""
    earlier = options.keeping.earlier
    return earlier is not None and Store(earlier / CHECKPOINTS, make_parents=False).steps() != []


def settings(options: TrainingOptions, prepared: Prepared) -> Settings:
    """What the compiled step depends on."""
    step, data, validation = options.step, prepared.data, prepared.validation
    # TensorFlow 2.21 has no clock then. It cannot be switched off again after an earlier run.
    will_be_deterministic = private_tensorflow.is_op_determinism_enabled() or (
        step.deterministic and prepared.placement.is_gpu
    )
    of_validation = data if validation is None else validation
    own = [data.findings.own_step, None if validation is None else validation.findings.own_step]
    return Settings(
        shards=prepared.steps_shards,
        seed=seed_of_stage(prepared.seed, options.stage),
        deterministic=step.deterministic,
        clip_norm=step.clip_norm,
        ema=step.ema,
        class_weight=options.data.class_weight,
        gather_metrics=data.findings.gather_metrics,
        num_denominators=data.num_denominators,
        num_test_denominators=of_validation.num_denominators,
        times_input=options.keeping.is_kept and not will_be_deterministic,
        jit=prepared.jit.is_on,
        # A callback that looks at every step would take the vectors apart as often.
        joins=not any(pure.wants_batches(c, "train") for c in options.callbacks),
        state_rules=data.verdict.rules,
        test_state_rules={} if validation is None else validation.verdict.rules,
        synchronizes=prepared.synchronizes,
        synchronizes_all=step.sync_batch_norm,
        own_steps={plan.method: plan for plan in own if plan is not None},
        whole_loss=data.verdict.whole,
        whole_test_loss=of_validation.verdict.whole,
        drawn=() if validation is None else validation.findings.drawn,
    )


def _chosen(options: TrainingOptions) -> dict[str, Any]:
    """Arguments that decide about the weights, if they are given. Older runs do not have them."""
    found: dict[str, Any] = {}
    if options.plan.initial_epoch:
        found["initial_epoch"] = options.plan.initial_epoch
    if options.data.class_weight:
        # As text: the keys of a dict become text in a checkpoint's JSON.
        weights = {int(label): float(w) for label, w in options.data.class_weight.items()}
        found["class_weight"] = str(sorted(weights.items()))
    return found


def run_identity(options: TrainingOptions, prepared: Prepared) -> dict[str, Any]:
    """What must not differ when a run is continued: model, data and settings.

    `jit` counts if the caller chose it. A run without it is resumed by any device, which decides
    for itself; the checkpoint says what was decided.
    """
    step, stream, jit = options.step, prepared.data.stream, prepared.jit
    return {
        **identity.of_model(prepared.model),
        **identity.of_compilation(prepared.model),
        **identity.of_trained_weights(prepared.model),
        "layers": identity.of_layers(prepared.model),
        "operations": of_operations(prepared.model),
        **identity.of_data(stream),
        "batch_size": stream.batch_size,
        "seed": prepared.seed,
        "shards": prepared.shards,
        "deterministic": step.deterministic,
        "clip_norm": step.clip_norm,
        "ema": step.ema,
        "steps_per_epoch": options.plan.steps_per_epoch,
        "shuffle": options.data.shuffle,
        # Not its name: a lambda has none, and a function may move.
        "augment": options.data.augment is not None,
        **_chosen(options),
        **({"jit": True} if jit.is_on and jit.is_chosen else {}),
        **({"whole_batch_loss": True} if step.whole_batch_loss else {}),
        **({"sync_batch_norm": True} if step.sync_batch_norm else {}),
        **({"stage": options.stage} if options.stage else {}),
    }
