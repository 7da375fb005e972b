"""The fake GPUs themselves: what they count, and the faults that they have when asked."""

import pytest

from tests.gpu import fake_gpu, processes

pytestmark = processes.needs_fake_gpus

BEGIN = """
import json
import tensorflow as tf
"""


def test_copies_are_counted_where_they_happen():
    found = processes.result(
        BEGIN
        + """
with tf.device("GPU:0"):
    a = tf.Variable(tf.zeros([1000]))
before = fake_gpu.counts(0), fake_gpu.counts(1)
with tf.device("GPU:1"):
    b = tf.identity(a.read_value())
with tf.device("CPU:0"):
    c = tf.identity(b)
after = fake_gpu.counts(0), fake_gpu.counts(1)
print(json.dumps([{k: y[k] - x[k] for k in x} for x, y in zip(before, after)]))
""",
        num_gpus=2,
    )
    assert sum(device["between_bytes"] for device in found) == 4000
    assert [device["to_host_bytes"] for device in found] == [0, 4000]
    assert [device["to_device_bytes"] for device in found] == [0, 0]


def test_copies_run_apart_from_the_host_and_kernels_wait_for_them():
    found = processes.result(
        BEGIN
        + """
with tf.device("CPU:0"):
    x = tf.ones([1 << 20])
with tf.device("GPU:0"):
    w = tf.ones([])

@tf.function
def send(x):
    with tf.device("CPU:0"):
        host = tf.math.cumsum(x)
    with tf.device("GPU:0"):
        return host + w

send(x)
fake_gpu.delay_copies(300_000)
fake_gpu.start_trace()
y = send(x)
value = float(y[0])
records = fake_gpu.stop_trace()
(copy,) = [r for r in records if r.what == "to device" and r.num_bytes == 4 << 20]
kernel = next(r for r in records if r.what == "AddV2" and r.begin > copy.begin)
print(json.dumps([value, copy.end - copy.begin, kernel.begin - copy.end]))
""",
        num_gpus=1,
    )
    value, copied, waited = found
    assert value == 2.0
    assert copied >= 0.3e9
    assert waited >= 0


@pytest.mark.parametrize("by", ["environment", pytest.param("order", marks=pytest.mark.slow)])
def test_memory_is_limited_on_one_device(by):
    more = {"KERASDIST_FAKE_GPU_MB_1": "50"} if by == "environment" else {}
    found = processes.result(
        BEGIN
        + f"""
if {by == "order"}:
    fake_gpu.limit(1, 50 << 20)
names = []
for i in range(2):
    try:
        with tf.device(f"GPU:{{i}}"):
            tf.zeros([100 << 18]) + 1
    except tf.errors.ResourceExhaustedError as error:
        names.append([i, f"GPU:{{i}}" in str(error)])
print(json.dumps(names))
""",
        num_gpus=2,
        **more,
    )
    assert found == [[1, True]]


def test_a_stopped_device_does_nothing():
    found = processes.result(
        BEGIN
        + """
import threading
def work(i):
    with tf.device(f"GPU:{i}"):
        return tf.reduce_sum(tf.ones([3]) * 2)
compiled = [tf.function(lambda i=i: work(i)) for i in range(2)]
for each in compiled:
    each()
fake_gpu.stop(1)
done = []
def use(i):
    compiled[i]()
    done.append(i)
for i in range(2):
    threading.Thread(target=use, args=(i,), daemon=True).start()
import time
time.sleep(2)
print(json.dumps(done), flush=True)
import os
os._exit(0)
""",
        num_gpus=2,
    )
    assert found == [0]


def test_reductions_in_different_orders_are_an_error():
    found = processes.result(
        BEGIN
        + """
@tf.function
def reduce(swapped):
    results = []
    for i in range(2):
        with tf.device(f"GPU:{i}"):
            names = ["a", "b"] if i == 0 or not swapped else ["b", "a"]
            last = tf.no_op()
            for name in names:
                with tf.control_dependencies([last]):
                    out = tf.raw_ops.NcclAllReduce(
                        input=tf.ones([2]),
                        reduction="sum",
                        num_devices=2,
                        shared_name=name + str(swapped),
                    )
                last = out.op
                results.append(out)
    return results
totals = [r.numpy().tolist() for r in reduce(False)]
try:
    reduce(True)
    error = ""
except tf.errors.InternalError as raised:
    error = str(raised)
print(json.dumps([totals, "different orders" in error]))
""",
        num_gpus=2,
    )
    assert found == [[[2.0, 2.0]] * 4, True]


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "g++" in fake_gpu.why_not()
    with pytest.raises(fake_gpu.CannotBuildError, match=r"need g\+\+"):
        fake_gpu.build()
