"""A Keras model, its loss, metrics and optimizer as pure functions of their state.

Only this folder uses private Keras names. `tests/models/pure/` has a test for each of them, which
fails if Keras changes it. Written for Keras 3.15.1 on TensorFlow 2.21.
"""

from kerasdist.models.pure.building import build, build_optimizer
from kerasdist.models.pure.epoch_lines import EpochLines
from kerasdist.models.pure.forward import (
    Forward,
    apply_gradients,
    call,
    forward,
    predict,
    run_optimizer,
    update_metrics,
)
from kerasdist.models.pure.in_place import InPlace
from kerasdist.models.pure.introspection import (
    REFUSED_OPTIMIZERS,
    adds_up,
    all_layers,
    compilation,
    compiled_metrics,
    get_mask,
    has_own_loss,
    in_order,
    initial_epoch,
    loss_names,
    loss_scale,
    loss_so_far,
    overrides,
    preprocesses,
    set_mask,
    sparse_label_outputs,
    state_of_keras_layers,
    tracked_metrics,
    wants_batches,
)
from kerasdist.models.pure.patches import Shard, Tensors, patched, tracing
from kerasdist.models.pure.repeated_rows import Draws, repeated_rows
from kerasdist.models.pure.trainer import (
    IN_FIT,
    METHODS,
    check_compiled,
    class_weights,
    methods,
    set_methods,
)
from kerasdist.models.pure.variables import (
    Parts,
    adopt,
    adopted,
    dtype_policy,
    in_new_thread,
    parts,
    share_global_seed_generator,
    use_global_seed_generator,
)
from kerasdist.models.pure.vectors import Joined, join

__all__ = [
    "IN_FIT",
    "METHODS",
    "REFUSED_OPTIMIZERS",
    "Draws",
    "EpochLines",
    "Forward",
    "InPlace",
    "Joined",
    "Parts",
    "Shard",
    "Tensors",
    "adds_up",
    "adopt",
    "adopted",
    "all_layers",
    "apply_gradients",
    "build",
    "build_optimizer",
    "call",
    "check_compiled",
    "class_weights",
    "compilation",
    "compiled_metrics",
    "dtype_policy",
    "forward",
    "get_mask",
    "has_own_loss",
    "in_new_thread",
    "in_order",
    "initial_epoch",
    "join",
    "loss_names",
    "loss_scale",
    "loss_so_far",
    "methods",
    "overrides",
    "parts",
    "patched",
    "predict",
    "preprocesses",
    "repeated_rows",
    "run_optimizer",
    "set_mask",
    "set_methods",
    "share_global_seed_generator",
    "sparse_label_outputs",
    "state_of_keras_layers",
    "tracing",
    "tracked_metrics",
    "update_metrics",
    "use_global_seed_generator",
    "wants_batches",
]
