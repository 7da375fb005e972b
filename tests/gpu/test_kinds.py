"""Models of many kinds: the same maths and the same bits on 1, 2 and 4 GPUs and on workers."""

import json

import pytest

from kerasdist.devices.cluster import Cluster
from kerasdist.devices.ports import free_ports
from tests.gpu import kinds, processes

pytestmark = processes.needs_fake_gpus
QUICK = ["mean_iou", "large_float16", "strings"]
# Rounding of the policy, in a training of six steps with Adam.
CLOSE = {"float64": 1e-9, "mixed_float16": 2e-2, "mixed_bfloat16": 0.1, "large_float16": 2e-2}


def check(reports):
    for report in reports:
        assert len(set(report["shas"].values())) == 1, report
        for away in report["away"].values():
            assert away <= CLOSE.get(report["kind"], 2e-5), report


def test_quick_kinds_on_1_2_and_4_gpus():
    found = processes.run(["-m", "tests.gpu.kinds", *QUICK], num_gpus=4)
    check(json.loads(line) for line in found)


def on_workers(names, tmp_path, num_gpus):
    hosts = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    asked = tmp_path / "nccl"
    own = [
        processes.start(
            ["-m", "tests.gpu.kinds", *names],
            num_gpus,
            TF_CONFIG=Cluster(hosts, i).tf_config(),
            KERASDIST_FAKE_NCCL=str(asked),
            CUDA_VISIBLE_DEVICES=",".join(str(i * num_gpus + j) for j in range(num_gpus)),
        )
        for i in range(2)
    ]
    found = [[json.loads(line) for line in processes.lines(process)] for process in own]
    assert set(asked.read_text().splitlines()) == {"GPU NCCL"}
    assert found[0] == found[1]
    return found[0]


@pytest.mark.slow
def test_two_workers_with_two_gpus_each_train_the_bits_of_one_process(tmp_path):
    alone = processes.run(["-m", "tests.gpu.kinds", "mean_iou"], num_gpus=4)
    shas = set(json.loads(alone[0])["shas"].values())
    (report,) = on_workers(["mean_iou"], tmp_path, 2)
    assert set(report["shas"].values()) == shas


@pytest.mark.slow
def test_all_kinds_everywhere(tmp_path):
    found = [json.loads(line) for line in processes.run(["-m", "tests.gpu.kinds"], num_gpus=4)]
    assert len(found) == len(kinds.KINDS)
    check(found)
    for num_gpus in (1, 2):
        for alone, both in zip(found, on_workers([], tmp_path, num_gpus), strict=True):
            assert set(alone["shas"].values()) == set(both["shas"].values()), both
