"""Each private Keras name that `kerasdist.pure` uses: a test that fails when Keras changes it."""

import ast
import importlib
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src import backend as keras_backend

from kerasdist.models import pure
from kerasdist.models.fields import Example
from kerasdist.models.pure import added_losses, building, introspection, patches
from kerasdist.models.pure.steps import running
from kerasdist.models.pure.updates import in_place

FUTURE = "from __future__ import annotations"

# Every private name in kerasdist/pure, and the test that looks after it: in this module, or in the
# module of this folder that is named before the dot.
_MOMENTS = "layers.test_synchronized.test_keras_asks_the_replaced_functions_for_moments"
COVERED = {
    "_exclude_from_weight_decay": "test_what_is_excluded_from_weight_decay_is_remembered",
    "_exclude_from_weight_decay_pattern": "test_what_is_excluded_from_weight_decay_is_remembered",
    "_value": "test_native_variables_are_behind_keras_ones",
    "_loss_tracker": "test_the_loss_tracker_is_a_mean",
    "_call_has_training_arg": "test_call_passes_training_only_where_it_is_taken",
    "_flatten_layers": "test_all_layers_include_nested_ones",
    "_compile_config": "test_functions_in_compile_are_found",
    "_direction": "test_metrics_say_whether_higher_is_better",
    "_compile_loss": "test_compiled_losses_and_metrics_are_found",
    "_compile_metrics": "test_compiled_losses_and_metrics_are_found",
    "_flat_losses": "test_class_number_losses_are_found_with_their_path",
    "_clear_losses": "test_losses_belong_to_one_pass",
    "_get_own_losses": "test_losses_belong_to_one_pass",
    "_loss_ids": "test_the_layer_that_adds_a_loss_is_found",
    "_compute_loss": "test_compute_loss_without_a_training_argument_works",
    "_distribution_strategy": "test_an_optimizer_is_built_in_the_scope_it_was_made_in",
    "_fn_kwargs": "test_losses_of_each_example_are_told_from_others",
    "_fn": "test_metrics_of_ones_own_do_not_count_as_adding_up",
    "_apply_weight_decay": "test_optimizer_methods_of_tensorflow_are_replaced_and_put_back",
    "_backend_update_step": "test_optimizer_methods_of_tensorflow_are_replaced_and_put_back",
    "_var_key": "test_optimizer_methods_of_tensorflow_are_replaced_and_put_back",
    "_trainable_variables": "test_weights_that_an_optimizer_does_not_know_are_found",
    "_learning_rate": "test_vectors_of_an_optimizers_variables_are_found",
    "_use_weight_decay": "test_vectors_of_an_optimizers_variables_are_found",
    "_variables": "test_vectors_of_an_optimizers_variables_are_found",
    "_is_default": "test_callbacks_that_watch_batches_are_told_from_others",
    "_initial_epoch": "test_the_epoch_that_a_backup_was_taken_at",
    "_cast_seed": "test_seeds_of_gpus_are_computed_on_the_host",
    "_is_gpu_available": "test_recurrent_layers_use_cudnn_only_outside_of_xla_and_cpus",
    "_flatten_metrics_in_order": "test_evaluate_returns_its_values_in_the_order_of_metrics",
    "_moments": _MOMENTS,
    "_compute_moments_sync": _MOMENTS,
    "_expected_batch_size": (
        "layers.test_older_layers.test_a_stateful_layer_knows_the_size_of_its_batch"
    ),
    "_reduction_axes": _MOMENTS,
    "_assert_compile_called": "test_trainer.test_a_model_that_is_not_compiled_is_refused",
    "_maybe_init_progbar": "test_trainer.test_a_resumed_epoch_has_its_line",
    "_use_cached_eval_dataset": "test_trainer.test_kerass_fit_tells_evaluate_that_it_validates",
}
COVERED_IMPORTS = {
    "keras.src.models.functional.Functional": (
        "test_a_model_made_from_layers_is_not_traced_to_build_its_loss"
    ),
    "keras.src.trainers.compile_utils": "test_compiled_parts_are_built_by_a_method_of_their_own",
    "keras.src.utils.naming.to_snake_case": "test_places.test_automatic_names_are_those_of_keras",
    "keras.src.backend": "test_masks_travel_on_tensors",
    "keras.src.backend.common.global_state": (
        "test_the_global_seed_generator_can_be_set_in_a_thread"
    ),
    "keras.src.random.seed_generator.GLOBAL_SEED_GENERATOR": (
        "test_the_global_seed_generator_can_be_set_in_a_thread"
    ),
    "keras.src.random.seed_generator.global_seed_generator": (
        "test_the_global_seed_generator_can_be_set_in_a_thread"
    ),
    "keras.src.backend.tensorflow.optimizer.TFOptimizer": (
        "test_optimizer_methods_of_tensorflow_are_replaced_and_put_back"
    ),
    "keras.src.optimizers.base_optimizer.BaseOptimizer": (
        "test_optimizer_methods_of_tensorflow_are_replaced_and_put_back"
    ),
    "keras.src.backend.common.stateless_scope.get_stateless_scope": (
        "test_the_stateless_scope_of_the_moment_is_found"
    ),
    "keras.src.backend.common.stateless_scope.in_stateless_scope": (
        "test_the_stateless_scope_of_the_moment_is_found"
    ),
    "keras.src.backend.tensorflow.numpy": "test_signbit_is_kerass_without_int32",
    "keras.src.backend.tensorflow.random": "test_seeds_of_gpus_are_computed_on_the_host",
    "keras.src.losses.loss": "test_losses_use_the_replaced_reduction_and_scaling",
    "keras.src.backend.tensorflow.nn": (_MOMENTS),
    "keras.src.optimizers.loss_scale_optimizer.LossScaleOptimizer": (
        "test_every_optimizer_applies_by_the_methods_that_steps_replace"
    ),
    "keras.src.trainers.data_adapters.data_adapter_utils": (
        "test_trainer.test_class_weights_become_sample_weights"
    ),
    "keras.src.trainers.trainer.Trainer": "test_layers_that_are_trainers_count_as_models",
}


