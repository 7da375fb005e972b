"""GRU and LSTM as one operation over time, for CPUs. Same maths as Keras, with other rounding.

Keras multiplies the inputs of each time step inside the loop over time, and TensorFlow's gradient
of that loop adds to the kernels' gradients at each time step. Neither depends on the time step
before or after. So here they are one product before each loop and one after it. The loops only
compute what one state hands to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

# `step(inputs of a time step, states)` returns the new states and the tensors to record.
_Tensors = Sequence[tf.Tensor]
_Step = Callable[[_Tensors, _Tensors], tuple[_Tensors, _Tensors]]


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
    layer: keras.layers.RNN, sequences: tf.Tensor, initial_state: Any, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """As a Keras layer's `inner_loop`: returns the last output, all outputs, the last states."""
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
    start = [tf.convert_to_tensor(state) for state in tf.nest.flatten(initial_state)]
    projected = tf.tensordot(inputs, kernel, 1) + input_bias
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
        def step(given: _Tensors, states: _Tensors) -> tuple[_Tensors, _Tensors]:
            (before,) = states
            inner = tf.nn.bias_add(tf.matmul(before, kernel), bias)
            for_gates, for_candidate = tf.split(given[0], [2 * units, units], -1)
            inner_gates, inner_candidate = tf.split(inner, [2 * units, units], -1)
            gates = tf.sigmoid(for_gates + inner_gates)
            update, reset = tf.split(gates, 2, -1)
            candidate = tf.tanh(for_candidate + reset * inner_candidate)
            after = candidate + update * (before - candidate)
            after = after if mask is None else tf.where(given[1], after, before)
            return [after], [after, gates, candidate, inner_candidate]

        given = [projected] if mask is None else [projected, mask]
        _, (states, gates, candidate, inner_candidate) = _over_time(step, given, [start])

        def gradient(upstream: tf.Tensor) -> _Tensors:
            before = _earlier(start, states)
            update, reset = tf.split(gates, 2, -1)
            kept, changed = update, 1 - update
            if mask is not None:
                kept = tf.where(mask, update, tf.ones_like(update))
                changed = 1 - kept
            by_candidate = changed * (1 - tf.square(candidate))
            by_update = changed * update * (before - candidate)
            by_reset = by_candidate * inner_candidate * reset * (1 - reset)
            by_inner = tf.stack([by_update, by_reset, by_candidate * reset], 2)

            def step(given: _Tensors, states: _Tensors) -> tuple[_Tensors, _Tensors]:
                of_state, by_inner, kept = given
                total = states[0] + of_state
                of_inner = tf.reshape(total[:, tf.newaxis] * by_inner, [-1, 3 * units])
                of_before = tf.matmul(of_inner, kernel, transpose_b=True) + total * kept
                return [of_before], [total]

            (of_start,), (of_states,) = _over_time(
                step, [upstream, by_inner, kept], [tf.zeros_like(start)], backwards=True
            )
            of_inner = tf.reshape(of_states[:, :, tf.newaxis] * by_inner, [-1, 3 * units])
            of_candidate = tf.reshape(of_states * by_candidate, [-1, units])
            of_projected = tf.concat([of_inner[:, : 2 * units], of_candidate], -1)
            return (
                tf.reshape(of_projected, tf.shape(projected)),
                _of_kernel(before, of_inner),
                tf.reduce_sum(of_inner, 0),
                of_start,
            )

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
        def step(given: _Tensors, states: _Tensors) -> tuple[_Tensors, _Tensors]:
            before, carry_before = states
            summed = given[0] + tf.matmul(before, kernel)
            let_in, forget, candidate, let_out = _lstm_gates(summed)
            carry = forget * carry_before + let_in * candidate
            after = let_out * tf.tanh(carry)
            if mask is not None:
                after = tf.where(given[1], after, before)
                carry = tf.where(given[1], carry, carry_before)
            return [after, carry], [after, carry, summed]

        given = [projected] if mask is None else [projected, mask]
        (_, last_carry), (states, carries, sums) = _over_time(step, given, [start, start_carry])

        def gradient(upstream: tf.Tensor, of_last_carry: tf.Tensor) -> _Tensors:
            before, carry_before = _earlier(start, states), _earlier(start_carry, carries)
            by_sum, *others = _lstm_derivatives(sums, carries, carry_before, mask)

            def of_sums(of_carry: tf.Tensor, total: tf.Tensor, by_sum: tf.Tensor) -> tf.Tensor:
                """Three of the four gates act on the carry, and one on the state."""
                both = [of_carry, of_carry, of_carry, total]
                return tf.reshape(tf.stack(both, -2) * by_sum, [-1, 4 * units])

            def step(given: _Tensors, states: _Tensors) -> tuple[_Tensors, _Tensors]:
                of_state, by_sum, by_carry, forget, *kept = given
                total = states[0] + of_state
                of_carry = states[1] + total * by_carry
                of_before = tf.matmul(of_sums(of_carry, total, by_sum), kernel, transpose_b=True)
                if kept:
                    of_before += total * kept[0]
                return [of_before, of_carry * forget], [total, of_carry]

            given = [upstream, by_sum, *others]
            (of_start, of_start_carry), (of_states, of_carries) = _over_time(
                step, given, [tf.zeros_like(start), of_last_carry], backwards=True
            )
            of_sum = of_sums(of_carries, of_states, by_sum)
            of_projected = tf.reshape(of_sum, tf.shape(projected))
            return of_projected, _of_kernel(before, of_sum), of_start, of_start_carry

        return (states, last_carry), gradient

    return tf.custom_gradient(compute)(projected, kernel, start, start_carry)


