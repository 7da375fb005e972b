"""Summaries for TensorBoard: what they hold, that they change nothing, and that steps are once."""

import json
import resource
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import kerasdist
from kerasdist.cli import fit_arguments
from kerasdist.devices.placement import place
from kerasdist.engine.engine import Engine
from kerasdist.engine.observations import Observation
from kerasdist.engine.settings import Settings
from kerasdist.runs.intervals import Every
from kerasdist.training.progress import tensorboard as summaries
from kerasdist.training.progress.meter import Meter
from kerasdist.training.progress.tensorboard import (
    FOLDER,
    Summaries,
    as_pictures,
    buckets,
    read_events,
)

RANDOM = np.random.default_rng(6)
IMAGES = RANDOM.integers(0, 256, (22, 6, 6, 3), dtype=np.uint8)
LABELS = RANDOM.integers(0, 3, 22)
OFTEN = {"summary_every": 2, "save_every": 3, "epochs": 3, "deterministic": True, "shards": 1}


class StopAt(keras.callbacks.Callback):
    """Ends the training as an error would, at a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            raise ZeroDivisionError


def build():
    """Regularised weights and activities, BatchNorm, dropout and a schedule.

    Names are given: Keras numbers others through a process, and a start is one of its own.
    """
    l2 = keras.regularizers.L2(0.01)
    model = keras.Sequential(
        [
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(4, kernel_regularizer=l2, name="hidden"),
            keras.layers.BatchNormalization(name="normalized"),
            keras.layers.ReLU(activity_regularizer=keras.regularizers.L1(0.001)),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, kernel_regularizer=l2, name="classes"),
        ],
        name="net",
    )
    schedule = keras.optimizers.schedules.PolynomialDecay(0.01, 20, 0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    return model


def fit(folder, **changed):
    defaults = {"batch_size": 5, "epochs": 2, "seed": 0, "run_dir": folder, "progress": False}
    return kerasdist.fit(build, (IMAGES, LABELS), **{**defaults, **changed})


def events(folder):
    """Every event of every file, in TensorBoard's order, but for the versions."""
    files = sorted((folder / FOLDER).glob("*tfevents*"))
    found = [event for path in files for event in read_events(path)]
    return [event for event in found if event is None or not event.file_version]


def values(folder):
    """`{(tag, step): tensor}`; fails where one is there twice."""
    pairs = [
        ((value.tag, event.step), tf.make_ndarray(value.tensor))
        for event in events(folder)
        for value in event.summary.value
    ]
    assert [key for key, count in Counter(key for key, _ in pairs).items() if count > 1] == []
    return dict(pairs)


def tags(folder, prefix):
    return {tag for tag, _ in values(folder) if tag.startswith(prefix)}


def operations(function):
    """How often each operation is in a traced function and in those that it calls."""
    (traced,) = function._list_all_concrete_functions()
    graph = traced.graph.as_graph_def()
    whole = [graph.node, *(f.node_def for f in graph.library.function)]
    return Counter(node.op for part in whole for node in part)


