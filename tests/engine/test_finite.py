"""A step is written only if all of its numbers are finite."""

import pytest
import tensorflow as tf

from kerasdist.engine.finite import Check, write_by_choice, write_in_branch


@pytest.mark.parametrize("write", [write_by_choice, write_in_branch])
@pytest.mark.parametrize("is_finite", [True, False])
def test_both_ways_write_the_same(write, is_finite):
    weight, scale, unchanged = (tf.Variable(value) for value in (1.0, 8.0, 5.0))
    variables = {"trainable": [weight, unchanged], "optimizer": [scale]}

    @tf.function
    def step(finite):
        old = {role: [v.read_value() for v in owned] for role, owned in variables.items()}
        kept = {**old, "optimizer": [old["optimizer"][0] / 2]}

        def new_values():
            return {"trainable": [old["trainable"][0] + 1, None], "optimizer": old["optimizer"]}

        def assign(values):
            return [
                variable.assign(value)
                for role, owned in variables.items()
                for variable, value in zip(owned, values[role], strict=True)
                if value is not None
            ]

        check = Check(finite, lambda: tf.constant([[True, False]]))
        flags, done = write(check, new_values, kept, assign)
        with tf.control_dependencies(done):
            return tf.identity(flags)

    flags = step(tf.constant(is_finite))
    assert flags.shape == ((0, 0) if is_finite else (1, 2))
    assert float(weight) == (2 if is_finite else 1)
    assert float(unchanged) == 5
    assert float(scale) == (8 if is_finite else 4)
