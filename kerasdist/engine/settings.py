"""What a compiled step depends on besides the model and the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """What the step depends on besides the model and the devices."""

    shards: int
    seed: int = 0
    deterministic: bool = False
    clip_norm: float | None = None
    ema: float | None = None
    class_weight: dict[int, float] | None = None
    gather_metrics: bool = False
    num_denominators: int = 0
    num_test_denominators: int = 0
    times_input: bool = False
    jit: bool = False
    joins: bool = False
    state_rules: Mapping[int, str] = field(default_factory=dict)
    test_state_rules: Mapping[int, str] = field(default_factory=dict)
