"""Which finder a `kerasdist fit` asks for, and the command to use afterwards. No TensorFlow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kerasdist.devices import cluster
from kerasdist.errors import KerasdistError

# By option: what runs, and whether it needs TensorFlow in this process.
_FINDERS = {
    "find_batch_size": ("finding.batch_size:find", False),
    "find_lr": ("finding.learning_rate:find", True),
}
FLAGS = tuple(f"--{name.replace('_', '-')}" for name in _FINDERS)


def finder(run: Mapping[str, Any]) -> tuple[str, bool] | None:
    """`(the function to call, whether it needs TensorFlow)`; None if no finder is asked for."""
    asked = [name for name in _FINDERS if run.get(name)]
    given = [f"--{name.replace('_', '-')}" for name in (*asked, "dry_run") if run.get(name)]
    if not asked:
        return None
    if len(given) > 1:
        raise KerasdistError(
            f"Received {' and '.join(f'`{flag}`' for flag in given)}. Expected one of them: each "
            "is a trial of its own. Start with `--find-batch-size`: the learning rate depends on "
            "the batch size."
        )
    if cluster.current() is not None:
        raise KerasdistError(
            f"Received `{given[0]}` on several workers. Expected one process: a finder tries "
            "things out on the devices of one machine. Leave out `launch`, and use what it finds "
            "with `launch`."
        )
    return _FINDERS[asked[0]]


def without(
    argv: Sequence[str], flags: Collection[str] = (), values: Collection[str] = ()
) -> list[str]:
    """Arguments without some `flags`, and without some options with their `values`.

    Example:
        >>> without(["r", "--json", "--seed", "3", "--keep=2"], ["--json"], ["--seed", "--keep"])
        ['r']
        >>> without(["r", "--freeze", "--epochs", "5"], values=["--freeze"])
        ['r', '--epochs', '5']
    """
    kept = []
    takes_values = False
    for argument in argv:
        name = argument.partition("=")[0].replace("_", "-")
        if takes_values and not _is_option(argument):
            continue
        takes_values = False
        if name in values and name.startswith("--"):
            takes_values = "=" not in argument
        elif argument.replace("_", "-") not in flags or not argument.startswith("-"):
            kept.append(argument)
    return kept


def _is_option(argument: str) -> bool:
    """Whether an argument is an option, and not a value such as -1."""
    return argument.startswith("-") and re.fullmatch(r"-[\d.].*", argument) is None


def with_values(argv: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Arguments in which options have other values.

    Example:
        >>> with_values(["r", "--seed", "3"], {"--seed": 4})
        ['r', '--seed', '4']
    """
    kept = without(argv, values=list(values))
    return [*kept, *(text for flag, value in values.items() for text in (flag, str(value)))]


def command(argv: Sequence[str]) -> str:
    """The `kerasdist fit` to use, without what only a trial needs."""
    return f"kerasdist fit {shlex.join(without(argv, (*FLAGS, '--json', '--quiet')))}"
