"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field

import kerasdist


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    rate: int = field(default=16000, metadata={"help": "samples per second of the files"})
    mels: int = field(default=40, metadata={"help": "number of mel bands"})
    units: int = field(default=32, metadata={"help": "units of the recurrent layer per direction"})
    batch_size: int = field(default=32, metadata={"help": "examples per step, over all devices"})
    epochs: int = field(default=5, metadata={"help": "passes over the training data"})
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with one folder of WAV files per class"}
    )
