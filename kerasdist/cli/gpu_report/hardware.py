"""The checks of `kerasdist doctor --gpu` that train nothing: GPUs, copies, NCCL, numbers, XLA."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.cli.findings import Finding
from kerasdist.devices import gpus

# The limit of the check "memory limit", in MB.
LIMIT = 512
_COPIED = 64 * 2**20
_SEND = "Send this report: docs/gpus.md says where to."
_LIBRARIES = ("cuda-runtime", "cublas", "cudnn", "nccl")


def not_here(name: str, reason: str, fix: str) -> Finding:
    """Something that this machine does not have."""
    return Finding(name, f"not available here: {reason}", fix, is_needed=False)


def capabilities() -> list[tuple[int, int] | None]:
    """The compute capability of each GPU; None for devices that are not NVIDIA's."""
    details = [tf.config.experimental.get_device_details(gpu) for gpu in _visible()]
    return [detail.get("compute_capability") for detail in details]


def are_nvidia() -> bool:
    """Whether all GPUs are NVIDIA's. Others are plug-in devices, without CUDA's libraries."""
    return None not in capabilities()


def _visible() -> list[Any]:
    return tf.config.get_visible_devices("GPU")


def check_libraries() -> Iterator[Finding]:
    """The driver, and CUDA and cuDNN: what TensorFlow was built with, and what is installed."""
    built = tf.sysconfig.get_build_info()
    cuda, cudnn = built.get("cuda_version"), built.get("cudnn_version")
    wanted = f"built with CUDA {cuda} and cuDNN {cudnn}" if cuda else "built without CUDA"
    found = {}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(f"nvidia-{library}-cu12")
        except metadata.PackageNotFoundError:
            continue
    driver = _ask_driver("driver_version")
    installed = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding(
        "driver and libraries",
        f"driver {driver[0] if driver else 'not known (nvidia-smi does not tell)'}; TensorFlow is "
        f"{wanted}; from pip: {installed or 'no CUDA libraries'}",
        values={"driver": driver[:1], "built": dict(built), "installed": found},
    )