def defined_in(tree):
    """Functions, and attributes of the own classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in ast.walk(node):
                if isinstance(getattr(target, "ctx", None), ast.Store):
                    yield getattr(target, "id", getattr(target, "attr", None))


def test_every_private_name_is_covered():
    files = sorted(pathlib.Path(pure.__file__).parent.rglob("*.py"))
    assert len({file.parent for file in files}) == 4
    tree = ast.parse("\n".join(file.read_text().replace(FUTURE, "") for file in files))
    own = {
        node.name if isinstance(node, ast.FunctionDef) else target.id
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.Assign))
        for target in getattr(node, "targets", [None])
        if isinstance(node, ast.FunctionDef) or isinstance(target, ast.Name)
    }
    of_self = set(defined_in(tree))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (ast.unparse(node.value) == "self" and node.attr in of_self)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
    }
    used |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("_")
        and not node.value.startswith(("__", "_batch_"))  # no names, or parts of public ones
        and node.value.isidentifier()
    }
    assert used - own == set(COVERED)
    imports = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src")
        for alias in node.names
    }
    assert imports == set(COVERED_IMPORTS)
    for test in {*COVERED.values(), *COVERED_IMPORTS.values()}:
        module, _, name = test.rpartition(".")
        module = importlib.import_module(f"tests.models.pure.{module or 'test_pure'}")
        assert callable(getattr(module, name))


def test_what_is_excluded_from_weight_decay_is_remembered():
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    variable = keras.Variable(np.ones(2), name="kept")
    optimizer.exclude_from_weight_decay(var_list=[variable], var_names=["bias"])
    made = pure.remade(optimizer, keras.optimizers.AdamW)
    assert made._exclude_from_weight_decay == optimizer._exclude_from_weight_decay != []
    assert made._exclude_from_weight_decay_pattern
    made.build([variable])
    assert not made._use_weight_decay(variable)


def dense(loss="mse", **compiled):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", loss, **compiled)
    return model


def forward(model, example, shard=None, training=True):
    """One forward pass of a built model on its own values."""
    pure.build_optimizer(model)
    roles = pure.parts(model)
    count = tf.constant(len(example.x))
    shard = shard or pure.Shard(count, count)
    state = tuple(
        [tf.convert_to_tensor(v.numpy()) for v in variables]
        for variables in (roles.trainable, roles.other, roles.seeds)
    )
    with pure.patched():
        return roles, pure.forward(
            model, roles, state, example, shard=shard, training=training, with_metrics=True
        )


def example(n=4, units=2):
    x = np.arange(n * 3, dtype="float32").reshape(n, 3) / 10
    return Example((tf.constant(x),), tf.constant(x), tf.ones((n, units)), None)


def test_native_variables_are_behind_keras_ones():
    variable = keras.Variable([1.0, 2.0])
    (native,) = pure.Parts((variable,), (), (), (), ()).natives("trainable")
    assert isinstance(native, tf.Variable)
    native.assign([3.0, 4.0])
    np.testing.assert_array_equal(variable.numpy(), [3.0, 4.0])
    assert isinstance(native._unique_id, str)


def test_the_loss_tracker_is_a_mean():
    model = dense()
    pure.build(model, example())
    roles, result = forward(model, example())
    assert isinstance(model._loss_tracker, keras.metrics.Mean)
    total, count = result.metrics[0].numpy(), result.metrics[1].numpy()
    np.testing.assert_allclose(total / count, result.loss.numpy(), rtol=1e-6)
    assert count == 4
    for variable, value in zip(roles.metrics, result.metrics, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(pure.loss_so_far(model), result.loss, rtol=1e-6)


def test_call_passes_training_only_where_it_is_taken():
    class With(keras.Model):
        def call(self, x, training=False):
            return x * (2.0 if training else 1.0)

    class Without(keras.Model):
        def call(self, x):
            return x * 3.0

    one = tf.ones((1, 1))
    assert pure.call(With(), (one,), training=True).numpy().item() == 2.0
    assert pure.call(With(), (one,), training=False).numpy().item() == 1.0
    assert pure.call(Without(), (one,), training=True).numpy().item() == 3.0


def test_all_layers_include_nested_ones():
    inner = keras.Sequential([keras.layers.Dense(2, name="deep")])
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1, name="shallow")])
    assert {"deep", "shallow"} <= {layer.name for layer in pure.all_layers(model)}


def test_compiled_losses_and_metrics_are_found():
    model = dense(metrics=["mae", "accuracy"])
    assert pure.compiled_metrics(model) == []
    pure.build(model, example())
    assert [m.name for m in pure.compiled_metrics(model)] == ["mae", "accuracy"]
    assert pure.tracked_metrics(model) == []
    assert dense(loss=None)._compile_loss is None


def test_metrics_say_whether_higher_is_better():
    assert pure.higher_is_better(dense()) == {}
    iou, auc = keras.metrics.BinaryIoU(name="overlap"), keras.metrics.AUC(name="area")
    model = dense(metrics=["mae", iou, keras.losses.cosine_similarity], weighted_metrics=[auc])
    model.seen = [keras.metrics.Accuracy(name="own"), keras.metrics.Mean(name="mean")]
    assert pure.higher_is_better(model) == {"own": True}
    pure.build(model, example())
    # The loss is minus the similarity.
    compiled = {"mae": False, "overlap": True, "cosine_similarity": False, "area": True}
    assert pure.higher_is_better(model) == {"own": True, **compiled}


def test_metrics_of_several_outputs_have_the_names_of_the_logs():
    given = keras.Input((3,))
    outputs = {name: keras.layers.Dense(1, name=name)(given) for name in ("a", "b")}
    model = keras.Model(given, outputs)
    iou = keras.metrics.BinaryIoU(name="overlap")
    model.compile("sgd", "mse", metrics={"a": [iou], "b": ["mae"]})
    model.fit(np.ones((4, 3)), {name: np.ones((4, 1)) for name in "ab"}, verbose=0)
    assert pure.higher_is_better(model) == {"a_overlap": True, "b_mae": False}


def test_functions_in_compile_are_found():
    def own(y, p):
        return keras.ops.mean(y - p, axis=-1)

    metric = keras.metrics.MeanMetricWrapper(keras.losses.huber)
    assert pure.compiled_functions(dense(loss=own, metrics=[metric])) == [own, keras.losses.huber]
    assert pure.compiled_functions(dense(loss="mse")) == []
    assert pure.compiled_functions(keras.Sequential()) == []


def test_arguments_that_keras_does_not_save():
    assert pure.forgotten_arguments(keras.losses.Huber(delta=2.0)) == {"delta": 2.0}
    assert pure.forgotten_arguments(keras.losses.MeanSquaredError()) == {}
    assert pure.forgotten_arguments(keras.metrics.CosineSimilarity(axis=0)) == {"axis": 0}
    assert pure.forgotten_arguments("mse") == pure.forgotten_arguments(None) == {}
    assert pure.compile_arguments(dense(loss="mse"))["loss"] == "mse"
    assert pure.compile_arguments(keras.Sequential()) == {}


def test_evaluate_returns_its_values_in_the_order_of_metrics():
    model = dense(metrics=["mae", "accuracy"])
    x, y = example().x, example().y
    expected = model.evaluate(x, y, verbose=0)
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    assert pure.in_order(model, dict(sorted(logs.items()))) == expected
    assert pure.in_order(dense(), {"loss": 2.0}) == 2.0


def test_layers_that_are_trainers_count_as_models():
    class Both(keras.layers.Layer, introspection.Trainer):
        def __init__(self):
            keras.layers.Layer.__init__(self)
            introspection.Trainer.__init__(self)

    assert isinstance(dense(), introspection.Trainer)
    assert pure.is_model(dense())
    assert pure.is_model(Both())
    assert not pure.is_model(keras.layers.Dense(1))


@pytest.mark.parametrize("is_scaled", [False, True])
def test_every_optimizer_applies_by_the_methods_that_steps_replace(is_scaled):
    """`apply` and `apply_gradients` end there, and the inner optimizer of a loss scale does."""
    inner = keras.optimizers.SGD(0.1)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if is_scaled else inner
    kind = running.LossScaleOptimizer if is_scaled else running.BaseOptimizer
    assert type(optimizer).apply is kind.apply
    assert isinstance(optimizer, running.BaseOptimizer)
    weight = keras.Variable([1.0, 2.0])
    optimizer.build([weight])
    given = []
    before = running.BaseOptimizer.apply
    with running._clipping(lambda gradients: given.append(gradients) or gradients, None):
        assert running.BaseOptimizer.apply is not before
        optimizer.apply([tf.constant([1.0, 1.0])], [weight])
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), weight)])
    assert running.BaseOptimizer.apply is before
    scale = float(optimizer.initial_scale) if is_scaled else 1.0
    np.testing.assert_allclose(given, np.full((2, 1, 2), 1.0 / scale))
    np.testing.assert_allclose(weight, [1 - 0.2 / scale, 2 - 0.2 / scale], rtol=1e-6)
    if is_scaled:
        assert int(optimizer.step_counter) == 2


def test_class_number_losses_are_found_with_their_path():
    inputs = keras.Input((3,))
    model = keras.Model(
        inputs, {"kind": keras.layers.Dense(4)(inputs), "size": keras.layers.Dense(1)(inputs)}
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("sgd", {"kind": loss, "size": "mse"})
    x = tf.ones((2, 3))
    y = {"kind": tf.constant([1, 2]), "size": tf.ones((2, 1))}
    pure.build(model, Example((x,), x, y, None))
    assert pure.sparse_label_outputs(model) == [(("kind",), 0)]


def test_add_loss_is_counted_once_and_forgotten():
    class Adding(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    model = keras.Sequential([keras.Input((3,)), Adding(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    pure.build(model, example())
    _, first = forward(model, example())
    _, second = forward(model, example())
    assert first.used_add_loss
    assert float(first.loss) == float(second.loss)
    plain = keras.ops.mean(keras.ops.square(model(example().x) - 1.0)) + tf.reduce_mean(example().x)
    np.testing.assert_allclose(first.loss, plain, rtol=1e-6)


def test_losses_belong_to_one_pass():
    """Keras reads `_get_own_losses` for `losses`, and calls `_clear_losses` before each call."""

    class Adding(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    layer = Adding()
    model = keras.Sequential([keras.Input((3,)), layer])
    with pure.patched(), added_losses.LossScope([]) as first:
        model(tf.ones((1, 3)))
        with added_losses.LossScope([]) as second:  # Another replica, in between.
            model(2 * tf.ones((1, 3)))
            assert [float(loss) for loss in model.losses] == [2.0]
        assert [float(loss) for loss in model.losses] == [1.0]
        model(3 * tf.ones((1, 3)))
        assert [float(loss) for loss in layer.losses] == [3.0]
        assert first.losses == layer.losses
        model._clear_losses()
        assert first.losses == model.losses == []
    assert [(owner, float(loss)) for owner, loss in second.added] == [(layer, 2.0)]
    assert model.losses == []
    model(tf.ones((1, 3)))  # As before.
    assert [float(loss) for loss in model.losses] == [1.0]


def test_the_layer_that_adds_a_loss_is_found():
    class Adding(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    layer = Adding()
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    pure.build(model, example())
    _, result = forward(model, example())
    assert result.owners == (layer,)


def test_compute_loss_without_a_training_argument_works():
    class Old(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return keras.ops.sum(y_pred) * 0 + 5.0

    model = Old([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd")
    _, result = forward(model, example())
    assert float(result.loss) == 5.0


def own_accuracy(y_true, y_pred):
    return keras.ops.mean(y_pred)


class OwnMetric(keras.metrics.MeanAbsoluteError):
    pass


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mae", True),
        (keras.metrics.AUC(), True),
        (own_accuracy, False),
        (OwnMetric(), False),
        (keras.metrics.CosineSimilarity(), True),
        (keras.metrics.CosineSimilarity(axis=0), False),
        (keras.metrics.PearsonCorrelation(axis=0), False),
        (keras.losses.dice, False),
        (keras.losses.MeanSquaredError(), False),
    ],
)
def test_metrics_of_ones_own_do_not_count_as_adding_up(metric, expected):
    model = dense(metrics=[metric])
    pure.build(model, example())
    (compiled,) = pure.compiled_metrics(model)
    assert pure.adds_up(compiled) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mse", True), ("poisson", True), ("cosine_similarity", False), ("kl_divergence", False)],
)
def test_on_outputs_with_one_axis_only_means_add_up(name, expected):
    model = dense(metrics=[name])
    pure.build(model, example())
    (compiled,) = pure.compiled_metrics(model)
    assert pure.adds_up(compiled)
    assert pure.adds_up(compiled, has_rows_of_numbers=False) is expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", False),
        (keras.losses.CosineSimilarity(), False),
        (keras.losses.CosineSimilarity(axis=0), True),
        (keras.losses.Circle(), True),
        (keras.losses.Dice(), True),
        (type("Own", (keras.losses.MeanSquaredError,), {"call": lambda *_: 0.0})(), True),
    ],
)
def test_losses_of_each_example_are_told_from_others(loss, expected):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", loss)
    spec = tf.TensorSpec((None, 2))
    pure.build(model, Example((spec,), spec, spec, None))
    assert pure.has_own_loss(model) is expected


def test_weights_that_an_optimizer_does_not_know_are_found():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    assert pure.unknown_to_optimizer(model) == []
    pure.build_optimizer(model)
    assert pure.unknown_to_optimizer(model) == []
    model.layers[0].trainable = True
    assert pure.unknown_to_optimizer(model) == model.layers[0].trainable_variables


def test_an_optimizer_is_built_in_the_scope_it_was_made_in():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    pure.build_optimizer(model)
    natives = pure.parts(model).natives("optimizer")
    assert all(isinstance(v, tf.distribute.DistributedValues) for v in natives)


def test_a_seed_generator_is_known_by_the_name_of_its_variable():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    generator, number = keras.random.SeedGenerator(0), keras.Variable(0.0)
    pure.adopt(model, [generator.state, number])
    roles = pure.parts(model)
    assert roles.seeds[-1] is generator.state
    assert roles.other[-1] is number


def test_draws_for_rows_repeat_one_and_keras_is_put_back():
    before = dict(vars(keras_backend.random)), keras.layers.BatchNormalization.call
    with pure.repeated_rows(4) as draws:
        noise = keras.random.normal((4, 3), seed=1).numpy()
        kept = keras.random.dropout(tf.ones((4, 8)), 0.5, seed=1).numpy()
        other = keras.random.uniform((5, 3), seed=1).numpy()
        assert draws.are_alike
        keras.random.shuffle(tf.range(4), seed=1)
        assert not draws.are_alike
    assert (noise == noise[0]).all()
    assert (kept == kept[0]).all()
    assert 0 < kept[0].sum() < 16
    assert not (other == other[0]).all()
    assert before == (dict(vars(keras_backend.random)), keras.layers.BatchNormalization.call)


def test_optimizer_methods_of_tensorflow_are_replaced_and_put_back():
    names = [*patches._FUNCTIONAL, "_var_key"]
    before = [vars(patches.TFOptimizer)[name] for name in names]
    with pure.patched(), pure.patched():
        inside = [vars(patches.TFOptimizer)[name] for name in names]
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert [vars(patches.TFOptimizer)[name] for name in names] == before
    for name in patches._FUNCTIONAL:
        assert name in vars(patches.BaseOptimizer)
    assert issubclass(keras.optimizers.Optimizer, patches.TFOptimizer)


def test_callbacks_that_watch_batches_are_told_from_others(tmp_path):
    callbacks = keras.callbacks
    assert pure.wants_batches(callbacks.TerminateOnNaN(), "train")
    assert pure.wants_batches(callbacks.LambdaCallback(on_train_batch_end=print), "train")
    assert not pure.wants_batches(callbacks.LambdaCallback(on_epoch_end=print), "train")
    assert not pure.wants_batches(callbacks.EarlyStopping(), "train")
    path = str(tmp_path / "a.keras")
    assert not pure.wants_batches(callbacks.ModelCheckpoint(path), "train")
    assert pure.wants_batches(callbacks.ModelCheckpoint(path, save_freq=3), "train")
    assert pure.wants_batches(callbacks.LambdaCallback(on_train_batch_end=print), "train")
    assert not pure.wants_batches(callbacks.LambdaCallback(on_train_batch_end=print), "test")
    assert not pure.wants_batches(callbacks.BackupAndRestore(path), "train")
    assert pure.wants_batches(callbacks.BackupAndRestore(path, save_freq=3), "train")
    assert pure.wants_batches(callbacks.LambdaCallback(on_predict_batch_end=print), "predict")
    assert not pure.wants_batches(callbacks.LambdaCallback(on_predict_batch_end=print), "test")


def test_the_epoch_that_a_backup_was_taken_at(tmp_path):
    def make():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    model, x = make(), np.ones((2, 1))
    assert pure.initial_epoch(model) == 0
    backup = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
    model.fit(x, x, epochs=3, verbose=0, callbacks=[backup])
    restored = make()
    backup.set_model(restored)
    backup.on_train_begin()
    assert pure.initial_epoch(restored) == 3


def test_masks_travel_on_tensors():
    outputs = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[1, 0]]))
    np.testing.assert_array_equal(pure.get_mask(outputs), [[True, False]])
    plain = tf.ones((1, 2))
    assert pure.get_mask(plain) is None
    pure.set_mask(plain, tf.constant([[True, False]]))
    assert pure.get_mask(plain) is not None


def test_a_new_thread_has_keras_settings_and_no_graph():
    keras.config.set_dtype_policy("mixed_bfloat16")
    generator = pure.share_global_seed_generator()

    def look():
        is_same = pure.share_global_seed_generator() is generator
        return keras.config.dtype_policy().name, tf.executing_eagerly(), is_same

    seen = []
    tf.function(lambda: seen.append(pure.in_new_thread(look)))()
    assert seen == [("mixed_bfloat16", True, True)]
    with pytest.raises(ZeroDivisionError):
        pure.in_new_thread(lambda: 1 / 0)


def test_the_global_seed_generator_can_be_set_in_a_thread():
    import threading

    generator = pure.share_global_seed_generator()
    seen = []

    def in_thread():
        pure.use_global_seed_generator(generator)
        seen.append(pure.share_global_seed_generator())

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert seen == [generator]
    state = pure.parts(dense()).seeds[-1]
    before = state.numpy().copy()
    keras.random.normal((2,))
    assert not np.array_equal(before, state.numpy())


def test_a_policy_is_put_back_to_what_it_was():
    pure.variables.global_state.set_global_attribute("dtype_policy", None)
    with pure.dtype_policy("mixed_bfloat16"):
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    keras.config.set_floatx("float64")  # followed only while no policy was set
    assert keras.config.dtype_policy().name == "float64"
    keras.config.set_floatx("float32")


def test_losses_use_the_replaced_reduction_and_scaling():
    """Inside a strategy Keras divides by the replicas; patched, it does not."""
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()
    )

    def replica():
        return keras.losses.MeanSquaredError()(tf.zeros((2, 1)), tf.ones((2, 1)))

    def run():
        return strategy.experimental_local_results(strategy.run(replica))[0].numpy()

    assert run() == 0.5
    with pure.patched():
        assert run() == 1.0
    assert run() == 0.5


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight", "sum_over_batch_size"])
def test_weighted_parts_of_a_loss_add_up_to_the_whole(reduction):
    """Two shards of 3 and 1 examples: each loss times its weight, added, is the batch's."""
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    y, outputs = tf.zeros((4, 1)), tf.constant([[1.0], [2.0], [3.0], [4.0]])
    weights = tf.constant([1.0, 0.5, 2.0, 4.0])
    whole = float(loss(y, outputs, weights))
    total = 0.0
    denominators = [tf.reduce_sum(weights)]
    for rows in (slice(0, 3), slice(3, 4)):
        count = tf.shape(outputs[rows])[0]
        shard = pure.Shard(count, tf.constant(4), denominators)
        with pure.patched(), pure.tracing(shard):
            part = loss(y[rows], outputs[rows], weights[rows])
        total += float(shard.weight) * float(part)
    np.testing.assert_allclose(total, whole, rtol=1e-6)


