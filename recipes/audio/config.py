"""Settings of the spoken-digits recipe. Imports no TensorFlow, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kerasdist import KerasdistError, OptimizerConfig


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """Every setting of the recipe; each is an option of `kerasdist fit recipes/audio`.

    Example:
        >>> Config(cell="lstm").cell
        'lstm'
    """

    cell: Literal["gru", "lstm"] = field(default="gru", metadata={"help": "gru or lstm"})
    units: int = field(default=96, metadata={"help": "units of a layer in each direction"})
    layers: int = field(default=2, metadata={"help": "recurrent layers, one above the other"})
    stack: int = field(
        default=2, metadata={"help": "frames that make one step of the recurrent layers"}
    )
    dropout: float = field(
        default=0.3, metadata={"help": "part of the values between layers that is left out"}
    )
    label_smoothing: float = field(
        default=0.1, metadata={"help": "part of a label that goes to all classes equally"}
    )
    mels: int = field(default=40, metadata={"help": "bands of the mel scale"})
    deltas: bool = field(
        default=True, metadata={"help": "also give the network how each band changes"}
    )
    augmentation: Literal["speech", "none"] = field(
        default="speech",
        metadata={"help": "speech (other speed, pitch and start; bands and times masked) or none"},
    )
    batch_size: int = field(
        default=32, metadata={"help": "examples of one optimizer step, over all devices"}
    )
    epochs: int = field(default=30, metadata={"help": "passes over the training data"})
    steps: int | None = field(
        default=None, metadata={"help": "steps to train instead of epochs; the schedule knows them"}
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
        metadata={"help": "auto, files, tfds or synthetic; auto takes the first there is"},
    )
    skip_bad: bool = field(
        default=False, metadata={"help": "leave out WAV files that cannot be used, with a count"}
    )
    hold_out_speaker: str | None = field(
        default=None,
        metadata={"help": "validate on all clips of this speaker and train on the others"},
    )
    seed: int = field(default=0, metadata={"help": "seed of the initial weights and the shuffling"})
    num_train: int = field(
        default=1000, metadata={"help": "training sounds of the synthetic set; others have theirs"}
    )
    num_validation: int = field(
        default=500,
        metadata={"help": "validation sounds of the synthetic set; others have theirs"},
    )
    synthetic_seed: int = field(
        default=0,
        metadata={"help": "seed of the synthetic sounds, apart from seed so that runs compare"},
    )

    def __post_init__(self):
        """Refuses numbers out of range, before TensorFlow is imported."""
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
