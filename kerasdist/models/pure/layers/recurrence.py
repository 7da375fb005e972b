"""GRU and LSTM as one operation over time, for CPUs. Same maths as Keras, with other rounding.

Keras multiplies the inputs of each time step inside the loop over time, and TensorFlow's gradient
of that loop adds to the kernels' gradients at each time step. Neither depends on the time step
before or after. So here they are one product before each loop and one after it. The loops only
compute what one state hands to the next.

Products of so few rows run on one core. So the rows of a batch can run in two loops, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

_Tensors = Sequence[tf.Tensor]
# `step(time, states)` returns the new states and the tensors to record.
_Step = Callable[[tf.Tensor, _Tensors], tuple[_Tensors, _Tensors]]
# The derivatives of the activations, from their outputs.
_SIGMOID, _TANH = tf.raw_ops.SigmoidGrad, tf.raw_ops.TanhGrad
# Fewer rows are not worth a second loop.
_ROWS_OF_A_LOOP = 16


def is_quick(layer: keras.layers.RNN) -> bool:
    """Whether `loop` can replace the layer's own `inner_loop`."""
    cell = layer.cell
    if (type(layer), type(cell)) not in _KINDS or layer.unroll:
        return False
    activations = (cell.recurrent_activation, cell.activation)
    is_usual = activations == (keras.activations.sigmoid, keras.activations.tanh)
    has_dropout = cell.dropout or cell.recurrent_dropout
    is_float = cell.compute_dtype in ("float32", "float64")
    return is_usual and is_float and not has_dropout and getattr(cell, "reset_after", True)


