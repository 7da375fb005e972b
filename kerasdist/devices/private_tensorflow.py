"""All private TensorFlow names that kerasdist uses. Each one has a test: look here if TensorFlow
changes.

There is no public name for any of these (TF 2.21).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2, trackable_object_graph_pb2
from tensorflow.python.client import device_lib
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context
from tensorflow.python.framework import config
from tensorflow.python.ops import random_ops
from tensorflow.python.util import _pywrap_util_port

# The module whose functions TensorFlow itself calls to draw numbers, with those that keep a state,
# and what the same function is called in `tf.random`.
RANDOM_FUNCTIONS = random_ops
RANDOM_NAMES = {
    "random_normal": "normal",
    "truncated_normal": "truncated_normal",
    "random_uniform": "uniform",
    "random_gamma": "gamma",
    "random_shuffle": "shuffle",
}

# A graph that may use tensors from outside of it, and lists them as `captures`.
FunctionGraph = tf.__internal__.FuncGraph


def has_started() -> bool:
    """Whether TensorFlow has started in this process. Its devices are fixed from then on."""
    return context.context()._context_handle is not None


def own_devices(kind: str) -> list[tf.config.LogicalDevice]:
    """The logical devices of this process; starts TensorFlow.

    In a cluster, `tf.config.list_logical_devices` lists the devices of all workers.
    """
    devices = tf.config.list_logical_devices(kind)
    server = context.context().get_server_def() or context.context()._collective_ops_server_def
    if server is None:
        return devices
    own = f"/job:{server.job_name}/replica:0/task:{server.task_index}/"
    return [device for device in devices if device.name.startswith(own)]


def memory_limits() -> dict[str, int]:
    """The memory that TensorFlow may use on each device of this process, in bytes."""
    found = device_lib.list_local_devices()
    return {device.name.removeprefix("/device:"): device.memory_limit for device in found}


def uses_onednn() -> bool:
    """Whether TensorFlow runs CPU operations with oneDNN."""
    return _pywrap_util_port.IsMklEnabled()


def is_op_determinism_enabled() -> bool:
    """Whether TensorFlow was told to use deterministic operations only."""
    return config.is_op_determinism_enabled()


@contextlib.contextmanager
def without_memory_optimizer() -> Iterator[None]:
    """Switches off the part of Grappler that orders operations by their memory.

    It turns a large `AddN` into additions in order of arrival (TF 2.21).
    `tf.config.optimizer.set_experimental_options` has no name for it.
    """
    own = context.context()
    before = own._config
    changed = config_pb2.ConfigProto()
    if before is not None:
        changed.CopyFrom(before)
    off = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    changed.graph_options.rewrite_options.memory_optimization = off
    own._config, own._thread_local_data.function_call_options = changed, None
    try:
        yield
    finally:
        own._config, own._thread_local_data.function_call_options = before, None


def silence_retracing_warning(function: Any) -> None:
    """Turns off TensorFlow's warning about a `tf.function` that is traced often."""
    function._omit_frequent_tracing_warning = True


def seeds_of_operations() -> random.Random | None:
    """Draws the seeds of random operations outside of functions; None without a global seed."""
    return getattr(context.context(), "_rng", None)


def forget_kernels() -> None:
    """Forgets the kernels of random operations: each counts how often it was called."""
    context.context().clear_kernel_cache()


def inputs_of(dataset: tf.data.Dataset) -> Sequence[tf.data.Dataset]:
    """The datasets that a `tf.data` dataset reads from."""
    return dataset._inputs()


def id_of(variable: tf.Variable) -> str:
    """The key by which TensorFlow's optimizers know a variable."""
    return variable._unique_id


def read_trace(content: bytes) -> Any:
    """The profiler's `XSpace` in the content of an `.xplane.pb` file."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(content)
    return space


def names_in_object_graph(content: bytes) -> dict[str, str]:
    """The name that each variable of a TensorFlow 2 checkpoint had in Python, by its key there."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    attributes = [attribute for node in graph.nodes for attribute in node.attributes]
    return {a.checkpoint_key: a.full_name for a in attributes if a.full_name}


def collect_graphs() -> None:
    """From now on, TensorFlow keeps the graph of every function that runs, with its devices."""
    context.context().enable_graph_collection()


def collected_nodes() -> Iterator[tf.compat.v1.NodeDef]:
    """The operations of all graphs since `collect_graphs`; each names its device."""
    for function in context.context().export_run_metadata().function_graphs:
        for graph in function.partition_graphs:
            yield from graph.node


def stop_collecting_graphs() -> None:
    context.context().disable_graph_collection()


def watch_workers(num_workers: int, heartbeat_seconds: float, start_seconds: float) -> None:
    """Turns on heartbeats between workers: a dead or unreachable worker fails their collectives.

    Args:
        num_workers: The number of workers. Worker 0 collects the heartbeats.
        heartbeat_seconds: A worker that is silent for so long is lost.
        start_seconds: All workers must have joined after this time.
    """
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=num_workers)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=max(1, int(heartbeat_seconds * 1000)),
        cluster_register_timeout_in_ms=int(start_seconds * 1000),
        coordinated_jobs=[job],
    )


def fail_other_workers(message: str) -> None:
    """Makes what the other workers wait for raise an error with this message."""
    context.context().report_error_to_cluster(tf.errors.ABORTED, message)


def gather_rows(strategy: tf.distribute.Strategy, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The rows of all replicas on each replica. Called where all replicas meet (`merge_call`).

    `ReplicaContext.all_gather` does the same, but TensorFlow keeps its gradient function for ever.
    """
    return strategy.extended._batch_gather_to([(value, value) for value in values], axis=0)


@contextlib.contextmanager
def chosen_worker_devices(choose: Callable[[], tuple[str, ...]]) -> Iterator[None]:
    """`MultiWorkerMirroredStrategy` takes the devices that `choose` names, when made in this block.

    By itself it takes all GPUs, or only one CPU even if there are more.

    Args:
        choose: Returns names like `("GPU:0", "GPU:1")`. Called once TensorFlow has started, which
            only then knows its devices.
    """

    def local_devices(_strategy: Any, _resolver: Any, worker: str) -> tuple[tuple[str, ...], str]:
        names = choose()
        return tuple(f"{worker}/device:{name}" for name in names), names[0].split(":")[0]

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    original = extended._initialize_local_devices
    extended._initialize_local_devices = local_devices
    try:
        yield
    finally:
        extended._initialize_local_devices = original
