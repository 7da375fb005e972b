"""Parses groups of command-line options with tyro, with kerasdist's error messages."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.class_file import REQUIRED

# Names of other programs (the first ones are of AutoMultiGPU and of TensorFlow's CIFAR-10
# tutorial), and what they are called here.
_OTHER_NAMES = {
    "num_gpus": "devices",
    "max_steps": "steps",
    "train_dir": "run_dir",
    "model_dir": "run_dir",
    "model_name": "run_dir",
    "iter_verbose": "log_every",
    "log_device_placement": "log_placement",
    "allow_soft_placement": "soft_placement",
    "initial_learning_rate": "learning_rate",
    "learning_rate_decay_factor": "decay_rate",
    "lr": "learning_rate",
    "batch": "batch_size",
    "bs": "batch_size",
    "gpus": "devices",
    "gpu": "devices",
    "output": "run_dir",
    "output_dir": "run_dir",
}


@dataclass(frozen=True)
class Option:
    """One option, and what its help and its errors say.

    Attributes:
        kind: The type of its value.
        default: Its default, or `REQUIRED`.
        meaning: The help text.
        hint: What the help says about the default, instead of the value itself.
        aliases: Other names, such as `-v`.
        expected: What an error says is expected, instead of a description of `kind`.
        example: A valid value, for errors.
        valid: Whether a value of the right type is allowed.
        without_value: The value of the option if none follows it.
        guess: Turns a wrong text into " Did you mean 'x'?", or into "".
        synonyms: Other texts for a value, such as tflite for litert.
        names: Values to complete, where a text of another kind can be valid, too.
    """

    kind: Any
    default: Any
    meaning: str
    hint: str | None = None
    aliases: tuple[str, ...] = ()
    expected: str | None = None
    example: str | None = None
    valid: Callable[[Any], bool] | None = None
    guess: Callable[[str], str] | None = None
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] = ()
    without_value: str | None = None


Options = Mapping[str, Option]


def choices(option: Option) -> tuple[str, ...]:
    """The values of an option that has only a few."""
    kind = _Kind.of(option.kind)
    return option.names or (kind.choices if kind is not None else ())


def parse(
    groups: Mapping[str, Options],
    argv: list[str],
    prog: str,
    description: str,
    prefixed: tuple[str, ...] = (),
    elsewhere: Callable[[str], str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Parses arguments into values by group and name.

    Args:
        groups: Options by name, by the title of their box in the help.
        argv: The arguments.
        prog: The command, for help and errors.
        description: What the help says first.
        prefixed: Groups whose title is part of the option: `--model.units`.
        elsewhere: Says where an unknown option belongs, or "".
    """
    flags: dict[str, Option] = {}
    boxes: list[tuple[str, Any]] = []
    for index, (title, options) in enumerate(groups.items()):
        prefix = f"{title}." if title in prefixed else ""
        named = {f"--{prefix}{name.replace('_', '-')}": name for name in options}
        flags |= {flag: options[name] for flag, name in named.items()}
        fields = [
            (name, *_field(flag, options[name], bool(prefix))) for flag, name in named.items()
        ]
        if fields:
            box = dataclasses.make_dataclass("Options", fields, frozen=True)
            box.__doc__ = ""
            boxes.append((f"group_{index}", Annotated[box, tyro.conf.arg(name=title)]))
    parser = dataclasses.make_dataclass("Options", boxes, frozen=True)
    parsed: Any
    parsed, unknown = tyro.cli(
        parser,
        args=_with_values(argv, flags),
        prog=prog,
        description=description,
        return_unknown_args=True,
    )
    if unknown:
        _refuse_unknown(unknown[0], flags, prog, elsewhere)
    values = {
        title: vars(getattr(parsed, f"group_{index}")) if options else {}
        for index, (title, options) in enumerate(groups.items())
    }
    found = [value for group in values.values() for value in group.values()]
    for (flag, option), value in zip(flags.items(), found, strict=True):
        if value is REQUIRED:
            _refuse_missing(flag, option)
    return values


def _with_values(argv: list[str], flags: Mapping[str, Option]) -> list[str]:
    """The arguments with a value for each option that may go without; `--no-x` is `--x false`."""
    found = []
    for argument, following in itertools.zip_longest(argv, argv[1:], fillvalue="--"):
        denied = flags.get(f"--{argument.replace('_', '-').removeprefix('--no-')}")
        if argument.startswith("--no-") and denied and denied.without_value == "true":
            found += [f"--{argument.removeprefix('--no-')}", "false"]
            continue
        found.append(argument)
        option = flags.get(argument.replace("_", "-"))
        if option and option.without_value and following.startswith("--"):
            found.append(option.without_value)
    return found


def _same(value: Any) -> Any:
    return value


