"""Shell completion: prints a shell's script, and answers it when somebody presses Tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from kerasdist.cli import run_options, script_arguments
from kerasdist.cli.commands import launch, new, runs
from kerasdist.cli.options import (
    BENCH_OPTIONS,
    DOCTOR_OPTIONS,
    OUTPUT_OPTIONS,
    RUN_OPTIONS,
    VERIFY_OPTIONS,
    parse_options,
)
from kerasdist.cli.parser import Option, Options, choices
from kerasdist.cli.settings import recipe_groups
from kerasdist.cli.shells import SCRIPTS
from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes import places
from kerasdist.runs.file_names import CONFIG

_PROG = "kerasdist completion SHELL"


def print_script(argv: list[str]) -> int:
    """`kerasdist completion SHELL`: prints the script of a shell."""
    if not argv or argv[0].startswith("-"):
        parse_options({}, argv, _PROG)  # Prints the help, or refuses a wrong option.
        raise KerasdistError(
            f"The shell is missing. Expected one of {', '.join(SCRIPTS)}. Name yours, for example "
            "`kerasdist completion bash`."
        )
    shell, *rest = argv
    parse_options({}, rest, _PROG)
    if shell not in SCRIPTS:
        raise KerasdistError(
            f"Unknown shell {shell!r}. Expected one of {', '.join(SCRIPTS)}."
            f"{closest(shell, SCRIPTS)} Name your shell."
        )
    print(SCRIPTS[shell], end="")
    return 0


def print_candidates(words: Sequence[str]) -> int:
    """Prints what the last word may become, one candidate per line.

    Args:
        words: The words after `kerasdist`; the last one is unfinished.
    """
    *before, current = words or [""]
    try:
        found = _candidates(before, current)
    except (KerasdistError, OSError):
        found = []  # An unfinished line is often wrong, and nobody reads errors here.
    print(*(each for each in found if each.startswith(current)), sep="\n")
    return 0


def _candidates(before: Sequence[str], current: str) -> list[str]:
    """What may follow the words `before`; nothing where a file belongs."""
    if not before:
        return [*_COMMANDS, "--help", "--version"]
    command, *given = before
    launched = [i for i, word in enumerate(given) if word in ("fit", "run")]
    if command == "launch" and launched:
        return _candidates(given[launched[0] :], current)
    if command not in _COMMANDS:
        return []
    first_words, options_for = _COMMANDS[command]
    options = {**options_for(given), **OUTPUT_OPTIONS}
    flags = {f"--{name.replace('_', '-')}": option for name, option in options.items()}
    last = flags.get(before[-1])
    if last is not None and last.kind is not bool:
        return _values(before[-1], last)
    if current.startswith("-"):
        return [*flags, "--help"]
    return list(first_words()) if not given else []


def _values(flag: str, option: Option) -> list[str]:
    if flag == "--devices":
        return ["auto", "cpu", "cpu:2", "1", "2"]
    if flag == "--template":
        return list(places.templates())
    return list(choices(option))


# The options of a command, from the words that follow it so far.
_OptionsFor = Callable[[Sequence[str]], Options]


def _always(options: Options) -> _OptionsFor:
    return lambda given: options


def _with_settings(command: str, options: Options) -> _OptionsFor:
    """A command's options, and the settings of its recipe once the recipe is named."""

    def find(given: Sequence[str]) -> Options:
        if not given or given[0].startswith("-"):
            return options
        try:
            _, groups = recipe_groups(given[0], list(given[1:]), command, options)
        except KerasdistError:  # Not a recipe yet.
            return options
        return {name: option for group in groups.values() for name, option in group.items()}

    return find


def _recipes() -> list[str]:
    here = sorted(Path().glob("recipes/*/config.py"))
    return [*places.bundled(), *(str(path.parent) for path in here)]


def _scripts() -> list[str]:
    return sorted(str(path) for path in Path().glob("*.py"))


def _runs() -> list[str]:
    return [str(p.parent) for p in sorted(Path().glob(f"runs/*/*/{CONFIG}"))]


# For each command: what its first word may be, and its options.
_COMMANDS: Mapping[str, tuple[Callable[[], Iterable[str]], _OptionsFor]] = {
    "fit": (_recipes, _with_settings("fit", RUN_OPTIONS)),
    "run": (_scripts, _always(script_arguments.SCRIPT_OPTIONS)),
    "launch": (lambda: ["fit", "run"], _always(launch.LAUNCH_OPTIONS)),
    "evaluate": (_runs, _always(run_options.EVALUATE_OPTIONS)),
    "predict": (_runs, _always(run_options.PREDICT_OPTIONS)),
    "export": (_runs, _always(run_options.EXPORT_OPTIONS)),
    "runs": (_runs, _always(runs.OPTIONS)),
    "new": (list, _always(new.OPTIONS)),
    "verify": (_recipes, _with_settings("verify", VERIFY_OPTIONS)),
    "bench": (_recipes, _with_settings("bench", BENCH_OPTIONS)),
    "devices": (list, _always({})),
    "doctor": (list, _always(DOCTOR_OPTIONS)),
    "completion": (lambda: SCRIPTS, _always({})),
}
