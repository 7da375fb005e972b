"""Fake GPUs: TensorFlow's own paths for GPUs on a machine without one, with counters and faults.

`fake_gpu.cc` says how they work. To run tests on them: `KERASDIST_FAKE_GPUS=2 python -m pytest ...`
(conftest.py calls `load`). What they do not show: numbers and speed of cuDNN, cuBLAS and NCCL, and
XLA on GPUs.
"""

import ctypes
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NUM = "KERASDIST_FAKE_GPUS"
EXACT = "KERASDIST_FAKE_GPU_EXACT"
COUNTERS = (
    "to_device",
    "to_device_bytes",
    "to_host",
    "to_host_bytes",
    "between",
    "between_bytes",
    "within",
    "within_bytes",
    "kernels",
    "nccl",
    "nccl_bytes",
)
_SOURCE = Path(__file__).with_name("fake_gpu.cc")
_library = None


class CannotBuildError(Exception):
    """There is no compiler, or it failed."""


@dataclass(frozen=True)
class Record:
    """One copy ("to device", "to host", "between", "within") or kernel, with its times in ns.

    `num_bytes` is the size of a copy, or the memory in use on the device after a kernel.
    """

    what: str
    device: int
    num_bytes: int
    begin: int
    end: int


def why_not():
    """Why fake GPUs cannot be built here; None if they can."""
    if shutil.which("g++") is None:
        return "fake GPUs need g++, which is not installed here (Debian: apt-get install g++)"
    return None


def build():
    """Compiles fake_gpu.cc against the installed TensorFlow, once. Returns the library's path."""
    reason = why_not()
    if reason is not None:
        raise CannotBuildError(reason)
    folder = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0])
    about = f"{_SOURCE.read_text()}{folder}{folder.stat().st_mtime_ns}"
    name = f"kerasdist-fake-gpu-{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    target = Path(tempfile.gettempdir()) / f"kerasdist-{os.getuid()}" / name
    if target.exists():
        return target
    target.parent.mkdir(mode=0o700, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    command = ["g++", "-w", "-O1", "-g0", "-shared", "-fPIC", "-std=c++17", str(_SOURCE)]
    command += ["-o", str(made), f"-I{folder}/include", f"-L{folder}", f"-Wl,-rpath,{folder}"]
    command += ["-l:libtensorflow_framework.so.2", "-DNDEBUG"]
    command += ["-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise CannotBuildError(f"g++ failed on fake_gpu.cc: {run.stderr[-2000:]}")
    made.rename(target)
    return target


def load():
    """Adds the fake GPUs to TensorFlow, which must not have started."""
    global _library
    if _library is not None:
        return
    path = build()
    import tensorflow as tf
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(str(path))
    _library = ctypes.CDLL(str(path))
    for function in ("fake_gpu_count", "fake_gpu_peak", "fake_gpu_trace_size"):
        getattr(_library, function).restype = ctypes.c_int64
    # It turns NHWC into NCHW, which has no kernels on the CPU.
    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    _without_cudnn()


def _without_cudnn():
    """Lets Keras's recurrent layers run without cuDNN, which the fake GPUs do not have."""
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")

    def not_here(*args, **kwargs):
        raise NotImplementedError

    for name in ("_cudnn_gru", "_cudnn_lstm"):
        if not hasattr(rnn, name):
            raise RuntimeError(f"Keras has no {name} any more")
        setattr(rnn, name, not_here)


def without_nccl():
    """Lets GPU workers exchange by TensorFlow's ring: the fake GPUs have no NCCL between processes.

    What they would have asked for is written to the file that KERASDIST_FAKE_NCCL names.
    """
    from kerasdist.devices import worker

    wanted, path = worker.exchange_by, os.environ.get("KERASDIST_FAKE_NCCL", os.devnull)

    def by_ring(kind):
        with open(path, "a") as file:
            file.write(f"{kind} {wanted(kind).implementation.name}\n")
        return wanted("CPU")

    worker.exchange_by = by_ring


def is_loaded():
    return _library is not None


def counts(device=None):
    """Copies, bytes and kernels so far: of one device, or of all."""
    import tensorflow as tf

    numbers = range(len(tf.config.list_physical_devices("GPU"))) if device is None else [device]
    return {
        name: sum(_library.fake_gpu_count(number, i) for number in numbers)
        for i, name in enumerate(COUNTERS)
    }


def peak(device):
    """The largest number of bytes in use on a device since `reset_peak`."""
    import tensorflow as tf

    if is_exact():
        return _library.fake_gpu_peak(device)
    return tf.config.experimental.get_memory_info(f"GPU:{device}")["peak"]


def reset_peak(device):
    import tensorflow as tf

    if is_exact():
        _library.fake_gpu_reset_peak(device)
    else:
        tf.config.experimental.reset_memory_stats(f"GPU:{device}")


def is_exact():
    """Whether memory is counted as tensors need it, without TensorFlow's allocator."""
    return os.environ.get(EXACT, "0") != "0"


def stop(device, is_stopped=True):
    """From now on the device does nothing: kernels and copies wait."""
    _library.fake_gpu_stop(device, int(is_stopped))


def limit(device, num_bytes):
    """From now on the device can have no more memory than this."""
    _library.fake_gpu_limit(device, ctypes.c_int64(num_bytes))


def delay_copies(microseconds):
    """Each copy takes so much longer."""
    _library.fake_gpu_copy_delay(ctypes.c_int64(microseconds))


def start_trace():
    _library.fake_gpu_trace(1)


def stop_trace():
    """What happened since `start_trace`, by time."""
    _library.fake_gpu_trace(0)
    records = []
    name, numbers = ctypes.create_string_buffer(100), (ctypes.c_int64 * 4)()
    for i in range(_library.fake_gpu_trace_size()):
        _library.fake_gpu_trace_read(ctypes.c_int64(i), name, len(name), numbers)
        records.append(Record(name.value.decode(), *numbers))
    return sorted(records, key=lambda record: record.begin)
