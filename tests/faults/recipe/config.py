"""A small recipe with everything that a resume could get wrong."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Settings of the fault tests."""

    batch_size: int = 16
    epochs: int = 4
    seed: int = 0
    num_train: int = 331
    pause: float = 0.0
    trained_on: str = ""  # A file: the examples that each shard of each step was trained on.