def loop(
    layer: keras.layers.RNN,
    sequences: tf.Tensor,
    initial_state: Any,
    mask: tf.Tensor | None,
    in_halves: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """As a Keras layer's `inner_loop`: returns the last output, all outputs, the last states.

    `in_halves` lets the two halves of the rows run side by side: for a step that has all cores.
    """
    start = [tf.convert_to_tensor(state) for state in tf.nest.flatten(initial_state)]
    num_rows = sequences.shape[0]
    if not in_halves or (num_rows is not None and num_rows < 2 * _ROWS_OF_A_LOOP):
        return _rows(layer, sequences, start, mask)
    halves = [_halves(tensor) for tensor in (sequences, *start)]
    masks = [None, None] if mask is None else _halves(mask)
    both = [
        _rows(layer, sequences, start, mask)
        for (sequences, *start), mask in zip(zip(*halves, strict=True), masks, strict=True)
    ]
    last_output, outputs, *states = (
        tf.concat(parts, 0) for parts in zip(*map(tf.nest.flatten, both), strict=True)
    )
    return last_output, outputs, states


def _halves(tensor: tf.Tensor) -> list[tf.Tensor]:
    num_rows = tensor.shape[0]
    num_rows = tf.shape(tensor)[0] if num_rows is None else num_rows
    return tf.split(tensor, [num_rows // 2, num_rows - num_rows // 2])


def _rows(
    layer: keras.layers.RNN, sequences: tf.Tensor, start: _Tensors, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    cell = layer.cell
    over_time, biases_of = _KINDS[type(layer), type(cell)]
    inputs = tf.transpose(sequences, [1, 0, 2])
    if mask is not None:
        mask = tf.transpose(tf.reshape(tf.cast(mask, tf.bool), tf.shape(sequences)[:2]))[..., None]
    if layer.go_backwards:
        inputs = tf.reverse(inputs, [0])
        mask = None if mask is None else tf.reverse(mask, [0])
    kernel = tf.convert_to_tensor(cell.kernel)
    recurrent_kernel = tf.convert_to_tensor(cell.recurrent_kernel)
    input_bias, *recurrent_bias = biases_of(cell, kernel)
    projected = _projected(inputs, kernel, input_bias)
    outputs, *last = over_time(projected, recurrent_kernel, *recurrent_bias, *start, mask)
    states = [outputs[-1], *last]
    if mask is not None:
        # A masked time step keeps the state. It outputs that of the last unmasked one, or zero.
        has_output = mask if layer.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32)) > 0
        outputs = tf.where(has_output, outputs, tf.zeros_like(outputs))
    last_output = outputs[-1]
    if not layer.return_sequences:
        outputs = last_output[tf.newaxis]
    return last_output, tf.transpose(outputs, [1, 0, 2]), states


def _projected(inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    features, width = kernel.shape
    flat = tf.nn.bias_add(tf.matmul(tf.reshape(inputs, [-1, features]), kernel), bias)
    sizes = [tf.shape(inputs)[axis] if n is None else n for axis, n in enumerate(inputs.shape[:2])]
    return tf.reshape(flat, [*sizes, width])


def _gru_biases(cell: keras.layers.GRUCell, kernel: tf.Tensor) -> list[tf.Tensor]:
    return tf.unstack(tf.convert_to_tensor(cell.bias)) if cell.use_bias else [_no_bias(kernel)] * 2


def _lstm_biases(cell: keras.layers.LSTMCell, kernel: tf.Tensor) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(cell.bias) if cell.use_bias else _no_bias(kernel)]


def _no_bias(kernel: tf.Tensor) -> tf.Tensor:
    return tf.zeros(kernel.shape[1:], kernel.dtype)


def _gru(
    projected: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    start: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor]:
    """The states of all time steps."""
    units = kernel.shape[0]

    def compute(
        projected: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, start: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[..., _Tensors]]:
        given = _each(projected)
        is_real = None if mask is None else _each(mask)

        def step(time: tf.Tensor, states: _Tensors) -> tuple[_Tensors, _Tensors]:
            (before,) = states
            outer = tf.split(given.read(time), 3, -1)
            inner = tf.split(tf.nn.bias_add(tf.matmul(before, kernel), bias), 3, -1)
            update, reset = (tf.sigmoid(outer[gate] + inner[gate]) for gate in (0, 1))
            candidate = tf.tanh(outer[2] + reset * inner[2])
            gap = before - candidate
            after = candidate + update * gap
            after = after if is_real is None else tf.where(is_real.read(time), after, before)
            return [after], [after, update, reset, candidate, gap, inner[2]]

        _, (all_states, *kept) = _over_time(step, projected, [start], [units] * 6)
        states = all_states.stack()

        def gradient(upstream: tf.Tensor) -> _Tensors:
            given, inside = _each(upstream), _inside(mask, start)

            def step(time: tf.Tensor, states: _Tensors) -> tuple[_Tensors, _Tensors]:
                update, reset, candidate, gap, inner = (each.read(time) for each in kept)
                total, passed = _unless_masked(states[0] + given.read(time), inside, time)
                direct = total * update
                of_candidate = _TANH(y=candidate, dy=total - direct)
                of_update = _SIGMOID(y=update, dy=total * gap)
                of_reset = _SIGMOID(y=reset, dy=of_candidate * inner)
                of_inner = tf.concat([of_update, of_reset, of_candidate * reset], -1)
                of_outer = tf.concat([of_update, of_reset, of_candidate], -1)
                of_before = tf.matmul(of_inner, kernel, transpose_b=True) + direct
                return [_sum(of_before, passed)], [of_inner, of_outer]

            zeros = [tf.zeros_like(start)]
            (of_start,), (of_inner, of_outer) = _over_time(
                step, projected, zeros, [3 * units] * 2, backwards=True
            )
            of_sums = tf.reshape(of_inner.stack(), [-1, 3 * units])
            of_kernel = _of_kernel(start, states, of_sums)
            return of_outer.stack(), of_kernel, _of_bias(of_sums), of_start

        return states, gradient

    return (tf.custom_gradient(compute)(projected, kernel, bias, start),)


def _lstm(
    projected: tf.Tensor,
    kernel: tf.Tensor,
    start: tf.Tensor,
    start_carry: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The states of all time steps, and the last carry."""
    units = kernel.shape[0]

    def compute(
        projected: tf.Tensor, kernel: tf.Tensor, start: tf.Tensor, start_carry: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., _Tensors]]:
        given = _each(projected)
        is_real = None if mask is None else _each(mask)

        def step(time: tf.Tensor, states: _Tensors) -> tuple[_Tensors, _Tensors]:
            before, carry_before = states
            sums = tf.split(given.read(time) + tf.matmul(before, kernel), 4, -1)
            let_in, forget, let_out = (tf.sigmoid(sums[gate]) for gate in (0, 1, 3))
            candidate = tf.tanh(sums[2])
            carry = forget * carry_before + let_in * candidate
            shown = tf.tanh(carry)
            after = let_out * shown
            if is_real is not None:
                after = tf.where(is_real.read(time), after, before)
                carry = tf.where(is_real.read(time), carry, carry_before)
            kept = [carry_before, let_in, forget, candidate, let_out, shown]
            return [after, carry], [after, *kept]

        (_, last_carry), (all_states, *kept) = _over_time(
            step, projected, [start, start_carry], [units] * 7
        )
        states = all_states.stack()

        def gradient(upstream: tf.Tensor, of_last_carry: tf.Tensor) -> _Tensors:
            given, inside = _each(upstream), _inside(mask, start)

            def step(time: tf.Tensor, states: _Tensors) -> tuple[_Tensors, _Tensors]:
                carry_before, let_in, forget, candidate, let_out, shown = (
                    each.read(time) for each in kept
                )
                total, passed = _unless_masked(states[0] + given.read(time), inside, time)
                of_carry, passed_carry = _unless_masked(states[1], inside, time)
                of_carry += _TANH(y=shown, dy=total * let_out)
                of_gates = [
                    _SIGMOID(y=let_in, dy=of_carry * candidate),
                    _SIGMOID(y=forget, dy=of_carry * carry_before),
                    _TANH(y=candidate, dy=of_carry * let_in),
                    _SIGMOID(y=let_out, dy=total * shown),
                ]
                of_sums = tf.concat(of_gates, -1)
                of_before = _sum(tf.matmul(of_sums, kernel, transpose_b=True), passed)
                return [of_before, _sum(of_carry * forget, passed_carry)], [of_sums]

            ends = [tf.zeros_like(start), of_last_carry]
            (of_start, of_start_carry), (of_sums,) = _over_time(
                step, projected, ends, [4 * units], backwards=True
            )
            of_projected = of_sums.stack()
            of_kernel = _of_kernel(start, states, tf.reshape(of_projected, [-1, 4 * units]))
            return of_projected, of_kernel, of_start, of_start_carry

        return (states, last_carry), gradient

    return tf.custom_gradient(compute)(projected, kernel, start, start_carry)


def _over_time(
    step: _Step, like: tf.Tensor, start: _Tensors, widths: list[int], *, backwards: bool = False
) -> tuple[_Tensors, list[tf.TensorArray]]:
    """Calls `step` for each time step of `like`. Returns the last states, and what was recorded.

    `widths` are the last axes of the records. A list of tensors takes them without a copy.
    """
    num_steps = like.shape[0] or tf.shape(like)[0]

    def body(
        count: tf.Tensor, states: _Tensors, records: list[tf.TensorArray]
    ) -> tuple[tf.Tensor, _Tensors, list[tf.TensorArray]]:
        time = num_steps - 1 - count if backwards else count
        states, record = step(time, states)
        records = [each.write(time, value) for each, value in zip(records, record, strict=True)]
        return count + 1, states, records

    shapes = [(start[0].shape[0], width) for width in widths]
    records = [tf.TensorArray(like.dtype, num_steps, element_shape=shape) for shape in shapes]
    _, states, records = tf.while_loop(
        lambda count, *_: count < num_steps,
        body,
        (tf.constant(0), list(start), records),
        maximum_iterations=num_steps,
    )
    return states, records


def _each(values: tf.Tensor) -> tf.TensorArray:
    """The values of each time step."""
    num_steps = values.shape[0] or tf.shape(values)[0]
    array = tf.TensorArray(values.dtype, num_steps, element_shape=values.shape[1:])
    return array.unstack(values)


def _inside(mask: tf.Tensor | None, like: tf.Tensor) -> tf.TensorArray | None:
    """1 for each time step that counts, and 0 for one that the mask leaves out."""
    return None if mask is None else _each(tf.cast(mask, like.dtype))


def _unless_masked(
    upstream: tf.Tensor, inside: tf.TensorArray | None, time: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The gradient that enters a time step, and the one that passes it by."""
    if inside is None:
        return upstream, None
    entering = upstream * inside.read(time)
    return entering, upstream - entering


def _sum(tensor: tf.Tensor, other: tf.Tensor | None) -> tf.Tensor:
    return tensor if other is None else tensor + other


def _of_bias(upstream: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.BiasAddGrad(out_backprop=upstream)


def _of_kernel(start: tf.Tensor, states: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    before = tf.concat([start[tf.newaxis], states[:-1]], 0)
    return tf.matmul(tf.reshape(before, [-1, before.shape[-1]]), upstream, transpose_a=True)


# As `tf.function`s: TensorFlow keeps a custom gradient, and the graph it is in, for ever. This way
# that is one small graph per kind of layer, not a whole step per fit.
_KINDS: dict[tuple[type, type], tuple[Callable[..., Any], Callable[..., list[tf.Tensor]]]] = {
    (keras.layers.GRU, keras.layers.GRUCell): (
        tf.function(_gru, autograph=False),
        _gru_biases,
    ),
    (keras.layers.LSTM, keras.layers.LSTMCell): (
        tf.function(_lstm, autograph=False),
        _lstm_biases,
    ),
}
