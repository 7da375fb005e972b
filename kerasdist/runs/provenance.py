"""Records what a run was made with, and which versions and hardware affect its exact bits.

The record names no people and holds no environment variables.

What affects the bits was tried on TF 2.21 (CPU, `deterministic`, one device). These change them:
the number of threads within one operation (a kernel adds up in as many parts), the processor's
vector instructions, oneDNN (`TF_ENABLE_ONEDNN_OPTS`), and XLA. TensorFlow's settings may turn XLA
on for everything (`compiler`). `fit(jit=True)` and `compile(jit_compile=True)` turn it on for the
forward and backward pass: checkpoints record this as "jit". These do not: how many steps run in one
compiled call, and the number of threads between operations.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from kerasdist import __version__

# TensorFlow and Keras are imported by the functions that need them: `kerasdist doctor` also works
# where they do not load.

PACKAGES = ("kerasdist", "tensorflow", "keras", "numpy", "tensorflow-datasets", "h5py")
# Keys of `made_with`.
VERSIONS: tuple[str, ...] = ("kerasdist", "tensorflow", "keras", "numpy")
MACHINE: tuple[str, ...] = ("threads", "processor")
# Vector instructions for which TensorFlow has special kernels.
_INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "sve")
_GIT_SECONDS = 2.0


def describe(devices: Sequence[str], code: str | os.PathLike[str] = ".") -> dict[str, Any]:
    """Describes one start of a run, for environment.json.

    Args:
        devices: Names of the devices it uses.
        code: A folder. The commit is that of the Git repository around it.

    Example:
        >>> sorted(describe(["CPU:0"]))
        ['cpus', 'devices', 'git', 'machine', 'packages', 'platform', 'python', 'time']
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "devices": list(devices),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": _num_cpus(),
        "git": _git(Path(code)),
    }


def made_with() -> dict[str, Any]:
    """Versions, threads and processor of this process: what affects the bits of the weights.

    Example:
        >>> sorted(made_with())
        ['keras', 'kerasdist', 'numpy', 'processor', 'tensorflow', 'threads']
    """
    import keras
    import numpy as np
    import tensorflow as tf

    return {
        "kerasdist": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "threads": tf.config.threading.get_intra_op_parallelism_threads() or _num_cpus() or 1,
        "processor": _processor(),
    }


def compiler() -> dict[str, str]:
    """`{"xla": ...}` if TensorFlow's settings turn XLA on, else an empty dict."""
    import tensorflow as tf

    settings = [tf.config.optimizer.get_jit()]
    level = re.search(r"tf_xla_auto_jit=(\S+)", os.environ.get("TF_XLA_FLAGS", ""))
    if level is not None and level[1] not in ("0", "-1"):
        settings.append(f"auto_jit={level[1]}")
    return {"xla": " ".join(filter(None, settings))} if any(settings) else {}


def _num_cpus() -> int | None:
    """The processors that this process may use, if the system says so, else all of them."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count()


def _processor() -> str:
    """The processor's name and vector instructions, and "oneDNN" if TensorFlow uses it."""
    from kerasdist.devices import private_tensorflow

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


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit, and whether tracked files differ from it; None if there is no repository."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _ask_git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            # Without Git's own variables: inside a Git hook they name the caller's repository.
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