@pytest.mark.parametrize("devices", [1, 2])
def test_summaries_change_nothing_and_cost_nothing_when_off(devices, tmp_path, engines):
    """The same bits in the end; without summaries not a trace and not an operation more."""
    digests = set()
    for every in (None, 3):
        folder = tmp_path / f"{every}"
        fit(folder, devices=devices, deterministic=True, shards=2, summary_every=every)
        digests.add(json.loads((folder / "result.json").read_text())["weights_sha256"])
    assert len(digests) == 1
    off, on = engines
    assert not (tmp_path / "None" / FOLDER).exists()
    assert off.observed_step.experimental_get_tracing_count() == 0
    assert on.observed_step.experimental_get_tracing_count() == 1
    assert [e.train_loop.experimental_get_tracing_count() for e in engines] == [1, 1]
    assert operations(off.train_loop) == operations(on.train_loop)
    # The penalties of two kernels are computed for the step, and again to be shown.
    squares = [operations(f)["Square"] for f in (on.train_loop, on.observed_step)]
    assert squares[1] == squares[0] + 2 * devices


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run on one device that nothing stopped."""
    folder = tmp_path_factory.mktemp("unbroken")
    fit(folder, **OFTEN)
    return folder


def test_what_a_run_writes(tmp_path):
    fit(
        tmp_path,
        devices=2,
        summary_every=3,
        validation_data=(IMAGES[:7], LABELS[:7]),
        ema=0.9,
        shuffle=False,
    )
    found = values(tmp_path)
    steps = {step for tag, step in found if not tag.startswith("epoch/")}
    assert steps == {3, 6, 9}
    scalars = {"loss/total", "loss/data", "loss/regularization", "loss/added", "learning_rate"}
    scalars |= {"loss/replica_0", "loss/replica_1"}
    for step in steps:
        named = {tag for tag, at in found if at == step and ("/" not in tag or tag[:5] == "loss/")}
        assert named - {"examples_per_second"} == scalars
    # The first observed step compiles: its time counts for nothing.
    assert found["examples_per_second", 9] > 0
    metrics = {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert {key for key in found if key[0].startswith("epoch/")} == {
        (f"epoch/{name}", step) for name in metrics for step in (5, 10)
    }
    assert len(tags(tmp_path, "variables/")) == 8  # with BatchNorm's moving averages
    assert len(tags(tmp_path, "gradients/")) == 6
    assert tags(tmp_path, "images/") == {"images/x/replica_0", "images/x/replica_1"}
    for step in steps:
        rate = 0.01 * (1 - (step - 1) / 20)
        assert found["learning_rate", step] == pytest.approx(rate, rel=1e-5)
    graphs = [event.graph_def for event in events(tmp_path) if event.graph_def]
    assert len(graphs) == 1
    names = [node.name for node in tf.compat.v1.GraphDef.FromString(graphs[0]).node]
    assert any("normalized" in name for name in names)


def test_tensorboard_reads_it(unbroken):
    reader = EventAccumulator(str(unbroken / FOLDER), {"tensors": 0}).Reload()
    kinds = {
        tag: reader.SummaryMetadata(tag).plugin_data.plugin_name for tag in reader.Tags()["tensors"]
    }
    assert kinds["loss/total"] == kinds["epoch/accuracy"] == "scalars"
    assert kinds["images/x/replica_0"] == "images"
    groups = {tag.split("/")[0] for tag, kind in kinds.items() if kind == "histograms"}
    assert groups == {"variables", "gradients"}
    assert [event.step for event in reader.Tensors("loss/total")] == [2, 4, 6, 8, 10, 12, 14]
    assert reader.Graph().node


def observed(model, x, y, devices=1, **settings):
    """The first step of a model on one batch."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    engine = Engine(model, place(devices), Settings(**{"shards": devices, **settings}))
    iterator = iter(tf.data.Dataset.from_tensors((x, y)))
    return engine.train_observed(iterator)


def linear(**options):
    l2 = keras.regularizers.L2(0.1)
    layer = keras.layers.Dense(1, use_bias=False, kernel_regularizer=l2, **options)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


