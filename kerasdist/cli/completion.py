"""Shell completion: `kerasdist completion SHELL` prints a script that asks `complete` at a Tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from kerasdist.cli import options, run_options
from kerasdist.cli.commands import launch, new
from kerasdist.cli.commands import runs as listing
from kerasdist.cli.options import OUTPUT_OPTIONS
from kerasdist.cli.parser import Option, Options, choices
from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes import recipe, scaffold
from kerasdist.runs.file_names import CONFIG

# `kerasdist --complete WORD...` answers the scripts.
COMPLETE = "--complete"
SCRIPTS = {
    "bash": """\
# In ~/.bashrc: eval "$(kerasdist completion bash)"
_kerasdist() {
    local IFS=$'\\n'
    COMPREPLY=($(kerasdist --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _kerasdist kerasdist
""",
    "zsh": """\
# In ~/.zshrc, after compinit: eval "$(kerasdist completion zsh)"
_kerasdist() {
    local -a found
    found=("${(@f)$(kerasdist --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _kerasdist kerasdist
""",
    "fish": """\
# kerasdist completion fish > ~/.config/fish/completions/kerasdist.fish
function __kerasdist
    set -l found (kerasdist --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c kerasdist -f -a '(__kerasdist)'
""",
}


def parse(argv: list[str]) -> str:
    """`kerasdist completion SHELL`: the name of the shell."""
    if argv and not argv[0].startswith("-"):
        options.parse_options({}, argv[1:], "kerasdist completion SHELL")
        if argv[0] not in SCRIPTS:
            raise KerasdistError(
                f"Received the shell {argv[0]!r}. Expected one of {', '.join(SCRIPTS)}."
                f"{closest(argv[0], SCRIPTS)} Name yours."
            )
        return argv[0]
    options.parse_options({}, argv, "kerasdist completion SHELL")  # Help, or a wrong option.
    raise KerasdistError(
        f"Received no shell. Expected one of {', '.join(SCRIPTS)}. Name yours, for example "
        "`kerasdist completion bash`."
    )


def complete(words: Sequence[str], commands: Iterable[str]) -> list[str]:
    """What the last of the words after `kerasdist` may become; nothing where files belong.

    Args:
        words: The words so far, the last of them unfinished.
        commands: The names of the commands.
    """
    *before, current = words or [""]
    try:
        found = _candidates(before, current, commands)
    except (
        KerasdistError,
        OSError,
    ):  # An unfinished line is often wrong; nobody reads errors here.
        found = []
    return [each for each in found if each.startswith(current)]


def _candidates(before: Sequence[str], current: str, commands: Iterable[str]) -> list[str]:
    if not before:
        return [*commands, "--help", "--version"]
    command, *given = before
    if command == "launch" and "fit" in given:
        return _candidates(given[given.index("fit") :], current, commands)
    if command not in _COMMANDS:
        return []
    first, own = _COMMANDS[command]
    known = {**own(given), **OUTPUT_OPTIONS}
    flags = {_flag(name): option for name, option in known.items()}
    last = flags.get(before[-1])
    if last is not None and last.kind is not bool:
        return _values(before[-1], last)
    if current.startswith("-"):
        return [*flags, "--help"]
    return list(first()) if not given else []


def _values(flag: str, option: Option) -> list[str]:
    if flag == "--devices":
        return ["auto", "cpu", "cpu:2", "1", "2"]
    if flag == "--template":
        return list(scaffold.templates())
    return list(choices(option))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _of_a_recipe(command: str, own: Options) -> Callable[[Sequence[str]], Options]:
    def find(given: Sequence[str]) -> Options:
        if not given or given[0].startswith("-"):
            return own
        try:
            _, groups = options.recipe_groups(given[0], list(given[1:]), command, own)
        except KerasdistError:  # No recipe yet; the command's own options are the same for all.
            return own
        return {name: option for group in groups.values() for name, option in group.items()}

    return find


def _recipes() -> list[str]:
    return [
        *recipe.bundled(),
        *(str(p.parent) for p in sorted(Path().glob("recipes/*/config.py"))),
    ]


def _runs() -> list[str]:
    return [str(p.parent) for p in sorted(Path().glob(f"runs/*/*/{CONFIG}"))]


_Command = tuple[Callable[[], Iterable[str]], Callable[[Sequence[str]], Options]]
_COMMANDS: Mapping[str, _Command] = {
    "fit": (_recipes, _of_a_recipe("fit", options.RUN_OPTIONS)),
    "bench": (_recipes, _of_a_recipe("bench", options.BENCH_OPTIONS)),
    "launch": (lambda: ["fit"], lambda given: launch.LAUNCH_OPTIONS),
    "verify": (_recipes, _of_a_recipe("verify", options.VERIFY_OPTIONS)),
    "evaluate": (_runs, lambda given: run_options.EVALUATE_OPTIONS),
    "predict": (_runs, lambda given: run_options.PREDICT_OPTIONS),
    "export": (_runs, lambda given: run_options.EXPORT_OPTIONS),
    "runs": (_runs, lambda given: listing.OPTIONS),
    "new": (list, lambda given: new.OPTIONS),
    "devices": (list, lambda given: {}),
    "doctor": (list, lambda given: {}),
    "completion": (lambda: SCRIPTS, lambda given: {}),
}
