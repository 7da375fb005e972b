"""Settings of optimizers: their ranges, and as options of a recipe."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError, OptimizerConfig
from kerasdist.cli.fit_arguments import parse_fit

REFUSED = {
    "learning_rate": [-0.1, float("nan"), float("inf"), "0.1", None, True],
    "warmup_steps": [-1, 2.5, None],
    "decay_steps": [0, -3, 2.5],
    "decay_rate": [0, -0.1, 1.01, None],
    "power": [0, -1, float("inf")],
    "peak_at": [-0.1, 1],
    "start_factor": [-0.1, 1.1],
    "end_factor": [-0.1, 1.1, None],
    "momentum": [-0.1, 1],
    "weight_decay": [-0.1, float("inf")],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in REFUSED.items() for v in vs])
def test_a_number_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(KerasdistError) as caught:
        OptimizerConfig(**{name: value})
    assert str(caught.value).startswith(f"Received `{name}={value!r}`. Expected a ")
    assert str(caught.value).endswith("Correct the setting.")


def test_numbers_at_the_edges_are_taken():
    OptimizerConfig(learning_rate=0, decay_rate=1, end_factor=1, start_factor=0, peak_at=0)
    OptimizerConfig(learning_rate=np.float32(0.1), decay_steps=np.int64(3), momentum=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adm"}, "`optimizer='adm'`.*sgd, momentum, adam, .*mean 'adam'"),
        ({"schedule": "cosin"}, "`schedule='cosin'`.*poly, cosine, onecycle.*mean 'cosine'"),
        ({"schedule": "exponential"}, "`schedule='exponential'` without `decay_steps`"),
        ({"weight_decay_on": "("}, r"`weight_decay_on='\('`, which is not a regular expression"),
        ({"weight_decay_on": None}, "`weight_decay_on=None`, which is not a regular expression"),
    ],
)
def test_names_are_checked(settings, message):
    with pytest.raises(KerasdistError, match=message):
        OptimizerConfig(**settings)


CONFIG = """
from dataclasses import dataclass, field

import kerasdist


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    optimizer: str = "momentum"
    learning_rate: float = 0.05
    batch_size: int = field(default=8, metadata={"help": "examples of one step"})
    epochs: int = 2
"""
MODEL = """
import keras

import kerasdist


def build_model(config):
    model = keras.Sequential([keras.layers.Dense(2)])
    total_steps = kerasdist.count_steps(37, config.batch_size, config.epochs)
    model.compile(kerasdist.optimizer(config, total_steps=total_steps), "mse")
    return model
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe whose settings inherit the optimizer's."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for part, text in (("config", CONFIG), ("data", ""), ("model", MODEL)):
        (folder / f"{part}.py").write_text(text)
    return "mine"


def test_a_recipe_inherits_options(recipe):
    argv = "--optimizer adamw --schedule onecycle --warmup-steps 3 --weight-decay 0.1 --staircase"
    settings = parse_fit([recipe, *argv.split(), "--decay-steps", "9", "--no-nesterov"]).settings
    assert settings == dataclasses.asdict(
        OptimizerConfig(
            optimizer="adamw",
            learning_rate=0.05,
            schedule="onecycle",
            warmup_steps=3,
            decay_steps=9,
            staircase=True,
            nesterov=False,
            weight_decay=0.1,
        )
    ) | {"batch_size": 8, "epochs": 2}


def test_a_recipe_builds_its_optimizer_with_its_steps(recipe):
    loaded = kerasdist.load_recipe(recipe, schedule="cosine", weight_decay=0.1, epochs=3)
    optimizer = loaded.build_model().optimizer
    assert type(optimizer).__name__ == "SGD"
    assert optimizer.weight_decay_on == "kernels"
    assert optimizer._learning_rate == kerasdist.schedule(
        "cosine", learning_rate=0.05, total_steps=15
    )
    changed = kerasdist.optimizer(loaded.config, total_steps=9, learning_rate=0.5, momentum=0.1)
    assert changed.momentum == 0.1
    assert float(changed.learning_rate) == 0.5


def test_help_and_errors_of_inherited_options_come_without_tensorflow(recipe):
    """In one new process: what a setting means, its new default, and refusals."""
    code = (
        "import sys\n"
        "from kerasdist.cli.main import main\n"
        "codes = [main(['fit', 'mine', *rest.split()]) for rest in sys.argv[1:]]\n"
        "print(codes, sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))\n"
    )
    wrong = ["--decay-rate 2", "--learning-rate -1", "--schedule exponential", "--power 0"]
    environment = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    done = subprocess.run(
        [sys.executable, "-c", code, "--help", *wrong],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "[0, 2, 2, 2, 2] []"
    text = " ".join(done.stdout.replace("│", " ").split())
    assert "largest learning rate; the schedule lowers it (default: 0.05)" in text
    assert "--warmup-steps INT" in text
    for name in ("decay_rate=2.0", "learning_rate=-1.0", "schedule='exponential'", "power=0.0"):
        assert f"Received `{name}`" in done.stderr


def test_an_inherited_setting_keeps_its_help_and_needs_its_type(recipe):
    ours = {f.name: f for f in dataclasses.fields(OptimizerConfig)}
    kind = type(kerasdist.load_recipe(recipe).config)
    theirs = {f.name: f for f in dataclasses.fields(kind)}
    assert theirs["learning_rate"].default == 0.05
    assert all(theirs[name].metadata == ours[name].metadata for name in ours)
    assert all(field.metadata["help"] for field in ours.values())
    with pytest.raises(TypeError, match="'momentum' is a field but has no type annotation"):

        @dataclasses.dataclass(frozen=True)
        class Untyped(OptimizerConfig):
            momentum = 0.5