@pytest.mark.parametrize(("devices", "shards"), [(1, 1), (1, 4), (3, 3), (3, 6)])
def test_losses_and_gradients_are_those_of_numpy(devices, shards):
    """Seven rows: replicas have two, two and three of them."""
    x, y = RANDOM.normal(size=(7, 2)), RANDOM.normal(size=(7, 1))
    model = linear(activity_regularizer=lambda a: 0.3 * keras.ops.sum(a**2))
    w = model.get_weights()[0].astype("float64")
    seen = observed(model, x.astype("float32"), y.astype("float32"), devices, shards=shards).seen
    prediction = x @ w
    errors = (prediction - y) ** 2 + 0.3 * prediction**2
    penalty = 0.1 * np.sum(w**2)
    np.testing.assert_allclose(seen.loss, errors.mean() + penalty, rtol=1e-5)
    np.testing.assert_allclose(seen.regularization, penalty, rtol=1e-5)
    np.testing.assert_allclose(seen.added, 0.3 * np.mean(prediction**2), rtol=1e-5)
    np.testing.assert_allclose(seen.data_loss, np.mean((prediction - y) ** 2), rtol=1e-5)
    rows = [range(i * 7 // devices, (i + 1) * 7 // devices) for i in range(devices)]
    own = [errors[r].mean() + penalty for r in rows]
    np.testing.assert_allclose(seen.replica_losses, own, rtol=1e-5)
    gradient = 2 * x.T @ (prediction - y + 0.3 * prediction) / 7 + 0.2 * w
    ((name, found),) = seen.gradients.items()
    np.testing.assert_allclose(found, gradient, rtol=1e-4)
    np.testing.assert_allclose(seen.variables[name], w - 0.5 * gradient, rtol=1e-4)
    assert seen.learning_rate == 0.5
    assert seen.loss_scale is None


def test_a_replica_without_examples_has_no_loss():
    seen = observed(linear(), np.ones((1, 2), "float32"), np.ones((1, 1), "float32"), 2).seen
    assert np.isnan(seen.replica_losses).tolist() == [True, False]
    tags = {value.tag for value in summaries._scalars(seen)}
    assert "loss/replica_1" in tags
    assert "loss/replica_0" not in tags


def test_a_loss_scale_is_shown_and_gradients_are_without_it():
    model = linear()
    x, y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")
    other = linear()
    other.set_weights(model.get_weights())
    plain = observed(other, x, y).seen
    model.optimizer = keras.optimizers.LossScaleOptimizer(model.optimizer, initial_scale=64.0)
    seen = observed(model, x, y).seen
    assert seen.loss_scale == 64.0
    assert seen.learning_rate == 0.5
    for one, two in zip(seen.gradients.values(), plain.gradients.values(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


class OwnLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_regularizer="l2")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean((y - y_pred) ** 2)


def test_the_parts_of_a_models_own_loss_are_not_guessed():
    model = OwnLoss()
    model.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    model(x)
    seen = observed(model, x, np.ones((4, 1), "float32")).seen
    assert seen.data_loss is None
    assert {value.tag for value in summaries._scalars(seen)} == {
        *{"loss/total", "loss/regularization", "loss/replica_0", "learning_rate"}
    }


class Segmentation(kerasdist.Model):
    features = ("photo", "size")
    targets = ("classes", "depth")

    def __init__(self):
        super().__init__()
        self.conv = keras.layers.Conv2D(5, 1)
        self.depth = keras.layers.Conv2D(1, 1)

    def call(self, photo, size):
        photo = keras.ops.cast(photo, "float32") + 0 * keras.ops.sum(size)
        return self.conv(photo), self.depth(photo)

    def defaults(self):
        classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"optimizer": "sgd", "loss": (classes, "mse")}


def test_inputs_and_image_shaped_targets_of_each_replica_are_shown(tmp_path):
    data = {
        "photo": RANDOM.integers(0, 256, (9, 6, 5, 3), dtype=np.uint8),
        "size": RANDOM.normal(size=(9, 2)).astype("float32"),
        "classes": RANDOM.integers(0, 5, (9, 6, 5)),
        "depth": RANDOM.random((9, 6, 5, 1), dtype=np.float32),
    }
    kerasdist.fit(
        Segmentation,
        data,
        batch_size=9,
        devices=2,
        shuffle=False,
        summary_every=1,
        run_dir=tmp_path,
        progress=False,
    )
    found = {tag: value for (tag, _), value in values(tmp_path).items()}
    shown = {tag for tag in found if tag.startswith(("images/", "targets/"))}
    assert shown == {
        f"{name}/replica_{i}"
        for name in ("images/photo", "targets/classes", "targets/depth")
        for i in (0, 1)
    }
    for replica, first in enumerate((0, 4)):  # of nine rows the second replica has five
        width, height, *encoded = found[f"images/photo/replica_{replica}"]
        assert (width, height) == (b"5", b"6")
        pictures = [tf.io.decode_png(png).numpy() for png in encoded]
        np.testing.assert_array_equal(pictures, data["photo"][first : first + 4])
        depth = [
            tf.io.decode_png(png).numpy() for png in found[f"targets/depth/replica_{replica}"][2:]
        ]
        np.testing.assert_allclose(depth, 255 * data["depth"][first : first + 4], atol=0.51)
        colours = [
            tf.io.decode_png(png).numpy() for png in found[f"targets/classes/replica_{replica}"][2:]
        ]
        seen = {}
        for colour, label in zip(
            np.reshape(colours, (-1, 3)), data["classes"][first : first + 4].ravel(), strict=True
        ):
            assert seen.setdefault(label, tuple(colour)) == tuple(colour)
        assert len(set(seen.values())) == len(seen)


def test_sequences_are_no_images():
    """[time, classes] has the rank of a map of classes, but not the size of an image."""
    model = keras.Sequential([keras.Input((4, 3)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x = np.ones((2, 4, 3), "float32")
    seen = observed(model, x, x).seen
    assert seen.images == ({},)
    assert seen.targets == ({},)


def test_histograms_count_every_finite_number(monkeypatch):
    monkeypatch.setattr(summaries, "_CHUNK", 100)
    array = RANDOM.normal(size=(37, 11)).astype("float32")
    counts, edges = np.histogram(array.astype("float64"), 30)
    rows = buckets(array)
    np.testing.assert_array_equal(rows[:, 2], counts)
    np.testing.assert_allclose(rows[:, 0], edges[:-1])
    np.testing.assert_allclose(rows[:, 1], edges[1:])
    array[5, 5], array[6, 6] = np.nan, np.inf
    assert buckets(array)[:, 2].sum() == array.size - 2
    assert np.isfinite(buckets(array)).all()


@pytest.mark.parametrize("number", [0.0, 1e30, -1e-30])
def test_a_histogram_of_one_number_has_a_width(number):
    rows = buckets(np.full(5, number, "float32"))
    assert rows[:, 2].sum() == 5
    assert (rows[:, 1] > rows[:, 0]).all()
    assert rows[0, 0] < number < rows[-1, 1]


@pytest.mark.parametrize("array", [np.zeros(0), np.full(3, np.nan)])
def test_a_histogram_of_nothing_is_empty(array):
    assert buckets(array)[:, 2].sum() == 0


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (np.array([0, 7, 255], np.uint8), [0, 7, 255]),
        (np.array([0.0, 0.5, 1.0], np.float32), [0, 128, 255]),
        (np.array([0.0, 0.2, 0.5], np.float16), [0, 51, 128]),
        (np.array([-2.0, 0.0, 2.0], np.float32), [0, 128, 255]),
        (np.array([0.0, 50.0, 100.0], np.float32), [0, 128, 255]),
        (np.array([3, 7, 255], np.int32), [3, 7, 255]),
        (np.array([-100, 0, 300], np.int64), [0, 64, 255]),
        (np.array([np.nan, 0.0, 1.0], np.float32), [0, 0, 255]),
        (np.array([5.0, 5.0, 5.0], np.float32), [0, 0, 0]),
        (np.array([True, False, True]), [255, 0, 255]),
    ],
)
def test_images_become_bytes(image, expected):
    pictures = as_pictures(image.reshape(1, 1, 3, 1))
    assert pictures.dtype == np.uint8
    assert pictures.ravel().tolist() == expected


def test_images_are_stretched_one_by_one():
    two = np.stack([np.arange(4.0), 100 * np.arange(4.0)]).reshape(2, 2, 2, 1)
    np.testing.assert_array_equal(*as_pictures(two))


def seen_of(loss):
    """A step with this loss."""
    graph = tf.compat.v1.GraphDef(node=[tf.compat.v1.NodeDef(name="a", op="NoOp")])
    return Observation(
        *(loss, (loss,), loss, None, None, 0.1, None),
        *({"w": np.ones(3)}, {"w": np.ones(3)}, ({},), ({},)),
        lambda: graph,
    )


def writer(folder, said, every=10):
    return Summaries(folder, Every(steps=every), said.append)


def write(to, steps, loss=1.0):
    for step in steps:
        to.step(step, seen_of(loss), Meter())


@pytest.mark.parametrize("cut", [0, 1, 13, 400])
@pytest.mark.parametrize("epoch_ended", [False, True])
def test_after_a_kill_each_step_is_there_once(tmp_path, cut, epoch_ended):
    said = []
    killed = writer(tmp_path, said)
    write(killed, (10, 20))
    killed.epoch(20, {"accuracy": 0.25})
    write(killed, (30, 40))
    # A kill loses nothing that was written.
    assert {step for _, step in values(tmp_path)} == {10, 20, 30, 40}
    (path,) = (tmp_path / FOLDER).iterdir()
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])  # a record that was written half
    again = writer(tmp_path, said)
    again.rewind(20, epoch_ended=epoch_ended)
    if not epoch_ended:
        again.epoch(20, {"accuracy": 0.5})
    write(again, (30, 40, 50), loss=2.0)
    again.close()
    found = values(tmp_path)
    losses = {step: float(value) for (tag, step), value in found.items() if tag == "loss/total"}
    assert losses == {10: 1.0, 20: 1.0, 30: 2.0, 40: 2.0, 50: 2.0}
    assert found["epoch/accuracy", 20] == (0.25 if epoch_ended else 0.5)
    assert sum(bool(event.graph_def) for event in events(tmp_path)) == 1
    assert said == []


def test_half_a_record_is_removed_also_where_all_others_stay(tmp_path):
    write(writer(tmp_path, []), (10, 20))
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert events(tmp_path)[-1] is None
    writer(tmp_path, []).rewind(20, epoch_ended=True)
    assert {step for _, step in values(tmp_path)} == {10}


def test_what_a_run_without_a_checkpoint_wrote_is_removed(tmp_path):
    write(writer(tmp_path, []), (10, 20))
    again = writer(tmp_path, [])
    again.rewind(0, epoch_ended=False)
    assert list((tmp_path / FOLDER).iterdir()) == []
    write(again, (10,))
    assert {step for _, step in values(tmp_path)} == {10}
    assert sum(bool(event.graph_def) for event in events(tmp_path)) == 1


def test_files_of_others_are_left_alone(tmp_path):
    other = tmp_path / FOLDER / "events.out.tfevents.1.host"
    other.parent.mkdir()
    other.write_bytes(b"not ours")
    write(writer(tmp_path, []), (10, 20))
    writer(tmp_path, []).rewind(0, epoch_ended=False)
    assert [path.name for path in other.parent.iterdir()] == [other.name]


def test_what_need_not_change_is_not_written_again(tmp_path):
    write(writer(tmp_path, []), (10, 20))
    (path,) = (tmp_path / FOLDER).iterdir()
    before = path.stat()
    writer(tmp_path, []).rewind(20, epoch_ended=True)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_starts_within_a_second_have_files_in_their_order(tmp_path, monkeypatch):
    for start in range(3):
        monkeypatch.setattr(summaries.time, "time", lambda start=start: 1e9 - start)
        write(writer(tmp_path, []), (10 * (start + 1),))
    steps = [event.step for event in events(tmp_path) if not event.graph_def]
    assert steps == [10, 20, 30]


def test_a_run_that_was_stopped_writes_what_an_unbroken_one_does(unbroken, tmp_path):
    for step in (2, 8, 14):  # before the first checkpoint, two steps after one, and again
        with pytest.raises(ZeroDivisionError):
            fit(tmp_path, callbacks=[StopAt(step)], **OFTEN)
        *_, path = sorted((tmp_path / FOLDER).iterdir())
        path.write_bytes(path.read_bytes()[:-7])
    fit(tmp_path, **OFTEN)
    expected, found = (
        {key: value for key, value in values(folder).items() if key[0] != "examples_per_second"}
        for folder in (unbroken, tmp_path)
    )
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)
    assert sum(bool(event.graph_def) for event in events(tmp_path)) == 1