def _ask_driver(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def check_gpus() -> Iterator[Finding]:
    """Names, compute capabilities and memory; GPUs that are older or newer than the wheel."""
    built = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", [])
    numbers = [int(text.rpartition("_")[2]) for text in built]
    sizes = gpus.visible_memory()
    found, odd = [], []
    for i, (gpu, capability) in enumerate(zip(_visible(), capabilities(), strict=True)):
        name = tf.config.experimental.get_device_details(gpu).get("device_name", "unknown")
        version = None if capability is None else ".".join(map(str, capability))
        total = sizes[i] if i < len(sizes) else None
        found.append({"name": name, "compute_capability": version, "memory": total})
        if capability is not None and numbers:
            number = 10 * capability[0] + capability[1]
            if number < min(numbers):
                odd.append(f"GPU:{i} ({version}) is older than TensorFlow's kernels")
            elif number >= max(numbers) + 10:
                odd.append(f"GPU:{i} ({version}) is newer than TensorFlow's kernels")
    text = "; ".join(
        f"GPU:{i} {gpu['name']}, compute capability {gpu['compute_capability'] or 'not known'}, "
        + (f"{gpu['memory'] / 2**30:.1f} GB" if gpu["memory"] else "memory not known")
        for i, gpu in enumerate(found)
    )
    if odd:
        fix = (
            f"{'; '.join(odd)}, which are made for {', '.join(built)}. docs/gpus.md says what that "
            "means. If checks below fail, this is the likely reason."
        )
        yield Finding("GPUs", text, fix, is_needed=False, values={"gpus": found})
    else:
        yield Finding("GPUs", text, values={"gpus": found})


def check_memory() -> Iterator[Finding]:
    """TensorFlow counts the memory in use, and takes it only as it is needed."""
    tf.config.experimental.reset_memory_stats("GPU:0")
    before = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    with tf.device("GPU:0"):
        kept = tf.zeros((_COPIED // 4,))
        kept[0].numpy()
    added = tf.config.experimental.get_memory_info("GPU:0")["peak"] - before
    used = _ask_driver("memory.used")
    text = f"64 MB add {added / 2**20:.0f} MB to the peak"
    if used:
        text += f"; nvidia-smi: {', '.join(used)} in use, with memory growth"
    fix = None if 0.9 * _COPIED < added < 2 * _COPIED else _SEND
    yield Finding("memory", text, fix, values={"added": added, "used": used})


def check_memory_limit() -> Iterator[Finding]:
    """`--memory-limit` holds. TensorFlow must have been started with `LIMIT`."""
    name = "memory limit"
    if not are_nvidia():
        yield not_here(name, "plug-in devices have none", "It needs NVIDIA GPUs.")
        return
    try:
        with tf.device("GPU:0"):
            tf.zeros((2 * LIMIT * 2**20 // 4,))[0].numpy()
    except tf.errors.ResourceExhaustedError:
        yield Finding(name, f"with a limit of {LIMIT} MB, {2 * LIMIT} MB are refused")
        return
    yield Finding(name, f"{2 * LIMIT} MB fit into a limit of {LIMIT} MB", _SEND)


def check_copies() -> Iterator[Finding]:
    """Copies 64 MB from the host to each GPU and back, and between each two GPUs."""
    names = [f"GPU:{i}" for i in range(len(_visible()))]
    random = np.random.default_rng(0).integers(0, 255, _COPIED // 4, dtype=np.int32)
    with tf.device("CPU:0"):
        host = tf.constant(random.view(np.float32))
    speeds: dict[str, float] = {}
    wrong = []
    on_device = {}
    for name in names:
        on_device[name], speeds[f"host to {name}"] = _copied(host, name)
    for source, target in itertools.permutations(names, 2):
        copy, speeds[f"{source} to {target}"] = _copied(on_device[source], target)
        if not np.array_equal(copy.numpy().view(np.int32), random):
            wrong.append(f"{source} to {target}")
    for name in names:
        back, speeds[f"{name} to host"] = _copied(on_device[name], "CPU:0")
        if not np.array_equal(back.numpy().view(np.int32), random):
            wrong.append(f"host to {name} and back")
    kinds = {
        "host to GPU": [s for pair, s in speeds.items() if pair.startswith("host")],
        "GPU to host": [s for pair, s in speeds.items() if pair.endswith("host")],
        "GPU to GPU": [s for pair, s in speeds.items() if "host" not in pair],
    }
    text = ", ".join(
        f"{kind} {min(rates):.1f} to {max(rates):.1f} GB/s"
        for kind, rates in kinds.items()
        if rates
    )
    values = {"gigabytes_per_second": speeds}
    if wrong:
        text = f"wrong bytes after copying {', '.join(wrong)}"
        yield Finding("copies of 64 MB", text, _SEND, values=values)
    else:
        yield Finding("copies of 64 MB", text, values=values)


def _copied(tensor: tf.Tensor, device: str) -> tuple[tf.Tensor, float]:
    """The tensor on another device, and the GB/s of the fastest of four copies."""
    seconds = []
    for _ in range(4):
        with tf.device(tensor.device):
            # TensorFlow keeps the copies of a tensor: only a new tensor is copied again.
            new = tf.raw_ops.DeepCopy(x=tensor)
        _wait()
        began = time.perf_counter()
        with tf.device(device):
            copy = tf.identity(new)
        _wait()
        seconds.append(time.perf_counter() - began)
    return copy, _COPIED / min(seconds) / 1e9


def _wait() -> None:
    tf.test.experimental.sync_devices()


def check_nccl() -> Iterator[Finding]:
    """Adds up 64 MB per GPU with NCCL. Workers use it; one process does not."""
    num_gpus = len(_visible())
    if not are_nvidia():
        yield not_here("NCCL", "plug-in devices have none", "It needs NVIDIA GPUs.")
        return
    if num_gpus < 2:
        yield not_here("NCCL", "there is one GPU", "It needs two GPUs.")
        return
    strategy = tf.distribute.MirroredStrategy(
        [f"GPU:{i}" for i in range(num_gpus)], tf.distribute.NcclAllReduce()
    )

    def one() -> Any:
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return context.all_reduce("sum", tf.fill((_COPIED // 4,), number + 1))

    add_up = tf.function(lambda: strategy.run(one))
    results = strategy.experimental_local_results(add_up())
    seconds = _fastest(add_up)
    expected = num_gpus * (num_gpus + 1) / 2
    right = all(bool(tf.reduce_all(result == expected)) for result in results)
    text = f"{num_gpus} GPUs add up 64 MB each in {seconds * 1000:.1f} ms"
    if not right:
        text += ", and the sum is wrong"
    yield Finding("NCCL", text, None if right else _SEND, values={"seconds": seconds})


def _fastest(function: Callable[[], Any], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        _wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def check_matmul() -> Iterator[Finding]:
    """Speed of matrix products by dtype, and what TF32 does to their exactness."""
    capability = capabilities()[0]
    has_tf32 = capability is not None and tuple(capability) >= (8, 0)
    was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    size = 4096 if are_nvidia() else 512
    teraflops, errors = {}, {}
    try:
        for name, dtype, tf32 in (
            ("float32", "float32", False),
            ("TF32", "float32", True),
            ("float16", "float16", False),
            ("bfloat16", "bfloat16", False),
        ):
            if name == "TF32" and not has_tf32:
                continue
            tf.config.experimental.enable_tensor_float_32_execution(tf32)
            teraflops[name], errors[name] = _matmul(size, dtype)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_enabled)
    values = {"size": size, "teraflops": teraflops, "largest_relative_errors": errors}
    text = ", ".join(f"{name} {speed:.3g} TFLOP/s" for name, speed in teraflops.items())
    is_exact = errors["float32"] < 1e-5
    yield Finding(f"matmul of {size}", text, None if is_exact else _SEND, values=values)
    if not has_tf32:
        fix = "Only NVIDIA GPUs from compute capability 8.0 (Ampere) on have it."
        yield not_here("TF32", "float32 has all of its 23 bits", fix)
        return
    yield Finding(
        "TF32",
        f"{'on' if was_enabled else 'off'} by default: float32 products read 10 of 23 bits. The "
        f"largest error is {errors['TF32']:.1e}, without TF32 {errors['float32']:.1e}",
    )


def _matmul(size: int, dtype: str) -> tuple[float, float]:
    """TFLOP/s, and the largest error relative to the largest number of the result."""
    random = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    with tf.device("GPU:0"):
        x = tf.cast(tf.constant(random), dtype)
        product = tf.matmul(x, x)
        seconds = _fastest(lambda: [tf.matmul(x, x) for _ in range(5)]) / 5
    rounded = tf.cast(x, tf.float64).numpy()
    expected = rounded[:8] @ rounded
    error = np.abs(tf.cast(product[:8], tf.float64).numpy() - expected).max()
    return 2 * size**3 / seconds / 1e12, float(error / np.abs(expected).max())


def check_xla() -> Iterator[Finding]:
    """XLA compiles a function for the GPU, and it agrees with the function itself."""
    if not gpus.has_xla():
        yield not_here("XLA", "it has no compiler for these devices", "`jit` stays off.")
        return

    def function(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.nn.gelu(tf.matmul(x, x, transpose_b=True)), axis=1)

    was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with tf.device("GPU:0"):
            x = tf.random.stateless_normal((256, 64), (1, 2))
            began = time.perf_counter()
            compiled = tf.function(function, jit_compile=True)(x).numpy()
            seconds = time.perf_counter() - began
            plain = function(x).numpy()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_enabled)
    gap = float(np.abs(compiled - plain).max() / np.abs(plain).max())
    text = f"compiles in {seconds:.1f} s; largest difference {gap:.1e}"
    fix = None if gap < 1e-4 else f"Train with `--jit off`. {_SEND}"
    yield Finding("XLA", text, fix, values={"seconds": seconds, "difference": gap})
