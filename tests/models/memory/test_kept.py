"""What is kept of a model: by kind and key, until `compile`, and freed with the model."""

import copy
import gc
import pickle
import weakref

import keras
import pytest

from kerasdist.models.memory.kept import Kept, kept, remembered


class Thing:
    """Something that can be referred to weakly, and that reaches the model."""

    def __init__(self, model=None):
        self.model = model


def compiled():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_thing_is_taken_once():
    model = compiled()
    thing = Thing()
    kept(model).give("engines", "a", thing)
    assert kept(model).take("findings", "a") is None
    assert kept(model).take("engines", "a") is thing
    assert kept(model).take("engines", "a") is None


def test_the_eight_newest_are_kept():
    store = Kept()
    for number in range(9):
        store.give("engines", number, Thing())
    assert store.take("engines", 0) is None
    assert store.take("engines", 1) is not None


def test_a_new_compile_drops_everything():
    model = compiled()
    kept(model).give("engines", "a", Thing())
    model.compile("sgd", "mse")
    assert kept(model).take("engines", "a") is None


def test_things_are_freed_with_the_model():
    model = compiled()
    thing = Thing(model)
    kept(model).give("engines", "a", thing)
    reference = weakref.ref(thing)
    del thing, model
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_a_model_begin_with_nothing(again):
    model = compiled()
    kept(model).give("engines", "a", lambda: "cannot be pickled")
    other = again(model)
    assert kept(other).take("engines", "a") is None
    assert kept(model).take("engines", "a") is not None


def test_make_is_called_again_only_if_the_model_or_the_key_changed():
    model, made = compiled(), []

    def make():
        made.append(None)
        return len(made)

    assert [remembered(model, "findings", "a", make) for _ in range(3)] == [1, 1, 1]
    assert remembered(model, "findings", "b", make) == 2
    model.layers[0].trainable = False
    assert remembered(model, "findings", "a", make) == 3