def test_trouble_is_told_once_and_ends_when_it_ends(tmp_path):
    said = []
    place = tmp_path / FOLDER
    place.write_text("in the way")
    trouble = writer(tmp_path, said)
    write(trouble, (10, 20))
    trouble.epoch(20, {"loss": 1.0})
    assert len(said) == 1
    assert "could not write summaries" in said[0]
    place.unlink()
    write(trouble, (30,))
    assert {step for _, step in values(tmp_path)} == {30}


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    said = []
    removed = writer(tmp_path, said)
    write(removed, (10,))
    for path in (tmp_path / FOLDER).iterdir():
        path.unlink()
    (tmp_path / FOLDER).rmdir()
    write(removed, (20,))
    assert {step for _, step in values(tmp_path)} == {20}
    assert said == []


def test_a_full_disk_costs_only_what_did_not_fit(tmp_path):
    """A limit on the size of a file refuses what a full disk would."""
    said = []
    full = writer(tmp_path, said)
    write(full, (10, 20))
    (path,) = (tmp_path / FOLDER).iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
        write(full, (30,))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        write(full, (40,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write(full, (50,))
    assert len(said) == 1
    found = [event for event in events(tmp_path) if event is not None]
    assert [event.step for event in found if not event.graph_def] == [10, 20, 50]


def test_training_goes_on_where_summaries_cannot_be_written(tmp_path, capsys):
    folder = tmp_path / "run"
    block = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: (folder / FOLDER).write_text("in the way")
    )
    fit(folder, steps=6, summary_every=1, progress="auto", callbacks=[block])
    assert json.loads((folder / "result.json").read_text())["steps"] == 6
    assert capsys.readouterr().out.count("could not write summaries") == 1


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_a_wrong_number_is_refused(tmp_path, every):
    with pytest.raises(kerasdist.KerasdistError, match="summary_every"):
        fit(tmp_path / "run", summary_every=every)


def test_summaries_need_a_folder():
    with pytest.raises(kerasdist.KerasdistError, match=r"summary_every=5.*run_dir"):
        fit(None, summary_every=5)


def test_the_option_of_the_command_line():
    parse = lambda *argv: fit_arguments.parse_fit(["cifar10", *argv]).run["summary_every"]  # noqa: E731
    assert parse() == 100
    assert parse("--summary-every", "0") == 0
    with pytest.raises(kerasdist.KerasdistError, match="of at least 0"):
        parse("--summary-every", "-1")