@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_recurrent_layers_use_cudnn_only_outside_of_xla_and_cpus(kind, monkeypatch):
    # As on a machine with a GPU. cuDNN's operations can be traced here, but not run.
    monkeypatch.setattr(patches._keras_rnn, "_is_gpu_available", lambda: True)
    layer = kind(2, dropout=0.1)  # Dropout: the quick version for CPUs does not replace it.
    assert not layer.supports_jit
    x = tf.ones((2, 5, 3))

    def operations(**options):
        @tf.function(autograph=False)
        def outputs(x):
            shard = pure.Shard(tf.constant(2), tf.constant(2), **options)
            with pure.patched(), pure.tracing(shard):
                return layer(x, training=True)

        return {node.op for node in outputs.get_concrete_function(x).graph.as_graph_def().node}

    layer.build(x.shape)
    assert "CudnnRNNV3" in operations()
    for options in ({"is_jit": True}, {"on_cpu": True}):
        assert "CudnnRNNV3" not in operations(**options)
    assert patches._keras_rnn._is_gpu_available()  # Put back.


def test_the_stateless_scope_of_the_moment_is_found():
    assert not in_place.in_stateless_scope()
    with keras.StatelessScope() as scope:
        assert in_place.in_stateless_scope()
        assert in_place.get_stateless_scope() is scope


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_signbit_is_kerass_without_int32(dtype):
    numbers = [0.0, 1.0, -2.0] if dtype == "int32" else [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf]
    x = tf.cast(tf.constant(numbers), dtype)
    plain = keras.ops.signbit(x)
    with pure.patched():
        graph = tf.function(keras.ops.signbit, autograph=False).get_concrete_function(x).graph
        found = keras.ops.signbit(x)
    np.testing.assert_array_equal(found, plain)
    np.testing.assert_array_equal(found, np.signbit(numbers))
    if dtype != "int32":
        used = {t.dtype for op in graph.get_operations() for t in op.outputs}
        assert tf.int32 not in used


