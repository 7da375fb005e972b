"""What Keras users type works, or gets an answer that names the fix."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.data.streams import open_stream
from kerasdist.errors import UnknownArgumentError

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
LABELS = np.arange(24) % 3
ONE_HOT = np.eye(3, dtype="float32")[LABELS]


def make_model(loss="sparse_categorical_crossentropy", **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax", **options)])
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("epoch", "Did you mean 'epochs'?"),
        ("nb_epoch", "Did you mean 'epochs'?"),
        ("num_epochs", "Did you mean 'epochs'?"),
        ("batchsize", "Did you mean 'batch_size'?"),
        ("bs", "Did you mean 'batch_size'?"),
        ("validation", "Did you mean 'validation_data'?"),
        ("val_data", "Did you mean 'validation_data'?"),
        ("validation_spilt", "Did you mean 'validation_split'?"),
        ("sample_weights", "Did you mean 'sample_weight'?"),
        ("class_weights", "Did you mean 'class_weight'?"),
        ("callback", "Did you mean 'callbacks'?"),
        ("gpus", "Did you mean 'devices'?"),
        ("labels", "Did you mean 'y'?"),
        ("dataset", "Did you mean 'x'?"),
        ("workers", "Keras 3 removed it from `fit`"),
        ("use_multiprocessing", "`keras.utils.PyDataset`"),
        ("max_queue_size", "`super().__init__(workers=..."),
        ("optimizer", "Give it to `model.compile`"),
        ("lr", "Give it to `model.compile`"),
        ("zzzzzz", "Expected one of model, x, y, batch_size"),
    ],
)
def test_an_unknown_argument_gets_what_was_meant(name, fix):
    with pytest.raises(UnknownArgumentError) as caught:
        kerasdist.fit(make_model(), X, LABELS, **{name: 3})
    assert f"`kerasdist.fit` has no argument `{name}`." in str(caught.value)
    assert fix in str(caught.value)
    assert isinstance(caught.value, (TypeError, KerasdistError))


def test_evaluate_and_predict_answer_too():
    with pytest.raises(UnknownArgumentError, match=r"evaluate.*Did you mean 'batch_size'"):
        kerasdist.evaluate(make_model(), X, LABELS, batchsize=3)
    with pytest.raises(UnknownArgumentError, match=r"kerasdist.predict` has no argument `y`"):
        kerasdist.predict(make_model(), X, y=LABELS)


def test_calls_that_do_not_fit_the_parameters():
    with pytest.raises(UnknownArgumentError, match="without `model`"):
        kerasdist.fit(x=X, y=LABELS)
    with pytest.raises(
        UnknownArgumentError, match=r"18 arguments by position.* Expected at most 17"
    ):
        kerasdist.fit(make_model(), *range(17))
    with pytest.raises(UnknownArgumentError, match="`batch_size` twice"):
        kerasdist.predict(make_model(), X, 3, batch_size=3)


def test_the_signature_is_that_of_keras_and_then_our_own():
    for name in ("fit", "evaluate", "predict"):
        own = list(inspect.signature(getattr(kerasdist, name)).parameters.values())
        keras_own = list(inspect.signature(getattr(keras.Model, name)).parameters.values())[1:]
        keras_own = [p for p in keras_own if p.kind is not p.VAR_KEYWORD]
        for mine, theirs in zip(own[1:], keras_own, strict=False):
            assert mine.name == theirs.name
            if theirs.default is not theirs.empty and mine.name != "return_dict":
                assert mine.default == theirs.default
        assert own[len(keras_own) + 1].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("function", ["fit", "evaluate", "predict"])
def test_the_model_comes_first(function):
    with pytest.raises(KerasdistError, match=rf"ndarray.*kerasdist.{function}\(model, x\)"):
        getattr(kerasdist, function)(X, LABELS)


@pytest.mark.parametrize("function", ["fit", "evaluate", "predict"])
def test_data_is_needed_once(function):
    call = getattr(kerasdist, function)
    with pytest.raises(KerasdistError, match="Received no data"):
        call(make_model())
    with pytest.raises(KerasdistError, match="both `x` and `data`"):
        call(make_model(), X, data=X)
    with pytest.raises(KerasdistError, match=r"`x='images/train'`, a path.*Read the files first"):
        call(make_model(), "images/train")
    with pytest.raises(KerasdistError, match=r"Received `data='images', a path|`data='images'`"):
        call(make_model(), data="images")


def test_a_path_is_not_data(tmp_path):
    picture = tmp_path / "a.png"
    picture.touch()
    for value, named in (
        (str(tmp_path), rf"`x='{tmp_path}'`, a folder"),
        (picture, rf"`x='{picture}'`, a path"),
        ([str(picture), str(picture)], rf"`x`, a list of paths that begins with '{picture}'"),
        ([picture], "`x`, a list of paths"),
    ):
        with pytest.raises(KerasdistError, match=f"Received {named}.*Read the files first"):
            kerasdist.fit(make_model(), value)
    with pytest.raises(KerasdistError, match=r"`validation_data='val.csv'`, a path"):
        kerasdist.fit(make_model(), X, LABELS, validation_data="val.csv")
    with pytest.raises(KerasdistError, match=r"`y='labels.csv'`, a path"):
        kerasdist.fit(make_model(), X, "labels.csv")


def test_targets_are_arrays():
    with pytest.raises(KerasdistError, match="`y` of type _TensorSliceDataset"):
        kerasdist.fit(make_model(), X, tf.data.Dataset.from_tensor_slices(LABELS))
    with pytest.raises(KerasdistError, match="`sample_weight` and no `y`"):
        kerasdist.fit(make_model(), X, sample_weight=np.ones(24))


@pytest.mark.parametrize(
    ("loss", "y", "fix"),
    [
        ("sparse_categorical_crossentropy", ONE_HOT, "keras.losses.CategoricalCrossentropy"),
        (keras.losses.SparseCategoricalCrossentropy(), ONE_HOT, "np.argmax"),
        ("categorical_crossentropy", LABELS, "keras.losses.SparseCategoricalCrossentropy"),
        (keras.losses.categorical_crossentropy, LABELS[:, None], "keras.utils.to_categorical"),
    ],
)
def test_labels_of_the_other_kind_name_the_other_loss(loss, y, fix):
    for call in (kerasdist.fit, kerasdist.evaluate):
        with pytest.raises(KerasdistError) as caught:
            call(make_model(loss), X, y, verbose=0)
        assert fix in str(caught.value)


def test_a_model_must_be_compiled():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(KerasdistError, match=r"not compiled.*Call `model.compile"):
        kerasdist.fit(model, X, LABELS)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"initial_epoch": -1}, r"initial_epoch=-1.*at least 0"),
        ({"validation_freq": 0}, "validation_freq=0"),
        ({"validation_freq": "often"}, "validation_freq='often'"),
        ({"validation_batch_size": 0}, "validation_batch_size=0"),
        ({"validation_split": "20%"}, "validation_split='20%'"),
        ({"shuffle": "yes"}, "shuffle='yes'"),
    ],
)
def test_values_out_of_range_are_refused(options, named):
    given = {"validation_data": (X, LABELS)} if "validation_split" not in options else {}
    with pytest.raises(KerasdistError, match=named):
        kerasdist.fit(make_model(), X, LABELS, **given, **options)


def test_a_pandas_series_is_a_column_as_in_keras():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0].astype("float64"), "b": LABELS, "c": X[:, 1] > 0})
    series = pandas.Series(X[:, 0])
    seen = []

    class Shapes(keras.layers.Layer):
        def call(self, x):
            seen.append((tuple(x.shape[1:]), x.dtype))
            return x

    for x in (frame, series):
        model = keras.Sequential([Shapes(), keras.layers.Dense(1, kernel_initializer="ones")])
        expected = model.predict(x, verbose=0)
        keras_saw, seen[:] = seen[-1], []
        np.testing.assert_allclose(kerasdist.predict(model, x), expected, atol=1e-6)
        assert seen[-1] == keras_saw
    stream = open_stream(({"x": series}, series, series))
    assert [array.shape for array in tf.nest.flatten(stream.arrays)] == [(24, 1)] * 3


def test_arrays_come_in_every_form_that_people_have():
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    names = ["a", "b", "c", "d"]
    forms = {
        "numpy": (X, LABELS),
        "lists": (X.tolist(), LABELS.tolist()),
        "tuples": ([tuple(row) for row in X.tolist()], list(LABELS)),
        "tensors": (tf.constant(X), tf.constant(LABELS)),
        "pandas": (pandas.DataFrame(X, columns=names), pandas.Series(LABELS)),
        "frames": (pandas.DataFrame(X, columns=names), pandas.DataFrame({"label": LABELS})),
        "torch": (torch.from_numpy(X), torch.from_numpy(LABELS)),
        "keras": (keras.ops.convert_to_tensor(X), keras.Variable(LABELS, trainable=False)),
    }
    expected = make_model(kernel_initializer="ones")
    expected.fit(X, LABELS, shuffle=False, verbose=0)
    for name, (x, y) in forms.items():
        model = make_model(kernel_initializer="ones")
        kerasdist.fit(model, x, y, validation_split=0.0, shuffle=False, verbose=False)
        for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(own, other, atol=1e-6, err_msg=name)
