"""Each private TensorFlow name still does what kerasdist needs."""

import logging
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

from kerasdist.devices import private_tensorflow
from kerasdist.devices.ports import free_ports
from tests.devices.real_workers import environment, finish

STARTED = """
from kerasdist.devices import private_tensorflow
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context
print(private_tensorflow.has_started())
tf.config.list_logical_devices()
print(private_tensorflow.has_started())
"""


def test_whether_tensorflow_has_started():
    done = subprocess.run(
        [sys.executable, "-c", STARTED],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]


ONEDNN = """
from kerasdist.devices import private_tensorflow
print(private_tensorflow.uses_onednn())
"""


def test_whether_onednn_is_used():
    assert isinstance(private_tensorflow.uses_onednn(), bool)
    done = subprocess.run(
        [sys.executable, "-c", ONEDNN],
        env=environment(TF_ENABLE_ONEDNN_OPTS="0"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("is_silenced", [False, True])
def test_the_warning_about_retracing_is_silenced(is_silenced, caplog):
    function = tf.function(lambda x: x)
    if is_silenced:
        private_tensorflow.silence_retracing_warning(function)
    logger = logging.getLogger("tensorflow")
    caplog.set_level(logging.WARNING, "tensorflow")
    logger.addHandler(caplog.handler)
    try:
        for i in range(8):
            function(i)  # Each Python number is traced again.
    finally:
        logger.removeHandler(caplog.handler)
    assert ("triggered tf.function retracing" in caplog.text) is not is_silenced


def test_the_inputs_of_a_dataset():
    numbers = tf.data.Dataset.range(3)
    assert [kind(d) for d in private_tensorflow.inputs_of(numbers.batch(2))] == [kind(numbers)]
    assert len(private_tensorflow.inputs_of(tf.data.Dataset.zip(numbers, numbers))) == 2
    assert len(private_tensorflow.inputs_of(numbers)) == 0


def kind(dataset):
    return type(dataset).__name__


def test_ids_of_variables_differ():
    first, second = tf.Variable(1.0, name="same"), tf.Variable(1.0, name="same")
    assert private_tensorflow.id_of(first) == private_tensorflow.id_of(first)
    assert private_tensorflow.id_of(first) != private_tensorflow.id_of(second)


def test_a_trace_of_the_profiler_is_read(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    tf.linalg.matmul(tf.ones((8, 8)), tf.ones((8, 8))).numpy()
    tf.profiler.experimental.stop()
    (path,) = tmp_path.rglob("*.xplane.pb")
    space = private_tensorflow.read_trace(path.read_bytes())
    assert any(line.events for plane in space.planes for line in plane.lines)


def test_collected_nodes_name_their_devices():
    @tf.function
    def added(x):
        with tf.device("CPU:1"):
            return tf.cumsum(x)

    private_tensorflow.collect_graphs()
    try:
        added(tf.ones((2, 2)))
        nodes = list(private_tensorflow.collected_nodes())
    finally:
        private_tensorflow.stop_collecting_graphs()
    devices = {node.device for node in nodes if node.op == "Cumsum"}
    assert [device.rpartition("device:")[2] for device in devices] == ["CPU:1"]
    added(tf.ones((3, 3)))  # Not collected any more.
    assert not list(private_tensorflow.collected_nodes())


WORKER = """
import os, sys, time
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context
from kerasdist.devices import private_tensorflow

index, hosts = int(sys.argv[1]), sys.argv[2].split(",")
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
private_tensorflow.watch_workers(2, heartbeat_seconds=20, start_seconds=60)
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": hosts}), task_type="worker", task_id=index, rpc_layer="grpc"
)
with private_tensorflow.chosen_worker_devices(lambda: ("CPU:1", "CPU:2")):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
print("devices", [name[-5:] for name in strategy.extended.worker_devices], flush=True)
own = [device.name for device in private_tensorflow.own_devices("CPU")]
print("own", len(tf.config.list_logical_devices("CPU")), len(own), flush=True)
print("of this task", all(f"/task:{index}/" in name for name in own), flush=True)

@tf.function
def total():
    add = lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
    return strategy.reduce("mean", strategy.run(add), axis=None)

print("replicas", float(total()), flush=True)
if index:
    time.sleep(2)  # Until the other worker waits: only then does its error have the message.
    private_tensorflow.fail_other_workers("the disk is full")
    os.read(0, 1)
else:
    try:
        total()
    except tf.errors.OpError as error:
        print("told", "the disk is full" in str(error), flush=True)
os._exit(0)
"""


def test_workers_with_chosen_devices_tell_each_other_of_errors():
    hosts = ",".join(f"localhost:{port}" for port in free_ports(2))
    own = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(i), hosts],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    first, second = (finish(process, 120)[0].splitlines() for process in own)
    expected = ["devices ['CPU:1', 'CPU:2']", "own 6 3", "of this task True", "replicas 4.0"]
    starts = ("devices", "own", "of", "replicas", "told")
    assert [line for line in first if line.startswith(starts)] == [*expected, "told True"]
    assert [line for line in second if line.startswith(starts)] == expected


def test_a_process_without_a_cluster_owns_all_devices():
    assert len(private_tensorflow.own_devices("CPU")) == 6


DETERMINISM = """
from kerasdist.devices import private_tensorflow
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context
print(private_tensorflow.is_op_determinism_enabled())
tf.config.experimental.enable_op_determinism()
print(private_tensorflow.is_op_determinism_enabled())
"""


def test_whether_operations_are_deterministic():
    done = subprocess.run(
        [sys.executable, "-c", DETERMINISM],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]


def test_the_memory_of_devices_is_known():
    limits = private_tensorflow.memory_limits()
    assert limits["CPU:0"] > 0
    assert set(limits) <= {
        d.name.partition("/device:")[2] for d in tf.config.list_logical_devices()
    }


@pytest.mark.parametrize("name", private_tensorflow.RANDOM_NAMES)
def test_functions_that_draw_have_the_arguments_of_their_public_name(name):
    own = getattr(private_tensorflow.RANDOM_FUNCTIONS, name)
    public = getattr(tf.random, private_tensorflow.RANDOM_NAMES[name])
    assert own is public


def test_tensorflow_draws_for_images_with_these_functions(monkeypatch):
    called = []

    def recorded(name, original):
        return lambda *args, **kwargs: called.append(name) or original(*args, **kwargs)

    module = private_tensorflow.RANDOM_FUNCTIONS
    for name in private_tensorflow.RANDOM_NAMES:
        monkeypatch.setattr(module, name, recorded(name, getattr(module, name)))
    image = tf.ones((4, 4, 3))
    tf.image.random_flip_left_right(image)
    tf.image.random_brightness(image, 0.1)
    assert called == ["random_uniform"] * 2


def test_seeds_of_operations_come_again():
    tf.random.set_seed(3)
    generator = private_tensorflow.seeds_of_operations()
    state = generator.getstate()
    first = tf.random.normal((2,)).numpy().tolist()
    generator.setstate(state)
    private_tensorflow.forget_kernels()
    assert tf.random.normal((2,)).numpy().tolist() == first


def test_the_names_in_an_object_graph(tmp_path):
    variable = tf.Variable([1.0], name="conv1/kernel")
    path = tf.train.Checkpoint(variable=variable).save(tmp_path / "model.ckpt")
    content = tf.train.load_checkpoint(path).get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
    names = private_tensorflow.names_in_object_graph(content)
    assert names["variable/.ATTRIBUTES/VARIABLE_VALUE"] == "conv1/kernel"
    with pytest.raises(ValueError, match="Error parsing"):
        private_tensorflow.names_in_object_graph(content[:-3])


def test_the_memory_optimizer_is_off_within_the_block_only():
    def memory_optimization():
        options = context.context().function_call_options.config_proto_serialized
        found = config_pb2.ConfigProto.FromString(options)
        return found.graph_options.rewrite_options.memory_optimization

    before = memory_optimization()
    with private_tensorflow.without_memory_optimizer():
        assert memory_optimization() == rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    assert memory_optimization() == before != rewriter_config_pb2.RewriterConfig.NO_MEM_OPT


def test_a_graph_lists_the_tensors_that_it_takes_from_outside():
    graph, outside = private_tensorflow.FunctionGraph("test"), tf.constant(1.0)
    with graph.as_default():
        tf.constant(2.0) + 3.0
        assert not graph.captures
        tf.constant(2.0) + outside
    assert graph.captures[0][0] is outside
