"""The page of a run's folder, and an evaluation to show on it."""

import re

import tensorflow as tf

from kerasdist.reports.live import write_report

EVALUATION = {
    "examples": 6,
    "is_whole": True,
    "steps": 6,
    "classes": ["cat", "dog"],
    "confusion": [[2, 1], [0, 3]],
    "worst": [
        {"position": 4, "label": "cat", "answer": "dog", "probability": 0.875,
         "label_probability": 0.125, "loss": 2.0794, "png": None}
    ],
    "best": [
        {"position": 1, "label": "dog", "answer": "dog", "probability": 0.99,
         "label_probability": 0.99, "loss": 0.01, "png": None}
    ],
}  # fmt: skip


def html_of(folder):
    assert write_report(folder)
    return (folder / "report.html").read_text()


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def decoded(png):
    return tf.io.decode_png(png, channels=0).numpy()
