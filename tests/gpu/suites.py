"""The suites that show that training on GPUs is right. They also run on CPUs, in the default tests.

`tests/gpu/test_suites.py` runs them on fake and on real GPUs.
"""

SUITES = {
    "parity": "tests/test_parity.py",
    "bits": "tests/test_bits.py",
    "traps": "tests/test_traps.py",
    "deterministic": "tests/engine/test_deterministic.py",
    "paths": "tests/engine/test_paths.py",
    "checkpoints": "tests/runs/checkpoints",
    "callbacks": "tests/training/epochs",
    "recipes": "tests/recipes",
}
# Half a minute of them on each number of fake GPUs.
FAST = (
    "tests/test_parity.py::test_one_float32_steps_gradient_equals_the_whole_batches",
    "tests/test_traps.py::test_t1_clipping_is_of_the_whole_batches_gradient",
    "tests/test_traps.py::test_t5_an_uneven_batch_has_its_whole_gradient",
    "tests/test_traps.py::test_t6_batch_norm_statistics_are_the_shards_average_on_every_replica",
    "tests/test_traps.py::test_t7_infinity_on_one_replica_is_written_on_none",
    "tests/engine/test_deterministic.py::test_bfloat16_has_the_same_bits",
    "tests/engine/test_paths.py::test_a_nan_is_named_and_nothing_is_written",
    "tests/training/epochs/test_callbacks.py::"
    "test_early_stopping_stops_and_restores_the_best_weights",
    "tests/runs/checkpoints/test_resuming.py::"
    "test_a_run_goes_on_within_an_epoch_with_all_its_history",
    "tests/runs/checkpoints/test_resuming.py::"
    "test_the_best_model_of_several_devices_has_its_optimizer",
    "tests/recipes/test_cifar10.py::test_a_preset_trains_and_its_model_is_saved_and_loaded[fast]",
)
