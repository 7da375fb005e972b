"""`layer_rates`: Keras's optimizers with a factor of the learning rate for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.models.optimizers import chosen_weights

# The path and the factor of each variable, in the order in which the optimizer has them.
Saved = Sequence[Sequence[Any]]

_KERAS = (
    *("SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor"),
    *("Nadam", "Ftrl", "Lion", "Lamb", "Muon"),
)
_CHOSEN = ("SGD", "Adam", "AdamW", "RMSprop", "Lion", "Muon", "KernelMuon")


class _Rated(pure.FactoredDecay):
    """Multiplies the learning rate of each variable by a factor, for its update and its decay."""

    def __init__(self, *args: Any, layer_rates: Saved = (), **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._saved = [(str(path), float(factor)) for path, factor in layer_rates]
        self._factors: list[float] = []
        self._find = self._saved_factors

    def choose(self, rates: Mapping[keras.layers.Layer, float]) -> None:
        """Takes the factors of layers, once they have weights."""
        self._find = lambda variables: _factors(rates, variables)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        self._factors = self._find(variables)
        self._saved = [(v.path, f) for v, f in zip(variables, self._factors, strict=True)]
        super().build(variables)

    def factor_of(self, variable: keras.Variable) -> float:
        return self._factors[self._get_variable_index(variable)]

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        factor = self.factor_of(variable)
        rate = learning_rate if factor == 1 else learning_rate * factor
        super().update_step(gradient, variable, rate)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"layer_rates": [list(pair) for pair in self._saved]}

    def _saved_factors(self, variables: Sequence[keras.Variable]) -> list[float]:
        """The factors of a loaded optimizer: in the order in which they were saved."""
        paths = [v.path for v in variables]
        # A loaded model lacks the outer parts of a path: "one/kernel" was "backbone/one/kernel".
        if [_end(path) for path in paths] != [_end(path) for path, _ in self._saved]:
            raise KerasdistError(
                "A saved optimizer has factors of the learning rate for other weights than "
                f"{', '.join(paths[:10])}. Expected the weights that it was saved with. Call "
                "`kerasdist.layer_rates` again and compile the model with it."
            )
        return [factor for _, factor in self._saved]


def _end(path: str) -> list[str]:
    return path.split("/")[-2:]


def _rated(kind: type[keras.optimizers.Optimizer], prefix: str) -> Any:
    name = f"{prefix}{kind.__name__}"
    made = type(
        name, (_Rated, kind), {"__module__": __name__, "__doc__": f"{name}, saved by name."}
    )
    return keras.saving.register_keras_serializable(package="kerasdist")(made)


_KINDS: dict[Any, Any] = {
    **{k: _rated(k, "Rated") for k in (getattr(keras.optimizers, name) for name in _KERAS)},
    **{k: _rated(k, "RatedChosen") for k in (getattr(chosen_weights, name) for name in _CHOSEN)},
}


def layer_rates(
    optimizer: str | keras.optimizers.Optimizer, rates: Mapping[keras.layers.Layer, float]
) -> keras.optimizers.Optimizer:
    """Returns an optimizer with a factor of the learning rate for each layer.

    The weights of a layer train exactly as with a separate optimizer of that learning rate. Weight
    decay is multiplied, too. The rate that callbacks and schedules change, and that logs show, is
    that of the layers without a factor. Clipping by a global norm still sees all gradients.

    Args:
        optimizer: An optimizer of Keras or by `kerasdist.optimizer`, or its name.
        rates: The factor of each layer, also for all layers inside it. An inner layer's own factor
            wins over that of the layer around it.

    Returns:
        An optimizer to compile a model with, for `kerasdist.fit` and for Keras's own `fit`. It is
        saved and loaded with its factors (after `import kerasdist.optimizers`).

    Raises:
        KerasdistError: If the optimizer is not one of these or has been used already, or a factor
            is not a number of at least 0. When the model is trained, if it does not have a layer.

    Example:
        >>> import keras, kerasdist
        >>> backbone = keras.layers.Dense(4, name="backbone")
        >>> model = keras.Sequential([keras.Input((3,)), backbone, keras.layers.Dense(2)])
        >>> optimizer = kerasdist.layer_rates(keras.optimizers.AdamW(1e-3), {backbone: 0.1})
        >>> model.compile(optimizer, "mse")
    """
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    _check(optimizer, rates)
    made = pure.remade(optimizer, _KINDS[type(optimizer)])
    made.choose(dict(rates))
    return made


def _check(optimizer: Any, rates: Any) -> None:
    if type(optimizer) not in _KINDS:
        inner = getattr(optimizer, "inner_optimizer", None)
        hint = "Give its inner optimizer to `layer_rates`, and wrap the result. " if inner else ""
        raise KerasdistError(
            f"Received an optimizer of class {type(optimizer).__name__!r}. Expected one of "
            f"{', '.join(_KERAS)}. {hint}Choose one of them, or multiply the learning rate in the "
            "`update_step` of a class of your own."
        )
    if optimizer.built:
        raise KerasdistError(
            f"The {type(optimizer).__name__} given to `layer_rates` has trained a model already. "
            "Expected a new optimizer, because its state would be lost. Make a new one."
        )
    if not isinstance(rates, Mapping):
        raise KerasdistError(
            f"Received `rates` of type {type(rates).__name__}. Expected layers and their factors, "
            "such as {backbone: 0.1}. Give a dict."
        )
    for layer, factor in rates.items():
        if not isinstance(layer, keras.layers.Layer):
            raise KerasdistError(
                f"Received {layer!r} as a key of `rates`. Expected a layer, such as the variable "
                "`backbone` or `model.get_layer('backbone')`. Give the layer itself."
            )
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not is_number or not 0 <= factor < math.inf:
            raise KerasdistError(
                f"Received the factor {factor!r} for the layer {layer.name!r}. Expected a finite "
                "number of at least 0. Give for example 0.1."
            )


def _factors(
    rates: Mapping[keras.layers.Layer, float], variables: Sequence[keras.Variable]
) -> list[float]:
    """Each variable gets the factor of the innermost layer that has it, or 1."""
    known = {id(v) for v in variables}
    found: dict[int, float] = {}
    # A layer has more layers than one inside it. It may have the same weights.
    for layer, factor in sorted(rates.items(), key=lambda item: -len(pure.all_layers(item[0]))):
        own = {id(v) for v in layer.trainable_weights}
        if not own & known and (own or not layer.weights):
            raise KerasdistError(
                f"The layer {layer.name!r} has a factor of the learning rate, but none of its "
                "weights is trained by this optimizer. Expected a layer of the model. Check "
                "which model the layer is from."
            )
        found.update(dict.fromkeys(own, float(factor)))
    return [found.get(id(v), 1.0) for v in variables]
