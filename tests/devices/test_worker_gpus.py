"""Workers with GPUs: what each takes and how they exchange, decided without a GPU."""

import pytest
import tensorflow as tf

from kerasdist.devices import cluster, gpu_shares, worker
from kerasdist.devices.cluster import Cluster
from kerasdist.devices.placement import place
from tests.devices import fake_gpus

FOUR = ["a", "b", "c", "d"]
WAYS = tf.distribute.experimental.CommunicationImplementation


def test_gpus_exchange_by_nccl_and_cpus_by_a_ring():
    assert worker.exchange_by("GPU").implementation == WAYS.NCCL
    assert worker.exchange_by("CPU").implementation == WAYS.RING


def test_workers_exchange_a_type_that_gpus_can_add():
    """TensorFlow does not add int32 on GPUs in collectives."""
    words = worker._as_words(b"kerasdist")
    assert words.dtype == worker._VECTOR.dtype == tf.int64
    assert words.tobytes()[:9] == b"kerasdist"


class Joined(Exception):
    """Instead of waiting for the other workers."""


@pytest.fixture
def join(monkeypatch):
    """Joins as worker 1 of two on this machine with four GPUs: what was set for the GPUs, the kind
    of devices that are exchanged, and their names."""
    done = fake_gpus.present(monkeypatch, 4)
    monkeypatch.setattr(gpu_shares, "machine_gpus", lambda: FOUR)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TF_CONFIG", Cluster(("a:1", "a:2"), 1).tf_config())
    found = []

    def started(chosen, kind, choose):
        found.extend([kind, choose()])
        raise Joined

    monkeypatch.setattr(worker, "Workers", started)

    def call(devices):
        with pytest.raises(Joined):
            place(devices)
        return done, *found

    return call


def test_a_program_with_tf_config_takes_its_share_of_the_gpus(join):
    done, kind, names = join("auto")
    assert (done.visible, kind, names) == ([2, 3], "GPU", ("GPU:0", "GPU:1"))


def test_a_worker_does_not_divide_what_its_launcher_gave_it(join, monkeypatch):
    monkeypatch.setenv(cluster.REPORT, "3")
    done, _, names = join("auto")
    assert (done.visible, len(names)) == ([0, 1, 2, 3], 4)


def test_a_worker_on_cpus_takes_no_gpu(join):
    done, kind, names = join("cpu:2")
    assert (kind, names) == ("CPU", ("CPU:0", "CPU:1"))
    assert done.growth == [0, 1, 2, 3]


def test_gpus_that_the_program_chose_stay_as_they_are(join):
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[1:2], "GPU")
    done, _, names = join("auto")
    assert (done.visible, names) == ([1], ("GPU:0",))
