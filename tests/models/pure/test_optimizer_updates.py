"""Every optimizer of Keras as a pure function, against its own `apply`."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models import pure
from kerasdist.versions import number

SCHEDULE = keras.optimizers.schedules.CosineDecay(0.05, 10)


def _all_optimizers():
    for name, kind in inspect.getmembers(keras.optimizers, inspect.isclass):
        if issubclass(kind, keras.optimizers.Optimizer) and kind is not keras.optimizers.Optimizer:
            yield name, kind


def _multi():
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.1), {".*kernel": keras.optimizers.Adam(0.01)}
        )
    )


SPECIAL = {
    "MultiOptimizer": _multi,
    "LossScaleOptimizer": None,  # its inner optimizer is used; the scale is the engine's own
    **dict.fromkeys(pure.REFUSED_OPTIMIZERS),
}
PLAIN = {
    name: SPECIAL.get(name, kind)
    for name, kind in _all_optimizers()
    if SPECIAL.get(name, kind) is not None
}
VARIANTS = {
    **PLAIN,
    "SGD momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop centered": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "Adam schedule": lambda: keras.optimizers.Adam(SCHEDULE),
    "Adam clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.3),
    "Adam clipvalue": lambda: keras.optimizers.Adam(0.01, clipvalue=0.1),
    "Adam global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "Adam use_ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "AdamW excluding": lambda: _excluding(keras.optimizers.AdamW(0.01, weight_decay=0.1)),
    "SGD weight_decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.01),
    "SGD loss_scale_factor": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
}


def _excluding(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def _variables():
    random = np.random.default_rng(3)
    shapes = {"kernel": (6, 4), "bias": (4,), "conv_kernel": (3, 3, 2, 4), "unused": (2,)}
    variables = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        for name, shape in shapes.items()
    ]
    variables[0].constraint = keras.constraints.MaxNorm(1.5)
    return variables


def _gradients(step):
    random = np.random.default_rng(step)
    return [
        tf.constant(random.normal(size=v.shape).astype("float32")) if v.name != "unused" else None
        for v in _variables()
    ]


@pytest.fixture
def graphs_as_written():
    """Without Grappler, which folds constants differently around variables and around tensors."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def _parts(variables, optimizer):
    return pure.Parts(tuple(variables), (), tuple(optimizer.variables), (), ())


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.usefixtures("graphs_as_written")
@pytest.mark.parametrize("name", VARIANTS)
def test_ten_functional_updates_are_the_bits_of_apply(name):
    """In a compiled function, as training runs them."""
    theirs, ours = _variables(), _variables()
    reference, optimizer = VARIANTS[name](), VARIANTS[name]()
    reference.build(theirs)
    optimizer.build(ours)
    scale = optimizer.loss_scale_factor or 1.0  # the engine unscales before; apply does it itself

    @tf.function(autograph=False)
    def apply(gradients):
        reference.apply([None if g is None else g * scale for g in gradients], theirs)

    @tf.function(autograph=False)
    def functional(gradients, trainable, values):
        with pure.patched():
            return pure.apply_gradients(
                optimizer, _parts(ours, optimizer), gradients, trainable, values
            )

    trainable = [tf.constant(v.numpy()) for v in ours]
    values = [tf.constant(v.numpy()) for v in optimizer.variables]
    for step in range(10):
        apply(_gradients(step))
        trainable, values = functional(_gradients(step), trainable, values)
    for variable, value in zip(theirs, trainable, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value.numpy(), err_msg=variable.name)
    for variable, value in zip(reference.variables, values, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value.numpy(), err_msg=variable.name)
    before = _variables()[3].numpy()
    np.testing.assert_array_equal(trainable[3].numpy(), before)  # no gradient: unchanged


def test_every_optimizer_of_keras_is_tested():
    """A new one in Keras appears here by itself, and must pass or be named."""
    known = set(PLAIN) | {"LossScaleOptimizer"} | set(pure.REFUSED_OPTIMIZERS)
    newer = {name for name in pure.REFUSED_OPTIMIZERS if not hasattr(keras.optimizers, name)}
    assert {name for name, _ in _all_optimizers()} == known - newer
    assert not newer or number(keras.__version__) < (3, 14)
    assert len(PLAIN) >= 13


@pytest.mark.parametrize("name", pure.REFUSED_OPTIMIZERS)
def test_an_optimizer_that_differs_from_apply_is_refused_by_name(name, regression):
    if not hasattr(keras.optimizers, name):
        pytest.skip(f"this Keras has no {name}")
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(getattr(keras.optimizers, name)(0.1), "mse")
    with pytest.raises(KerasdistError, match=rf"{name}.*Use 'adamw'"):
        kerasdist.fit(model, regression, batch_size=8)