@pytest.mark.parametrize(
    ("options", "device"), [({}, "CPU:0"), ({"is_jit": True}, "CPU:1"), ({"on_cpu": True}, "CPU:1")]
)
def test_seeds_of_gpus_are_computed_on_the_host(options, device):
    layer = keras.layers.Dropout(0.5, seed=3)
    x = tf.ones((4, 8))

    @tf.function(autograph=False)
    def outputs(x):
        shard = pure.Shard(tf.constant(4), tf.constant(4), **options)
        with tf.device("CPU:1"), pure.patched(), pure.tracing(shard), keras.StatelessScope():
            return layer(x, training=True)

    graph = outputs.get_concrete_function(x).graph
    seeds = [op for op in graph.get_operations() if op.type in ("FloorMod", "Mul", "Cast")]
    integers = [op for op in seeds if op.outputs[0].dtype.is_integer]
    assert {"FloorMod", "Cast"} <= {op.type for op in integers}
    assert all(op.device.endswith(device) for op in integers)
    # The same numbers as Keras draws.
    other = keras.layers.Dropout(0.5, seed=3)
    np.testing.assert_array_equal(outputs(x), other(x, training=True))


@pytest.mark.parametrize(("options", "dtype"), [({}, tf.int64), ({"on_cpu": True}, tf.int32)])
def test_embeddings_take_int64_on_gpus_and_have_the_same_gradient(options, dtype):
    layer = keras.layers.Embedding(5, 2)
    x = tf.constant([[0, 4, 1], [1, -1, 1]])
    layer.build(x.shape)

    def gradient(is_patched):
        shard = pure.Shard(tf.constant(2), tf.constant(2), **options) if is_patched else None
        with pure.patched(), pure.tracing(shard), tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x) ** 3)
        return tape.gradient(loss, layer.trainable_variables[0].value)

    assert gradient(True).indices.dtype == dtype
    dense = tf.convert_to_tensor(gradient(True))
    np.testing.assert_array_equal(dense, tf.convert_to_tensor(gradient(False)))


