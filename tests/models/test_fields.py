"""What a model reads from a batch."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.models.fields import Example, read


class Pair(kerasdist.Model):
    features = ("left", "right")
    targets = ("sum", "product")
    sample_weight = "importance"


class Single(kerasdist.Model):
    features = "image"
    targets = "label"


class Unsupervised(kerasdist.Model):
    features = "image"


class Nameless(kerasdist.Model):
    pass


FIELDS = {"product": 4, "importance": 5, "sum": 3, "left": 1, "right": 2, "comment": 6}


def refusal(function, *args, **options):
    with pytest.raises(kerasdist.KerasdistError) as caught:
        function(*args, **options)
    return str(caught.value)


def test_fields_are_read_by_name():
    assert read(Pair(), FIELDS) == Example((1, 2), (1, 2), (3, 4), 5)
    assert read(Single(), {"label": 2, "image": 1}) == Example((1,), 1, 2, None)
    assert read(Unsupervised(), {"image": 1}) == Example((1,), 1, None, None)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_bare_tuple_is_read_in_the_order_of_the_names(kind):
    assert read(Pair(), kind([1, 2, 3, 4, 5])) == Example((1, 2), (1, 2), (3, 4), 5)
    assert read(Single(), kind([1, 2])) == Example((1,), 1, 2, None)
    assert read(Unsupervised(), 1) == Example((1,), 1, None, None)


def test_other_models_follow_keras_s_convention():
    for model in (keras.Sequential(), Nameless()):
        assert read(model, (1, 2, 3)) == Example((1,), 1, 2, 3)
        assert read(model, [1, 2]) == Example((1,), 1, 2, None)
        assert read(model, 1) == Example((1,), 1, None, None)
    assert read(keras.Sequential(), ({"a": 1}, 2)) == Example(({"a": 1},), {"a": 1}, 2, None)


def test_names_may_be_set_on_the_object():
    model = Single()
    model.features, model.targets = ["first", "second"], "label"
    example = read(model, {"first": 1, "second": 2, "label": 3})
    assert example == Example((1, 2), (1, 2), 3, None)


def test_prediction_needs_features_alone():
    assert read(Pair(), {"left": 1, "right": 2}, need_targets=False) == Example(
        (1, 2), (1, 2), None, None
    )
    assert read(Single(), 1, need_targets=False) == Example((1,), 1, None, None)
    assert read(Nameless(), {"a": 1}, need_targets=False).x == {"a": 1}


@pytest.mark.parametrize(
    ("lost", "role", "meant"),
    [
        ("right", "features", "rigth"),
        ("sum", "targets", "summ"),
        ("importance", "sample_weight", "x"),
    ],
)
def test_a_missing_field_is_named_with_those_there_are(lost, role, meant):
    fields = {meant if name == lost else name: value for name, value in FIELDS.items()}
    message = refusal(read, Pair(), fields)
    assert f"the fields {sorted(fields)}" in message
    assert f"`Pair.{role}` names {lost!r}" in message
    assert (f"Did you mean {meant!r}?" in message) == (meant != "x")
    assert f"Rename the field, or change `{role}`" in message


def test_a_wrong_number_of_positions_is_refused():
    message = refusal(read, Pair(), (1, 2, 3, 4, 5, 6))
    assert "a tuple of 6 items" in message
    assert "Expected 5" in message
    assert "left, right, sum, product, importance" in message
    assert "a tuple of 1 item." in refusal(read, Pair(), 1)
    message = refusal(read, keras.Sequential(), (1, 2, 3, 4))
    assert "a tuple of 4 items" in message
    assert "`(x, y, sample_weight)`" in message


def test_positions_without_targets_name_the_one_that_is_missing():
    assert "`Pair.targets` names 'sum'" in refusal(read, Pair(), (1, 2))


def test_named_fields_need_a_model_that_names_them():
    message = refusal(read, Nameless(), {"b": 1, "a": 2})
    assert "the fields ['a', 'b'] for `Nameless`" in message
    assert "`features = 'a'`" in message


class Line(kerasdist.Model):
    features = "x"
    targets = "y"
    sample_weight = "w"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, x):
        return self.dense(x)

    def defaults(self):
        return {"optimizer": keras.optimizers.SGD(0.5), "loss": "mse"}


def test_the_same_numbers_by_name_and_by_position():
    results = []
    x, y, w = np.arange(6.0)[:, None], np.ones((6, 1)), np.linspace(0, 1, 6)
    for data in ({"w": w, "y": y, "x": x}, (x, y, w)):
        model = Line()
        kerasdist.fit(model, data, batch_size=4, seed=0, progress=False)
        results.append(model.get_weights())
    for by_name, by_position in zip(*results, strict=True):
        np.testing.assert_array_equal(by_name, by_position)


def test_fields_that_nobody_reads_do_not_reach_the_devices():
    strings = np.array(["a", "b", "c", "d"])
    data = {"x": np.ones((4, 1)), "y": np.ones((4, 1)), "w": np.ones(4), "name": strings}

    def batches():
        yield data

    for form, options in ((data, {"batch_size": 4, "devices": 2}), (batches, {})):
        history = kerasdist.fit(Line(), form, progress=False, **options)
        assert history.history["loss"] == [1.0]
