"""What besides a run's settings decides about the bits of its weights.

Tried on TF 2.21 (CPU, `deterministic`, one device): another number of threads within an operation
changes them, because kernels add up in as many parts; other vector instructions of the processor
and oneDNN (`TF_ENABLE_ONEDNN_OPTS`) do, and so does XLA where TensorFlow's own settings turn it on
(`compile(jit_compile=True)` has no effect here). How many steps run in one compiled call and
threads between operations did not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import __version__
from kerasdist.devices import private_tensorflow

VERSIONS: tuple[str, ...] = ("kerasdist", "tensorflow", "keras", "numpy")
MACHINE: tuple[str, ...] = ("threads", "processor")
# Those for which kernels have code of their own.
_INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "sve")


def made_with() -> dict[str, Any]:
    """Versions, threads and processor of this process.

    Example:
        >>> sorted(made_with())
        ['keras', 'kerasdist', 'numpy', 'processor', 'tensorflow', 'threads']
    """
    return {
        "kerasdist": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "threads": _num_threads(),
        "processor": _processor(),
    }


def compiler() -> dict[str, str]:
    """`{"xla": ...}` where TensorFlow's settings turn XLA on; nothing else."""
    settings = [tf.config.optimizer.get_jit()]
    level = re.search(r"tf_xla_auto_jit=(\S+)", os.environ.get("TF_XLA_FLAGS", ""))
    if level is not None and level[1] not in ("0", "-1"):
        settings.append(f"auto_jit={level[1]}")
    return {"xla": " ".join(filter(None, settings))} if any(settings) else {}


def _num_threads() -> int:
    """Within an operation. By default as many as processors that this process may use."""
    chosen = tf.config.threading.get_intra_op_parallelism_threads()
    usable = getattr(os, "sched_getaffinity", None)
    return chosen or (len(usable(0)) if usable else os.cpu_count() or 1)


def _processor() -> str:
    """Its name and instructions, where the system says so, and whose kernels TensorFlow uses."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    fields: dict[str, str] = dict(
        re.findall(r"^(model name|flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    )
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    name = fields.get("model name", "unknown")
    kernels = ["oneDNN"] if private_tensorflow.uses_onednn() else []
    return " ".join([name, *(word for word in _INSTRUCTIONS if word in flags), *kernels])