def _lstm_gates(summed: tf.Tensor) -> _Tensors:
    let_in, forget, candidate, let_out = tf.split(summed, 4, -1)
    return tf.sigmoid(let_in), tf.sigmoid(forget), tf.tanh(candidate), tf.sigmoid(let_out)


def _lstm_derivatives(
    sums: tf.Tensor, carries: tf.Tensor, carry_before: tf.Tensor, mask: tf.Tensor | None
) -> _Tensors:
    """The derivatives by the sums and by the carry, what is not forgotten, and what a mask keeps.

    Over all time steps at once. Without a mask the last one is left out.
    """
    let_in, forget, candidate, let_out = _lstm_gates(sums)
    carry = tf.tanh(carries)
    by_let_out = carry * let_out * (1 - let_out)
    by_carry = let_out * (1 - tf.square(carry))
    by_let_in = candidate * let_in * (1 - let_in)
    by_forget = carry_before * forget * (1 - forget)
    by_candidate = let_in * (1 - tf.square(candidate))
    by_sum = [by_let_in, by_forget, by_candidate, by_let_out]
    kept = []
    if mask is not None:
        inside = tf.cast(mask, sums.dtype)
        by_sum = [inside * by for by in by_sum]
        by_carry = inside * by_carry
        forget = tf.where(mask, forget, tf.ones_like(forget))
        kept = [1 - inside]
    return [tf.stack(by_sum, 2), by_carry, forget, *kept]


def _over_time(
    step: _Step, given: _Tensors, start: _Tensors, *, backwards: bool = False
) -> tuple[_Tensors, _Tensors]:
    """Calls `step` for each time step. Returns the last states, and the records of all steps."""
    num_steps = given[0].shape[0] or tf.shape(given[0])[0]

    def body(
        count: tf.Tensor, states: _Tensors, records: list[tf.TensorArray]
    ) -> tuple[tf.Tensor, _Tensors, list[tf.TensorArray]]:
        time = num_steps - 1 - count if backwards else count
        states, record = step([tf.gather(values, time) for values in given], states)
        records = [each.write(time, value) for each, value in zip(records, record, strict=True)]
        return count + 1, states, records

    # One step is traced to learn what it records. It is not computed.
    _, like = step([values[0] for values in given], start)
    records = [tf.TensorArray(t.dtype, num_steps, element_shape=t.shape) for t in like]
    _, states, records = tf.while_loop(
        lambda count, *_: count < num_steps,
        body,
        (tf.constant(0), list(start), records),
        maximum_iterations=num_steps,
    )
    return states, [each.stack() for each in records]


def _earlier(start: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
    return tf.concat([start[tf.newaxis], states[:-1]], 0)


def _of_kernel(before: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
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
