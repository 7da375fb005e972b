"""What a report shows of a model's answers: selection, probabilities, sounds, a training batch."""

import base64
import doctest
import io
import json
import wave

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import KerasdistError
from kerasdist.evaluation import (
    example_values,
    examples,
    probabilities,
    regression,
    selection,
    sounds,
    training_batch,
)
from kerasdist.evaluation.selection import Highest
from kerasdist.model_files import layer_table
from kerasdist.recipes import extras
from kerasdist.runs.results.headline import headline
from tests.own_data import write_images
from tests.reports.pages import decoded


@pytest.mark.parametrize(
    "module", [probabilities, regression, sounds, layer_table], ids=lambda m: m.__name__
)
def test_examples_of_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def chosen(highest, offers):
    for position, (group, key) in enumerate(offers):
        highest.offer(group, key, position, lambda p=position: {"position": p})
    return [each["position"] for each in highest.fields()]


def test_the_best_of_each_class_come_first():
    offers = [("a", 1.0 - i / 100) for i in range(30)] + [("b", 0.5), ("c", 0.4), ("b", 0.3)]
    found = chosen(Highest(in_turn=True), offers)
    assert found == [0, 1, 2, 3, 4, 30, 31, 32]


def test_at_most_half_of_the_worst_are_of_one_class():
    offers = [("a", 9.0 - i / 100) for i in range(30)] + [("b", i / 10) for i in range(6)]
    found = chosen(Highest(in_turn=False), offers)
    assert found == [0, 1, 2, 3, 35, 34, 33, 32]


def test_a_single_class_fills_all_places():
    offers = [("a", float(i)) for i in range(30)]
    assert chosen(Highest(in_turn=False), offers) == list(
        range(29, 29 - selection.NUM_EXAMPLES, -1)
    )
    assert chosen(Highest(in_turn=True), offers) == list(range(29, 29 - selection.NUM_EXAMPLES, -1))


def test_of_equal_examples_the_earlier_one_is_kept():
    assert chosen(Highest(in_turn=True), [("a", 1.0)] * 20) == list(range(selection.NUM_EXAMPLES))


