"""Whether a higher value of a metric is better: best.keras, reports and studies agree on it."""

import doctest
import inspect
import json

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.reports import comparison
from kerasdist.reports.board.log_reader import LogReader
from kerasdist.runs import metrics_log, reading
from kerasdist.runs.results import direction
from kerasdist.runs.results.direction import is_higher_better

# What the metrics of Keras need that cannot be made without arguments.
ARGUMENTS = {
    "IoU": {"num_classes": 2, "target_class_ids": [0]},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"num_classes": 2, "target_class_ids": [0]},
    "OneHotMeanIoU": {"num_classes": 2},
    "MeanRelativeError": {"normalizer": [1.0]},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "MeanMetricWrapper": {"fn": keras.losses.mean_squared_error},
}
CLASSES = sorted(
    name
    for name, kind in vars(keras.metrics).items()
    if inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric) and name != "Metric"
)


def test_the_examples_run():
    assert doctest.testmod(direction).failed == 0


@pytest.mark.parametrize("name", CLASSES)
def test_the_name_of_each_metric_of_keras_says_what_keras_says(name):
    metric = getattr(keras.metrics, name)(**ARGUMENTS.get(name, {}))
    if hasattr(metric, "_direction"):
        for logged in (metric.name, f"val_{metric.name}", f"output_{metric.name}_1"):
            if name != "MeanMetricWrapper":  # It has the name that it is given.
                assert is_higher_better(logged) == (metric._direction == "up")
    assert len(CLASSES) > 40


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("acc", "val_acc", "top5_acc", "f1", "val_f1_score", "r2")),
        *((name, True) for name in ("val_dice", "mask_dice_2", "psnr", "loss_auc", "roc_auc")),
        *((name, False) for name in ("val_score_loss", "val_recall_loss", "val_account_loss")),
        *((name, False) for name in ("accumulated_error", "accuracy_mae", "face_mse", "loss")),
        *((name, False) for name in ("val_loss", "score_error_rate", "precise", "underscored")),
    ],
)
def test_the_last_known_word_of_a_name_decides(name, expected):
    assert is_higher_better(name) == expected


def test_what_the_metric_says_comes_before_its_name():
    known = direction.of_environment({"better": {"quality": "higher", "score": "lower", "x": 3}})
    assert known == {"quality": True, "score": False}
    assert is_higher_better("val_quality", known)
    assert not is_higher_better("score", known)
    assert direction.of_environment({"better": ["quality"]}) == {}
    assert direction.as_fields({}) == {}
    assert comparison.best_of("quality", [0.5, 0.75], known) == 0.75


def data():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    return x, (x.sum(1) > 0).astype("int32")


def classifier(name):
    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
        metric = keras.metrics.MeanIoU(2, sparse_y_pred=False, name=name)
        model.compile(
            keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=[metric]
        )
        return model

    return build


@pytest.mark.parametrize("name", [None, "overlap"])
def test_best_keras_has_the_highest_iou_and_everything_agrees(name, tmp_path):
    run, name = tmp_path / "run", name or "mean_io_u"
    build = classifier(name)
    options = {"monitor": f"val_{name}", "validation_data": data(), "keep_best": 2}
    history = kerasdist.fit(
        build, data(), batch_size=16, epochs=4, seed=0, run_dir=run, progress=False, **options
    ).history[f"val_{name}"]
    assert max(history) > min(history)
    best = kerasdist.evaluate(kerasdist.load(run), data())
    assert best[name] == pytest.approx(max(history))
    environment = json.loads((run / "environment.json").read_text())
    assert environment["better"] == {name: "higher"}
    found = reading.read(run)
    assert found.best(f"val_{name}").value == max(history)
    assert metrics_log.best_epoch(run, f"val_{name}")[1] == found.best(f"val_{name}")
    ranks = json.loads((run / "best/index.json").read_text())["models"]
    assert [model["value"] for model in ranks] == sorted(history, reverse=True)[:2]
    log = LogReader(run)
    while log.read(1 << 20):
        pass
    assert max(history) in [line.get(f"val_{name}") for line in log.epochs]
    assert "better" not in comparison.settings_of(found)
    assert "better" not in (run / "report.html").read_text().split("Environment")[-1]
