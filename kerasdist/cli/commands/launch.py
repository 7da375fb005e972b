"""`kerasdist launch`: its options, and which workers they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerasdist.cli import fit_arguments, options, script_arguments
from kerasdist.cli.parser import Option, Options
from kerasdist.devices import cluster
from kerasdist.devices.launcher import Start, supervise
from kerasdist.devices.ports import check_own_port
from kerasdist.errors import KerasdistError

_USAGE = "kerasdist launch [options] fit RECIPE"
_USAGE_OF_RUN = "kerasdist launch [options] run SCRIPT"


def _at_least(least: int, what: str = "a whole number") -> dict[str, Any]:
    return {"expected": f"{what} of at least {least}", "valid": lambda value: value >= least}


LAUNCH_OPTIONS: Options = {
    "workers": Option(
        int | None,
        None,
        "worker processes to start on this machine; they divide its GPUs",
        example="2",
        **_at_least(1),
    ),
    "hosts": Option(
        str | None,
        None,
        "addresses of all workers, a:2222,b:2222; the first one is the chief",
        example="a:2222,b:2222",
    ),
    "index": Option(int | None, None, "position of this machine in --hosts, from 0"),
    "max_restarts": Option(
        int,
        0,
        "how often to restart the workers from the last checkpoint when one is lost",
        example="3",
        **_at_least(0),
    ),
    "worker_timeout": Option(
        float,
        cluster.DEFAULT_TIMEOUT,
        "seconds until a worker that is missing, stopped or out of reach counts as lost",
        example="60",
        **_at_least(2, "a number of seconds"),
    ),
}


def launch(argv: list[str]) -> int:
    """`kerasdist launch [options] fit RECIPE [options]`, or `run SCRIPT` in place of `fit`."""
    own, command = _split(argv)
    values = options.parse_options(LAUNCH_OPTIONS, own, _USAGE)
    if not command or command[0] not in ("fit", "run"):
        received = repr(command[0]) if command else "no command"
        raise KerasdistError(
            f"Received {received} to launch. Expected `{_USAGE}` or `{_USAGE_OF_RUN}`. Only `fit` "
            "and `run` use several workers: put one of them after the options of launch."
        )
    start = _start_of(values)
    # Checked here, so that a mistake is printed once and not by every worker.
    if command[0] == "fit":
        devices = fit_arguments.parse_fit(command[1:], "kerasdist fit").run["devices"]
    else:
        devices = script_arguments.parse_run(command[1:]).options["devices"]
    return supervise(start, command, devices, values["max_restarts"])


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The options of launch, and the command after them."""
    rest = iter(range(len(argv)))
    known = {f"--{name.replace('_', '-')}" for name in LAUNCH_OPTIONS}
    for i in rest:
        if not argv[i].startswith("-"):
            return argv[:i], argv[i:]
        if argv[i].replace("_", "-") in known:
            next(rest, None)
    return argv, []


def _start_of(values: Mapping[str, Any]) -> Start:
    timeout = values["worker_timeout"]
    if values["hosts"] is None and values["index"] is not None:
        raise KerasdistError(
            f"Received `--index {values['index']}` without `--hosts`. Expected the addresses of "
            "all workers. Add for example `--hosts a:2222,b:2222`."
        )
    if values["workers"] is not None and values["hosts"] is not None:
        raise KerasdistError(
            "Received `--workers` and `--hosts`. Expected only one of them: `--workers` starts "
            "workers on this machine, `--hosts` lists the workers of several machines. To run "
            "several workers on one host, list it once per worker with different ports."
        )
    if values["workers"] is not None:
        return Start(timeout, num_local=values["workers"])
    if values["hosts"] is not None:
        chosen = cluster.from_hosts(values["hosts"], values["index"])
    elif (found := cluster.current()) is not None:
        chosen = found
    elif cluster.in_slurm():
        chosen = cluster.from_slurm()
    else:
        raise KerasdistError(
            "Cannot tell how many workers to start: there is neither `--workers` nor `--hosts`, no "
            "TF_CONFIG, and no Slurm task. Expected one of them. Add for example `--workers 2`."
        )
    check_own_port(chosen)
    return Start(timeout, chosen)
