"""The model contract: a model names the fields it reads and how it is compiled."""

from __future__ import annotations

from typing import Any, Self

import keras

from kerasdist.errors import KerasdistError


class Model(keras.Model):
    """A Keras model that names the fields of an example it reads.

    Attributes:
        features: The field, or several fields in order, that `call` receives.
        targets: The field, or several fields in order, that the loss compares the outputs with.
        sample_weight: The field that holds a weight per example, or None.

    Example:
        >>> import keras, kerasdist
        >>> class Line(kerasdist.Model):
        ...     features = "x"
        ...     targets = "y"
        ...
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = keras.layers.Dense(1)
        ...
        ...     def call(self, x, training=False):
        ...         return self.dense(x)
        ...
        ...     def defaults(self):
        ...         return dict(optimizer="sgd", loss="mse")
        >>> data = {"x": [[0.0], [1.0]], "y": [[1.0], [3.0]]}
        >>> history = kerasdist.fit(Line(), data, batch_size=2, epochs=3, progress=False)
        >>> len(history.history["loss"])
        3
    """

    features: str | tuple[str, ...] | None = None
    targets: str | tuple[str, ...] | None = None
    sample_weight: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # `keras.Model.__new__` drops the arguments. Then `get_config`, and so a saved model, has
        # only the constructor's defaults (Keras 3.15.1).
        return keras.layers.Layer.__new__(cls, *args, **kwargs)

    def defaults(self) -> dict[str, Any]:
        """The arguments for `compile`, used if the model is not compiled yet."""
        return {}


def ensure_compiled(model: keras.Model) -> None:
    """Compiles a model with its `defaults` if it is not compiled yet, or says what is missing."""
    name = type(model).__name__
    if not model.compiled:
        defaults = model.defaults() if isinstance(model, Model) else {}
        if not defaults:
            raise KerasdistError(
                f"The model {name!r} is not compiled. Expected a loss and an optimizer. Call "
                "`model.compile(optimizer=..., loss=...)` first, or return them from `defaults()` "
                "of a `kerasdist.Model`."
            )
        model.compile(**defaults)
    has_own_step = type(model).train_step is not keras.Model.train_step
    if model.optimizer is None and not has_own_step:
        raise KerasdistError(
            f"The model {name!r} was compiled without an optimizer, but training needs one. Call "
            "`model.compile(optimizer=..., loss=...)`, for example with `optimizer='adam'`."
        )
