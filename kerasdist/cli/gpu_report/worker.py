"""The process that runs the checks of `kerasdist doctor --gpu`, which may hang or crash.

Its arguments are the names of the checks. After each check it writes one line of JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping

# Before TensorFlow is imported: nobody reads its messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from kerasdist.cli.findings import Finding
from kerasdist.cli.gpu_report import hardware, trainings
from kerasdist.cli.gpu_report.plan import MEMORY_LIMIT
from kerasdist.errors import first_line
from kerasdist.runs.atomic import as_json

CHECKS: Mapping[str, Callable[[], Iterator[Finding]]] = {
    "driver and libraries": hardware.check_libraries,
    "GPUs": hardware.check_gpus,
    "memory": hardware.check_memory,
    "copies": hardware.check_copies,
    "matmul": hardware.check_matmul,
    "XLA": hardware.check_xla,
    "training with XLA": trainings.check_jit,
    "parity": trainings.check_parity,
    "mixed_float16": functools.partial(trainings.check_precision, "mixed_float16"),
    "mixed_bfloat16": functools.partial(trainings.check_precision, "mixed_bfloat16"),
    "cuDNN": trainings.check_gru,
    "speed": trainings.check_speed,
    "determinism": trainings.check_determinism,
    "NCCL": hardware.check_nccl,
    MEMORY_LIMIT: hardware.check_memory_limit,
}


def run(name: str) -> list[Finding]:
    """The findings of a check; an error of the check is one, too."""
    try:
        return list(CHECKS[name]())
    except Exception as error:  # noqa: BLE001 - the other checks still run
        traceback.print_exc()
        text = f"{type(error).__name__}: {first_line(error)}"
        return [Finding(name, text, "Send this report: docs/gpus.md says where to.")]


def prepare(names: list[str]) -> None:
    """Sets the memory of the GPUs: a limit for the check of limits, growth for all others."""
    for gpu in tf.config.list_physical_devices("GPU"):
        if names == [MEMORY_LIMIT]:
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=hardware.LIMIT)
            tf.config.set_logical_device_configuration(gpu, [limit])
        else:
            tf.config.experimental.set_memory_growth(gpu, True)


def main(names: list[str]) -> None:
    """Answers on the standard output, and sends everything else to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare(names)
    for name in names:
        findings = [json.loads(as_json(vars(finding))) for finding in run(name)]
        print(json.dumps(findings), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
