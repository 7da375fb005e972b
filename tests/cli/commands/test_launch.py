"""`kerasdist launch`: mistakes in its options are found before a worker starts."""

import socket

import pytest

from kerasdist.devices import launcher


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fit", "cifar10"], "neither `--workers` nor `--hosts`"),
        (["--workers", "2"], "no command to launch"),
        (["--workers", "2", "evaluate", "runs/x"], "'evaluate' to launch"),
        (["--workers", "0", "fit", "cifar10"], "at least 1"),
        (["--worker", "2", "fit", "cifar10"], "Did you mean '--workers'"),
        (["--workers", "2", "--hosts", "a:1,b:1", "fit", "cifar10"], "`--workers` and `--hosts`"),
        (["--hosts", "a:1,b:1", "fit", "cifar10"], "without `--index`"),
        (["--index", "1", "fit", "cifar10"], "without `--hosts`"),
        (["--hosts", "a:1,b:1", "--index", "2", "fit", "cifar10"], "a number from 0 to 1"),
        (["--hosts", "a:1,b", "--index", "0", "fit", "cifar10"], "the address 'b'"),
        (["--workers", "2", "--worker-timeout", "1", "fit", "cifar10"], "at least 2"),
        (["--workers", "2", "fit", "cifar10", "--epoch", "2"], "Did you mean '--epochs'"),
        (["--workers", "2", "fit", "no/recipe"], "no/recipe"),
        (["--workers", "2", "run"], "The script is missing"),
        (["--workers", "2", "run", "--device", "2", "x.py"], "Did you mean '--devices'"),
        (["--workers", "2", "run", "no/script.py"], "'no/script.py' does not exist"),
    ],
)
def test_a_mistake_is_told_once_and_starts_nothing(argv, message, command, monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launcher, "WORKER", ["/nothing/is/started"])
    outcome = command("launch", *argv)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("kerasdist:") == 1


def test_a_port_that_is_taken_is_named(command):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = command(
            "launch", "--hosts", f"localhost:{port},b:1", "--index", "0", "fit", "cifar10"
        )
    assert outcome.code == 2
    assert "already in use" in outcome.err
