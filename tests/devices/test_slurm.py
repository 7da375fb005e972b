"""A real Slurm job starts a run. Skipped without Slurm and munge."""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from kerasdist.devices.ports import free_ports
from tests.devices.real_workers import FIT, environment, result, trained


@pytest.mark.slow
def test_a_slurm_job_starts_a_run(recipe, on_one_device, tmp_path):
    """One node and two tasks, on a Slurm of its own."""
    with slurm_on_loopback(tmp_path / "slurm") as environ:
        one = on_one_device(tmp_path / "one", "--epochs", "2")
        run = tmp_path / "run"
        job = subprocess.run(
            [
                *("srun", "--ntasks", "2", "--overcommit"),
                *(sys.executable, "-m", "kerasdist", "launch"),
                *("fit", str(recipe), *FIT, "--epochs", "2", "--run-dir", str(run)),
            ],
            env=environment(**environ),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        assert trained(run) == one
        assert result(run)["devices"] == ["worker 0 CPU:0", "worker 1 CPU:0"]


def program(name):
    found = shutil.which(name) or shutil.which(f"{name}-wlm")  # Debian's, without its alternatives
    if found is None:
        pytest.skip(f"Slurm and munge are not installed: there is no {name}")
    return found


@contextmanager
def slurm_on_loopback(folder):
    """Munge, a controller and one node, all on this machine: what `srun` needs in its environment.

    The packages slurmctld, slurmd, slurm-client and munge must be there; nothing runs before.
    """
    if os.geteuid():
        pytest.skip("needs root: Slurm's daemons start jobs as their users")
    munged, controller, node = (program(name) for name in ("munged", "slurmctld", "slurmd"))
    program("srun")
    folder.mkdir()
    socket_path = f"/tmp/kerasdist-munge-{os.getpid()}"  # A long path would not fit a socket.
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    plugins = next((Path(controller).parents[1] / "lib").glob("*/slurm-wlm"), None)
    ports = free_ports(2)
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
        "SlurmUser": "root",
        "SlurmctldPort": ports[0],
        "SlurmdPort": ports[1],
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={socket_path}",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/linear",
        "SchedulerType": "sched/builtin",
        "ReturnToService": 2,
        "NodeName": f"localhost NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 CPUs=2",
        "PartitionName": "main Nodes=localhost Default=YES State=UP",
        **({"PluginDir": plugins} if plugins is not None else {}),
    }
    (folder / "slurm.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    environ = {"SLURM_CONF": str(folder / "slurm.conf")}
    keeper = [munged, "-F", "-f", "--key-file", str(key), "--socket", socket_path]
    keeper += [f"--{name}-file={folder / name}" for name in ("log", "pid", "seed")]
    step = shutil.which("slurmstepd") or shutil.which("slurmstepd-wlm")
    own = []
    try:
        for words in (keeper, [controller, "-D"], [node, "-D", *(("-d", step) if step else ())]):
            log = (folder / f"{Path(words[0]).name}.log").open("w")
            own.append(
                subprocess.Popen(words, env={**os.environ, **environ}, stdout=log, stderr=log)
            )
            log.close()
            time.sleep(1)
        words = ["srun", "--immediate=20", "true"]
        tried = subprocess.run(
            words, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
        )
        if tried.returncode:
            logs = "".join(path.read_text()[-600:] for path in folder.glob("*.log"))
            pytest.skip(f"Slurm does not start here: {tried.stderr}{logs}")
        yield environ
    finally:
        for process in reversed(own):
            process.terminate()
            process.wait(20)
