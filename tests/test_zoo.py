"""Models that nobody here wrote: `deterministic=True` gives them the same bits on 1, 2, 4 devices.

`python -m pytest -m slow tests/test_zoo.py`; those of KerasHub need `pip install keras-hub`.
"""

import hashlib

import keras
import numpy as np
import pytest

import kerasdist

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(0, 255, size=(11, 32, 32, 3)).astype("float32")
LABELS = RANDOM.integers(0, 10, 11)
TOKENS = RANDOM.integers(1, 50, size=(11, 12)).astype("int32")
PADDING = (np.arange(12) < RANDOM.integers(4, 13, size=(11, 1))).astype("int32")
SEGMENTS = np.zeros_like(TOKENS)


def application(name):
    def build():
        make = getattr(keras.applications, name)
        return make(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)

    return build, (IMAGES, LABELS)


def bert():
    hub = pytest.importorskip("keras_hub")

    def build():
        backbone = hub.models.BertBackbone(50, 2, 2, 16, 32, dropout=0.1, max_sequence_length=12)
        return hub.models.BertTextClassifier(backbone, num_classes=10, preprocessor=None)

    inputs = {"token_ids": TOKENS, "padding_mask": PADDING, "segment_ids": SEGMENTS}
    return build, (inputs, LABELS)


def gpt2():
    hub = pytest.importorskip("keras_hub")

    def build():
        backbone = hub.models.GPT2Backbone(50, 2, 2, 16, 32, dropout=0.1, max_sequence_length=12)
        return hub.models.GPT2CausalLM(backbone, preprocessor=None)

    return build, ({"token_ids": TOKENS, "padding_mask": PADDING}, np.roll(TOKENS, -1, axis=1))


MODELS = {
    name: lambda name=name: application(name)
    for name in (
        "EfficientNetB0",
        "MobileNetV3Small",
        "ResNet50",
        "DenseNet121",
        "ConvNeXtTiny",
    )
} | {"BERT": bert, "GPT-2": gpt2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_others_have_the_same_bits(name, precision):
    build, data = MODELS[name]()

    def compiled():
        keras.utils.set_random_seed(3)
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        return model

    def digest(devices):
        history = kerasdist.fit(
            compiled,
            data,
            validation_data=data,
            batch_size=6,
            devices=devices,
            shards=4,
            precision=precision,
            deterministic=True,
            seed=0,
            progress=False,
        )
        model = history.model
        variables = (*model.weights, *model.optimizer.variables)
        digests = [hashlib.sha256(v.numpy().tobytes()).hexdigest() for v in variables]
        return digests, history.history

    one = digest(1)
    assert digest(2) == one
    assert digest(4) == one