def test_precision_and_recall_by_hand():
    scores = np.array([0.9, 0.8, 0.8, 0.3, 0.2])
    found = probabilities.precision_recall(scores, np.array([1, 0, 1, 1, 0], bool))
    assert found["points"] == [[0.3333, 1.0], [0.6667, 0.6667], [1.0, 0.75], [1.0, 0.6]]
    assert found["average_precision"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert probabilities.precision_recall(scores, np.ones(5, bool)) is None
    assert probabilities.precision_recall(scores, np.zeros(5, bool)) is None
    random = np.random.default_rng(0).random(10_000)
    many = probabilities.precision_recall(random, random > 0.5)
    assert len(many["points"]) <= 200
    assert many["average_precision"] == pytest.approx(1)


def test_a_calibrated_model_has_no_error():
    random = np.random.default_rng(0)
    answered = random.uniform(0.5, 1, 100_000)
    found = probabilities.calibration(answered, random.random(100_000) < answered)
    assert found["error"] < 0.01
    sure = probabilities.calibration(np.ones(10), np.arange(10) < 6)
    assert sure["bins"][-1] == [0.9, 1.0, 0.6, 10]
    assert sure["error"] == pytest.approx(0.4)


def test_a_target_without_finite_values_has_no_numbers():
    found = regression.measured("y", np.array([np.nan]), np.array([1.0]))
    assert found == {"name": "y", "examples": 0}
    assert regression.measured("y", np.ones(3), np.ones(3) * 2)["r2"] is None


def read_wav(content):
    with wave.open(io.BytesIO(content)) as clip:
        assert (clip.getnchannels(), clip.getsampwidth()) == (1, 2)
        return clip.getframerate(), np.frombuffer(clip.readframes(clip.getnframes()), "<i2")


def test_a_sound_stays_as_it_is_if_it_is_short():
    samples = np.random.default_rng(0).integers(-30000, 30000, 4000).astype("int16")
    rate, found = read_wav(sounds.wav(samples, 8000))
    assert rate == 8000
    assert (found == samples).all()
    _, found = read_wav(sounds.wav(np.array([0.5, -1.0, 2.0, np.nan]), 8000))
    assert found.tolist() == [16384, -32767, 32767, 0]


def test_a_long_sound_is_bounded():
    rate, found = read_wav(sounds.wav(np.ones((480_000, 2), "int16"), 48_000))
    assert rate == 16_000
    assert len(found) == sounds.MOST_SECONDS * 16_000
    assert (found == 1).all()


class Sounding:
    """Stands for a recipe whose data.py has `read_sounds`."""

    config = "the config"

    def __init__(self, clips):
        self.clips = clips

    def optional(self, name):
        return {"read_sounds": lambda *_: self.clips}.get(name)


def test_examples_get_the_sounds_of_their_positions():
    clips = [(np.full(10, i, "int16"), 8000) for i in range(3)]
    evaluation = {"worst": [{"position": 5}, {"position": 1}], "best": [{"position": 0}]}
    sounds.add_to(evaluation, Sounding(clips))
    found = [each["wav"] for kind in ("worst", "best") for each in evaluation[kind]]
    values = [read_wav(base64.b64decode(wav))[1][0] for wav in found]
    assert values == [0, 1, 2]
    sounds.add_to(evaluation, None)


@pytest.mark.parametrize(
    "clips", [[], [(np.ones(3), 8000)], [np.ones(3)] * 2, [(np.ones(3), 0)] * 2]
)
def test_a_recipe_that_reads_other_sounds_is_told(clips):
    with pytest.raises(KerasdistError, match=r"`read_sounds` for 2 examples\. Expected a pair"):
        extras.read_sounds(Sounding(clips), "validation", [0, 1])


def classifier():
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Describing:
    """Stands for a recipe whose data.py describes its examples."""

    config = None

    def __init__(self, **parts):
        self.parts = parts

    def optional(self, name):
        return self.parts.get(name)


def test_the_values_of_examples_are_added():
    def describe(config, split, positions):
        assert split == "validation"
        return [{"row": position, "age": 20.5} for position in positions]

    found = {"worst": [{"position": 7}], "best": [{"position": 2}]}
    example_values.add_to(found, Describing(describe_examples=describe))
    assert found["worst"] == [{"position": 7, "values": {"row": "7", "age": "20.5"}}]
    assert found["best"][0]["values"]["row"] == "2"
    example_values.add_to(found, None)
    for wrong in ([], ["x", "y"], [{"a": 1}]):
        recipe = Describing(describe_examples=lambda *_, wrong=wrong: wrong)
        with pytest.raises(KerasdistError, match=r"`describe_examples` for 2 examples\. Expected"):
            extras.describe_examples(recipe, "validation", [0, 1])


def test_examples_of_a_folder_have_the_names_of_their_files(tmp_path):
    folder = kerasdist.ImageFolder(write_images(tmp_path / "photos", 5))
    evaluation = {"worst": [{"position": 2}], "best": [{"position": 0}]}
    example_values.add_to(evaluation, None, folder.validation)
    found = [evaluation[kind][0]["values"] for kind in ("worst", "best")]
    assert found == [{"file": folder.validation.names[i]} for i in (2, 0)]
    assert found[0]["file"].startswith("ring/")
    own = Describing(describe_examples=lambda *_: [{"row": 1}, {"row": 2}])
    example_values.add_to(evaluation, own, folder.validation)
    assert evaluation["worst"][0]["values"] == {"row": "1"}


def test_a_recipe_names_the_targets_of_its_regression():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    recipe = Describing(target_names=lambda config: ("price",))
    assert examples.target_names(model, 1, recipe) == ("price",)
    assert examples.target_names(model, 2, recipe) == ("target 1", "target 2")
    assert examples.target_names(model, 1, None) == ("target",)


def test_the_training_batch_is_drawn_after_the_augmentation():
    images = np.random.default_rng(0).integers(0, 100, (50, 4, 4, 1)).astype("uint8")
    labels = np.arange(50) % 3

    def augment(batch, seed):
        return batch[0] + tf.constant(100, tf.uint8), batch[1]

    found = training_batch.pictures_of(
        classifier(), (images, labels), None, batch_size=16, shuffle=False, augment=augment
    )
    assert (found["examples"], found["is_augmented"]) == (16, True)
    assert len(found["pictures"]) == 16
    assert [each["label"] for each in found["pictures"]] == [f"{label}" for label in labels[:16]]
    for each, image in zip(found["pictures"], images, strict=False):
        assert (decoded(base64.b64decode(each["png"])) == image + 100).all()


@pytest.mark.parametrize(
    ("loss", "width", "kind"),
    [
        ("sparse_categorical_crossentropy", 2, "int64"),
        ("categorical_crossentropy", 2, "one hot"),
        ("binary_crossentropy", 1, "int64"),
        ("binary_crossentropy", 1, "float32"),
    ],
)
@pytest.mark.parametrize("batch_size", [2, 5])
def test_two_classes_have_their_names_below_the_pictures(loss, width, kind, batch_size):
    layers = [keras.layers.Flatten(), keras.layers.Dense(width, activation="sigmoid")]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    model.compile("sgd", loss)
    labels = np.array([0, 1, 1, 0, 1])
    given = np.eye(2)[labels] if kind == "one hot" else labels.astype(kind)
    data = (np.ones((5, 4, 4, 1), "uint8"), given)
    named = Describing(CLASS_NAMES=("cat", "dog"))
    found = training_batch.pictures_of(model, data, named, batch_size=batch_size, shuffle=False)
    expected = ["cat", "dog", "dog", "cat", "dog"][:batch_size]
    assert [each["label"] for each in found["pictures"]] == expected


def test_a_batch_that_cannot_be_drawn_has_no_pictures():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = (np.ones((8, 5), "float32"), np.ones((8, 1), "float32"))
    assert training_batch.pictures_of(model, data, None) is None
    once = ((image, 1) for image in np.ones((2, 8, 4, 4, 1), "float32"))
    assert training_batch.pictures_of(classifier(), once, None) is None


def test_layers_have_shapes_where_they_are_known():
    class Unknown(keras.layers.Layer):
        def call(self, x):
            return x

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = keras.layers.Conv2D(2, 3), keras.layers.Flatten()
            self.c = Unknown()

        def call(self, x):
            return self.c(self.b(self.a(x)))

    model = Net()
    model(np.zeros((1, 5, 5, 1), "float32"))
    found = layer_table.summary(model)
    rows = [(each["class"], each["output"], each["parameters"]) for each in found["layers"]]
    assert rows[0] == ("Conv2D", [3, 3, 2], 20)
    assert rows[2] == ("Unknown", None, 0)
    frozen = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, trainable=False)])
    assert layer_table.summary(frozen)["trainable"] == 0
    two = keras.Input((4,))
    split = keras.Model(two, keras.layers.Lambda(lambda x: [x, x])(two))
    assert json.dumps(layer_table.summary(split))  # Several outputs have no single shape.


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["loss", "mae", "acc", "val_loss", "val_mae", "val_acc"], "val_acc"),
        (["loss", "top_5_accuracy", "sparse_categorical_accuracy"], "sparse_categorical_accuracy"),
        (["loss", "top_5_accuracy"], "top_5_accuracy"),
        (["loss", "val_loss", "val_precision", "val_auc"], "val_auc"),
        (["loss", "a_loss", "b_loss", "val_loss", "val_a_loss"], "val_loss"),
        (["loss", "a_loss", "val_a_loss", "val_b_mae"], "val_b_mae"),
        (["a_loss"], "a_loss"),
        (["val_loss", "val_speed_mae", "val_acceleration_mae", "val_layer2_mae"], "val_speed_mae"),
        (["val_loss", "val_mae", "val_acc_1"], "val_acc_1"),
        (["val_loss", "val_mae", "val_binary_accuracy"], "val_binary_accuracy"),
        (["val_loss", "val_mae", "val_prauc_2"], "val_prauc_2"),
    ],
)
def test_the_headline_is_what_people_look_at(names, expected):
    assert headline(names) == expected
