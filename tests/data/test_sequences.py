"""`kerasdist.Sequences`: padding, grouping by length, order, exactness, errors."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.data.forms.sequences import group_by_length
from kerasdist.data.streams import open_stream

NUM, SIZE = 43, 8
LENGTHS = np.random.default_rng(1).integers(1, 30, NUM)


def examples(dtype="float32"):
    """Clips whose values tell which example and which step they are."""
    return [
        np.stack([np.arange(1, n + 1), np.full(n, i)], axis=1).astype(dtype)
        for i, n in enumerate(LENGTHS)
    ]


def data(**options):
    fields = {"frames": examples(), "label": np.arange(NUM) % 3, "index": np.arange(NUM)}
    return kerasdist.Sequences(fields, **options)


def batches(epoch=0, start=0, *, shuffle=True, seed=5, **options):
    stream = open_stream(data(**options), batch_size=SIZE, shuffle=shuffle, seed=seed)
    return list(stream.open(epoch, start).as_numpy_iterator())


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_is_filled_up_to_its_longest(shuffle):
    clips = examples()
    for batch in batches(shuffle=shuffle):
        lengths = LENGTHS[batch["index"]]
        np.testing.assert_array_equal(batch["length"], lengths)
        np.testing.assert_array_equal(batch["label"], batch["index"] % 3)
        assert batch["frames"].shape == (len(lengths), lengths.max(), 2)
        for row, i, n in zip(batch["frames"], batch["index"], lengths, strict=True):
            np.testing.assert_array_equal(row[:n], clips[i])
            assert not row[n:].any()


def test_each_example_comes_once_and_the_order_is_a_function_of_seed_and_epoch():
    order = [i for batch in batches() for i in batch["index"]]
    assert sorted(order) == list(range(NUM))
    assert order == [i for batch in batches() for i in batch["index"]]
    for other in (batches(epoch=1), batches(seed=6)):
        assert order != [i for batch in other for i in batch["index"]]
    assert order[3 * SIZE :] == [i for batch in batches(start=3) for i in batch["index"]]
    stream = open_stream(data(), batch_size=SIZE, shuffle=True, seed=5)
    assert order == [i for number in range(6) for i in stream.indices(0, number)]
    plain = [i for batch in batches(shuffle=False) for i in batch["index"]]
    assert plain == list(range(NUM))


def test_grouping_saves_padding_and_does_not_sort_the_epoch():
    def padded(found):
        return sum(batch["frames"].shape[0] * batch["frames"].shape[1] for batch in found)

    grouped, apart = batches(), batches(group=1)
    assert padded(grouped) < 0.8 * padded(apart)
    longest = [batch["frames"].shape[1] for batch in grouped]
    assert longest != sorted(longest)
    assert [len(batch["index"]) for batch in grouped] == [SIZE] * 5 + [3]


def test_groups_are_sorted_within_themselves_only():
    order = np.random.default_rng(0).permutation(NUM)
    found = group_by_length(order, LENGTHS, size=4, group=3)
    for i in range(0, NUM, 12):
        assert sorted(found[i : i + 12]) == sorted(order[i : i + 12])
        assert (np.diff(LENGTHS[found[i : i + 12]]) >= 0).all()


class Reader(kerasdist.Model):
    features = ("frames", "length")
    targets = "label"

    def __init__(self):
        super().__init__()
        self.cell = keras.layers.GRU(4)
        self.out = keras.layers.Dense(3)

    def call(self, frames, length):
        mask = keras.ops.arange(keras.ops.shape(frames)[1])[None] < length[:, None]
        return self.out(self.cell(frames / 30, mask=mask))

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"optimizer": keras.optimizers.Adam(0.01), "loss": loss}


def test_weights_do_not_depend_on_devices_and_the_step_is_compiled_once(engines):
    def weights(devices):
        keras.utils.set_random_seed(3)
        options = {"batch_size": SIZE, "epochs": 2, "devices": devices, "shards": 4}
        history = kerasdist.fit(Reader(), data(), deterministic=True, progress=False, **options)
        return [w.tobytes() for w in history.model.get_weights()]

    assert weights(1) == weights(2) == weights(4)
    for engine in engines:
        assert engine.train_loop.experimental_get_tracing_count() == 1


def test_evaluation_and_prediction_keep_the_order():
    model = Reader()
    kerasdist.fit(model, data(), batch_size=SIZE, progress=False)
    outputs = kerasdist.predict(model, data(), batch_size=5)
    clips = [clip[None] for clip in examples()]
    one_by_one = [model(clip, np.array([clip.shape[1]], "int32")).numpy()[0] for clip in clips]
    np.testing.assert_allclose(outputs, one_by_one, atol=1e-5)
    assert kerasdist.evaluate(model, data(), batch_size=5)["loss"] > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frames": np.zeros((3, 2)), "label": np.zeros(3)}, "none of them a list of arrays"),
        ({"frames": examples(), "label": np.zeros(3)}, "{'frames': 43, 'label': 3}"),
        ({"frames": []}, "none of them a list of arrays"),
        ({"frames": [np.zeros((2, 3)), np.zeros((0, 3))]}, "example 1 of length 0"),
        ({"frames": [np.zeros((2, 3)), np.zeros((2, 4))]}, r"\(length, \*\(3,\)\) and float64"),
        ({"frames": [np.array(["a"])]}, "Expected numbers"),
        ({"a": [np.zeros(2)], "b": [np.zeros(3)]}, "example 0 with 2 steps of 'a' and 3 of 'b'"),
        ({"frames": examples(), "length": LENGTHS}, "a field with the name 'length'.*Rename"),
        ([examples()], "`fields` of type list.*Expected a dict"),
        ({}, "`fields={}`.*at least one sequence"),
    ],
)
def test_wrong_fields(fields, message):
    with pytest.raises(KerasdistError, match=message):
        kerasdist.Sequences(fields)


def test_wrong_options():
    with pytest.raises(KerasdistError, match="`group=0`"):
        data(group=0)
    with pytest.raises(KerasdistError, match="no `batch_size`"):
        kerasdist.fit(Reader(), data(), progress=False)
