"""Settings of the spoken-digits recipe. Does not import TensorFlow, so `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kerasdist import KerasdistError, OptimizerConfig


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of the recipe. Each is an option of `kerasdist fit recipes/audio`.

    Example:
        >>> Config(cell="lstm").cell
        'lstm'
    """

    cell: Literal["gru", "lstm"] = field(
        default="gru", metadata={"help": "type of the recurrent layers: gru or lstm"}
    )
    units: int = field(default=96, metadata={"help": "units per layer and direction"})
    layers: int = field(default=2, metadata={"help": "number of recurrent layers"})
    stack: int = field(default=2, metadata={"help": "frames per step of the recurrent layers"})
    dropout: float = field(default=0.3, metadata={"help": "dropout rate between layers"})
    label_smoothing: float = field(
        default=0.1, metadata={"help": "part of a label that is spread equally over all classes"}
    )
    mels: int = field(default=40, metadata={"help": "number of mel bands"})
    deltas: bool = field(
        default=True, metadata={"help": "also give the network the slope of each band"}
    )
    augmentation: Literal["speech", "none"] = field(
        default="speech",
        metadata={"help": "speech (random speed, pitch and start; masked bands and times) or none"},
    )
    batch_size: int = field(default=32, metadata={"help": "examples per step, over all devices"})
    epochs: int = field(default=30, metadata={"help": "passes over the training data"})
    steps: int | None = field(
        default=None, metadata={"help": "number of steps to train, instead of epochs"}
    )
    optimizer: str = "adam"
    learning_rate: float = 0.003
    schedule: str = "onecycle"
    peak_at: float = 0.2
    data_dir: str | None = field(
        default=None, metadata={"help": "folder with recordings, or a prepared TFDS folder"}
    )
    source: Literal["auto", "files", "tfds", "synthetic"] = field(
        default="auto",
        metadata={"help": "auto, files, tfds or synthetic; auto uses the first available"},
    )
    skip_bad: bool = field(
        default=False, metadata={"help": "skip WAV files that cannot be used, and say how many"}
    )
    hold_out_speaker: str | None = field(
        default=None,
        metadata={"help": "validate on all clips of this speaker, train on the other speakers"},
    )
    seed: int = field(default=0, metadata={"help": "seed of the initial weights and the shuffling"})
    num_train: int = field(
        default=1000, metadata={"help": "number of training clips (synthetic data only)"}
    )
    num_validation: int = field(
        default=500,
        metadata={"help": "number of validation clips (synthetic data only)"},
    )
    synthetic_seed: int = field(
        default=0,
        metadata={"help": "seed of the synthetic sounds; --seed does not change them"},
    )

    def __post_init__(self):
        """Checks the ranges of numbers, before TensorFlow is imported."""
        super().__post_init__()
        for name, lowest, highest in (
            ("units", 1, None),
            ("layers", 1, None),
            ("stack", 1, None),
            ("mels", 4, 80),
            ("dropout", 0, 0.9),
            ("label_smoothing", 0, 1),
            ("num_train", 1, None),
            ("num_validation", 1, None),
        ):
            value = getattr(self, name)
            if value < lowest or (highest is not None and value > highest):
                expected = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
                raise KerasdistError(
                    f"Received `{name}={value!r}`. Expected {expected}. Correct the setting."
                )