def _refuse_missing(flag: str, option: Option) -> None:
    kind = _Kind.of(option.kind)
    example = option.example or (kind.example if kind else "1 2")
    raise KerasdistError(
        f"`{flag}` is missing. It has no default, so it needs a value. Add it, for example "
        f"`{flag} {example}`."
    )


def _refuse_unknown(
    text: str,
    flags: Mapping[str, Option],
    prog: str,
    elsewhere: Callable[[str], str] | None = None,
) -> None:
    name = text.partition("=")[0]
    plain = name.lstrip("-").replace("-", "_")
    other = _OTHER_NAMES.get(plain, "").replace("_", "-")
    guess = f" Did you mean '--{other}'?" if f"--{other}" in flags else ""
    if not guess and elsewhere is not None and text.startswith("-"):
        guess = elsewhere(plain)
    guess = guess or closest(name, flags)
    problem = (
        f"Unknown option {name!r}."
        if text.startswith("-")
        else f"Unexpected argument {name!r}. Expected options, which begin with --."
    )
    command = prog.partition(" [")[0]  # Without what stands for other arguments.
    raise KerasdistError(f"{problem}{guess} `{command} --help` lists the options.")


def _field(flag: str, option: Option, prefix_name: bool) -> tuple[Any, Any]:
    """The type and the default of a dataclass field for tyro."""
    # A factory, because a dataclass refuses lists as defaults.
    default = dataclasses.field(default_factory=functools.partial(_same, option.default))
    return _annotated(flag, option, prefix_name), default


def _annotated(flag: str, option: Option, prefix_name: bool) -> Any:
    """The option's type as tyro reads it, with help and with kerasdist's errors."""
    hint = option.hint
    is_nothing = option.default is None or option.default is False or option.default in ((), [], "")
    if hint is None and is_nothing:
        hint = ""
    elif hint is None and option.default is REQUIRED:
        hint = "(required)"
    about = tyro.conf.arg(
        help=option.meaning,
        help_behavior_hint=hint,
        aliases=option.aliases or None,
        prefix_name=prefix_name,
    )
    if option.kind is bool and option.default is True:
        return Annotated[bool, about]
    if option.kind is bool and option.default is not REQUIRED:
        return Annotated[tyro.conf.FlagCreatePairsOff[bool], about]
    kind = _Kind.of(option.kind)
    if kind is None:
        return Annotated[option.kind, about]
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.metavar,
        instance_from_str=functools.partial(_read, flag, option, kind),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )
    return Annotated[Any, spec, about]


def _read(flag: str, option: Option, kind: _Kind, texts: list[str]) -> Any:
    (text,) = texts
    text = option.synonyms.get(text.lower(), text)
    if kind.is_optional and text.lower() == "none":
        return None
    for reader in kind.readers:
        try:
            value = reader(text)
        except ValueError:
            continue
        if option.valid is None or option.valid(value):
            return value
    guess = closest(text, kind.choices) if option.guess is None else option.guess(text)
    raise KerasdistError(
        f"Received `{flag} {text}`. Expected {option.expected or kind.expected}.{guess} For "
        f"example: `{flag} {option.example or kind.example}`."
    )


def _read_bool(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


_SCALARS: dict[Any, tuple[Callable[[str], Any], str, str, str]] = {
    int: (int, "INT", "a whole number", "10"),
    float: (float, "FLOAT", "a number", "0.1"),
    bool: (_read_bool, "BOOL", "true or false", "true"),
    str: (str, "TEXT", "text", "abc"),
}


@dataclass(frozen=True)
class _Kind:
    """How a text becomes a value of a type. The readers are tried in order."""

    readers: tuple[Callable[[str], Any], ...]
    is_optional: bool
    metavar: str
    expected: str
    example: str
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: Any) -> _Kind | None:
        """None for types that tyro reads itself, such as lists."""
        is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
        parts = typing.get_args(kind) if is_union else (kind,)
        is_optional = type(None) in parts
        parts = tuple(part for part in parts if part is not type(None))
        if len(parts) == 1 and typing.get_origin(parts[0]) is Literal:
            return cls._of_choices(typing.get_args(parts[0]), is_optional)
        if not parts or not all(part in _SCALARS for part in parts):
            return None
        readers, metavars, expected, examples = zip(*(_SCALARS[p] for p in parts), strict=True)
        return cls(readers, is_optional, "|".join(metavars), " or ".join(expected), examples[0])

    @classmethod
    def _of_choices(cls, values: tuple[Any, ...], is_optional: bool) -> _Kind:
        by_text = {str(value): value for value in values if value is not None}

        def choose(text: str) -> Any:
            if text not in by_text:
                raise ValueError(text)
            return by_text[text]

        return cls(
            readers=(choose,),
            is_optional=is_optional or None in values,
            metavar="NAME",
            expected=f"one of {', '.join(by_text)}",
            example=next(iter(by_text)),
            choices=tuple(by_text),
        )
