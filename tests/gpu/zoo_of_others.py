"""The rest of the audit's zoo: every optimizer of Keras, and models of `keras.applications`."""

import keras

from tests.gpu.zoo import MODELS, Case, classifier, integers, normal, uniform
from tests.gpu.zoo_of_tasks import TASKS

L, optimizers = keras.layers, keras.optimizers
# The smallest side of an image that a model takes. Not ConvNeXt: Keras compiles its grouped
# convolutions with XLA, which the fake GPUs do not have.
SIDES = {
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "MobileNetV3Large": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "DenseNet121": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "NASNetMobile": 32,
    "Xception": 71,
    "InceptionV3": 75,
}
# More than 30 s for each policy. The audit takes them only if asked to.
SLOW = (
    *("MobileNetV3Large", "EfficientNetB0", "EfficientNetV2B0"),
    *("DenseNet121", "NASNetMobile", "Xception", "InceptionV3"),
)
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optimizers.RMSprop(momentum=0.1, centered=True),
    "adam_amsgrad": lambda: optimizers.Adam(amsgrad=True, global_clipnorm=1.0),
    "adamw_schedule": lambda: optimizers.AdamW(
        optimizers.schedules.CosineDecay(0.01, 100, warmup_steps=5)
    ),
    "adagrad": lambda: optimizers.Adagrad(clipvalue=0.5),
    "adadelta": lambda: optimizers.Adadelta(weight_decay=0.01),
    "adamax": lambda: optimizers.Adamax(
        optimizers.schedules.PiecewiseConstantDecay([5, 9], [0.1, 0.01, 0.001])
    ),
    "nadam": lambda: optimizers.Nadam(clipnorm=1.0),
    "ftrl": lambda: optimizers.Ftrl(l1_regularization_strength=0.01),
    "lion": lambda: optimizers.Lion(),
    "adafactor": lambda: optimizers.Adafactor(),
    "lamb": lambda: optimizers.Lamb(),
    "muon": lambda: optimizers.Muon(),
    "keras_ema": lambda: optimizers.Adam(use_ema=True),
}


def _application(name, side):
    def build():
        make = getattr(keras.applications, name)
        model = make(
            weights=None, input_shape=(side, side, 3), classes=5, classifier_activation=None
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        return model

    return Case(build, (uniform(side, side, 3) * 255, integers(5)))


def _with_optimizer(make):
    """A state that is updated in place, since it is not small."""
    return classifier(lambda: [L.Dense(300), L.Dense(20)], normal(300), optimizer=make)


OTHERS = {
    f"optimizer_{name}": lambda make=make: _with_optimizer(make)
    for name, make in OPTIMIZERS.items()
}
OTHERS |= {name: lambda n=name, s=side: _application(n, s) for name, side in SIDES.items()}


def _deterministic():
    layers = lambda: [L.Dense(16), L.Dropout(0.2)]  # noqa: E731
    return classifier(layers, normal(8), deterministic=True, shards=4)


# Deterministic operations cannot be switched off again, so that one is the last.
ALL = MODELS | TASKS | OTHERS | {"mlp_deterministic": _deterministic}