@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_xla_compiles_kerass_recurrent_layers_and_their_gradients(kind, monkeypatch):
    """What runs on GPUs with `jit=True`. Here it runs on a CPU."""
    monkeypatch.setattr(patches._keras_rnn, "_is_gpu_available", lambda: True)
    layer = kind(2)
    x, mask = tf.random.normal((2, 5, 3)), tf.constant([[True] * 5, [True] * 3 + [False] * 2])
    layer.build(x.shape)

    def gradients(is_jit):
        @tf.function(autograph=False, jit_compile=is_jit)
        def compute(x):
            shard = pure.Shard(tf.constant(2), tf.constant(2), is_jit=True)
            with pure.patched(), pure.tracing(shard), tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x, mask=mask, training=True) ** 2)
            return tape.gradient(loss, layer.trainable_variables)

        return compute(x)

    for plain, compiled in zip(gradients(False), gradients(True), strict=True):
        np.testing.assert_allclose(plain, compiled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (keras.optimizers.SGD(0.1), 0),
        (keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9), momentum=0.9), 1),
        (keras.optimizers.Adam(0.1, amsgrad=True), 3),
        (keras.optimizers.AdamW(0.1, weight_decay=0.1), 2),
        (keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True), 3),
        (keras.optimizers.Lion(0.1), 1),
    ],
)
def test_vectors_of_an_optimizers_variables_are_found(optimizer, slots):
    model = dense()
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse")
    joined = pure.join(optimizer, pure.parts(model))
    vectors = [numbers for numbers in joined.numbers["optimizer"] if len(numbers) > 1]
    assert len(vectors) == slots
    assert sorted(i for n in joined.numbers["optimizer"] for i in n) == list(
        range(len(optimizer.variables))
    )
    for numbers in vectors:  # One of each variable, in order, and of one kind.
        own = [optimizer.variables[i] for i in numbers]
        assert [v.shape for v in own] == [v.shape for v in model.trainable_variables]
        assert len({v.path.rsplit("_", 1)[-1] for v in own}) == 1
    if optimizer.weight_decay:
        optimizer.built = False
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        assert pure.join(optimizer, pure.parts(model)) is None


