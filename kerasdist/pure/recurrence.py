"""GRU and LSTM with their inputs multiplied at once. The maths is Keras's, rounding apart.

Keras multiplies the inputs of each moment by the kernel within the loop over time. None of that
waits for the moment before, so here it is one product before the loop, and one for its gradient.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend


def can_project(layer: keras.layers.RNN) -> bool:
    """Whether `loop` computes what the layer's own `inner_loop` does."""
    cell = layer.cell
    if (type(layer), type(cell)) not in _KINDS or cell.implementation != 2 or layer.unroll:
        return False
    has_dropout = cell.dropout or cell.recurrent_dropout
    return cell.compute_dtype in ("float32", "float64") and not has_dropout


def loop(layer: keras.layers.RNN, sequences, initial_state, mask) -> Any:
    """As `inner_loop` of a Keras layer: the last output, all outputs, and the last states."""
    cell = layer.cell
    step, input_bias = _KINDS[type(layer), type(cell)]
    projected = tf.tensordot(sequences, tf.convert_to_tensor(cell.kernel), 1)
    if cell.use_bias:
        projected += input_bias(cell)
    return keras_backend.rnn(
        lambda inputs, states: step(cell, inputs, states),
        projected,
        list(tf.nest.flatten(initial_state)),
        go_backwards=layer.go_backwards,
        mask=mask,
        input_length=sequences.shape[1],
        zero_output_for_mask=layer.zero_output_for_mask,
        return_all_outputs=layer.return_sequences,
    )


def _gru_input_bias(cell) -> tf.Tensor:
    bias = tf.convert_to_tensor(cell.bias)
    return bias[0] if cell.reset_after else bias


def _gru_step(cell, projected, states):
    (before,) = states
    kernel = tf.convert_to_tensor(cell.recurrent_kernel)
    for_update, for_reset, for_candidate = tf.split(projected, 3, -1)
    if cell.reset_after:
        inner = tf.matmul(before, kernel)
        if cell.use_bias:
            inner += tf.convert_to_tensor(cell.bias)[1]
        inner_update, inner_reset, inner_candidate = tf.split(inner, 3, -1)
    else:
        gates, candidate_kernel = tf.split(kernel, [2 * cell.units, cell.units], -1)
        inner_update, inner_reset = tf.split(tf.matmul(before, gates), 2, -1)
    update = cell.recurrent_activation(for_update + inner_update)
    reset = cell.recurrent_activation(for_reset + inner_reset)
    if cell.reset_after:
        inner_candidate = reset * inner_candidate
    else:
        inner_candidate = tf.matmul(reset * before, candidate_kernel)
    candidate = cell.activation(for_candidate + inner_candidate)
    after = update * before + (1 - update) * candidate
    return after, [after]


def _lstm_input_bias(cell) -> tf.Tensor:
    return tf.convert_to_tensor(cell.bias)


def _lstm_step(cell, projected, states):
    before, carry = states
    inner = tf.matmul(before, tf.convert_to_tensor(cell.recurrent_kernel))
    let_in, forget, candidate, let_out = tf.split(projected + inner, 4, -1)
    forgetting = cell.recurrent_activation(forget) * carry
    carry = forgetting + cell.recurrent_activation(let_in) * cell.activation(candidate)
    after = cell.recurrent_activation(let_out) * cell.activation(carry)
    return after, [after, carry]


_KINDS: dict[tuple[type, type], tuple[Any, Any]] = {
    (keras.layers.GRU, keras.layers.GRUCell): (_gru_step, _gru_input_bias),
    (keras.layers.LSTM, keras.layers.LSTMCell): (_lstm_step, _lstm_input_bias),
}
