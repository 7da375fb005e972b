"""Losses by `add_loss`: which layer added which one, for each pass by itself.

Keras's layers remember the ids of their losses. Replicas are traced in turns, so one replica would
clear what another one has just added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope

from kerasdist.models.pure.replacements import Replace


class LossScope(keras.StatelessScope):
    """A StatelessScope that knows the layer of each added loss."""

    def __init__(self, mapping: list[tuple[keras.Variable, tf.Tensor]], **options: Any):
        super().__init__(mapping, collect_losses=True, **options)
        self.added: list[tuple[keras.layers.Layer, tf.Tensor]] = []

    def forget(self, layer: keras.layers.Layer) -> None:
        """Removes the losses of a layer. Keras does so when the layer is called again."""
        self.added = [(owner, loss) for owner, loss in self.added if owner is not layer]
        self.losses = [loss for _, loss in self.added]


def _scope() -> LossScope | None:
    scope = get_stateless_scope()
    return scope if isinstance(scope, LossScope) else None


def _new_add_loss(original: Callable[..., None]) -> Callable[..., None]:
    def add_loss(self: keras.layers.Layer, loss: Any) -> None:
        scope = _scope()
        if scope is None:
            original(self, loss)
            return
        count = len(scope.losses)
        original(self, loss)  # It checks the loss.
        new = scope.losses[count:]
        self._loss_ids.difference_update(id(each) for each in new)
        scope.added += [(self, each) for each in new]

    return add_loss


def _new_get_own_losses(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_own_losses(self: keras.layers.Layer) -> Any:
        scope = _scope()
        if scope is None:
            return original(self)
        return [loss for owner, loss in scope.added if owner is self]

    return get_own_losses


def _new_clear_losses(original: Callable[..., None]) -> Callable[..., None]:
    def clear_losses(self: keras.layers.Layer) -> None:
        scope = _scope()
        if scope is None:
            original(self)
            return
        for layer in self._flatten_layers():
            scope.forget(layer)

    return clear_losses


def apply(replace: Replace) -> None:
    """Replaces Keras's methods. Outside of a `LossScope` they do the same."""
    layer = keras.layers.Layer
    replace(layer, "add_loss", _new_add_loss(layer.add_loss))
    replace(layer, "_get_own_losses", _new_get_own_losses(layer._get_own_losses))
    replace(layer, "_clear_losses", _new_clear_losses(layer._clear_losses))