def test_compiled_parts_are_built_by_a_method_of_their_own():
    """A step that would build them in a graph is told from others."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    y = tf.ones((3, 1))
    for compiled in (model._compile_loss, model._compile_metrics):
        assert not compiled.built
        step = running._clipping(lambda gradients: gradients, None)
        with step, pytest.raises(pure.NotBuiltError):
            compiled.build(y, y)
        compiled.build(y, y)
        assert compiled.built


def _graph_of_layers():
    first, second = keras.Input((4,), name="first"), keras.Input((2,), name="second")
    outputs = {
        "one": keras.layers.Dense(2, name="one")(keras.layers.Concatenate()([first, second])),
        "two": keras.layers.Dense(1, name="two")(first),
    }
    return keras.Model({"first": first, "second": second}, outputs)


@pytest.mark.parametrize(
    ("make", "shapes", "is_known"),
    [
        (lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]), (8, 4), True),
        (lambda: keras.Sequential([keras.Input((None,)), keras.layers.Softmax()]), (8, 3), False),
        (lambda: keras.Sequential([keras.layers.Dense(3)]), (8, 4), False),
        (_graph_of_layers, {"first": (8, 4), "second": (8, 2)}, True),
    ],
)
def test_a_model_made_from_layers_is_not_traced_to_build_its_loss(
    make, shapes, is_known, monkeypatch
):
    model = make()
    model.compile("sgd", "mse", metrics=["mae"] if isinstance(shapes, tuple) else None)
    traced = []
    monkeypatch.setattr(building, "call", lambda *given: traced.append(1) or pure.call(*given))
    x = (
        {name: tf.TensorSpec(shape) for name, shape in shapes.items()}
        if isinstance(shapes, dict)
        else tf.TensorSpec(shapes)
    )
    outputs = {"one": tf.TensorSpec((8, 2)), "two": tf.TensorSpec((8, 1))}
    y = outputs if isinstance(shapes, dict) else tf.TensorSpec((8, 3))
    pure.build(model, Example((x,), x, y, None))
    assert bool(traced) != is_known
    assert model._compile_loss.built
    assert model._compile_metrics is None or model._compile_metrics.built
