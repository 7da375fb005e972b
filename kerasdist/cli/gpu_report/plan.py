"""Which checks `kerasdist doctor --gpu` runs, in which processes, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MEMORY_LIMIT = "memory limit"


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        groups: Names of checks. Each group has a process of its own.
        check_seconds: The most time for one check.
        start_seconds: The most time for a process to start, with the first use of the GPUs.
        total_seconds: The most time for all of it. Checks that have not begun then are left out.
    """

    groups: Sequence[Sequence[str]] = (
        ("driver and libraries", "GPUs", "memory", "copies", "matmul"),
        # NCCL can hang, and XLA can end the process: the checks after them start a new one.
        ("NCCL",),
        (
            "XLA",
            "training with XLA",
            "parity",
            "mixed_float16",
            "mixed_bfloat16",
            "cuDNN",
            "speed",
            "determinism",  # The last one: TensorFlow cannot switch op determinism off again.
        ),
        (MEMORY_LIMIT,),
    )
    check_seconds: float = 120
    start_seconds: float = 90
    total_seconds: float = 600
