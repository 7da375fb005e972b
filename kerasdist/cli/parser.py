"""Reads command-line options with tyro: groups of them, their help, and errors in our own words."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.class_file import REQUIRED

# The names that AutoMultiGPU and the CIFAR-10 tutorial had.
_OLD_NAMES = {
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
}


@dataclass(frozen=True)
class Option:
    """One option: its type, its default or `REQUIRED`, and what the help and the errors say."""

    kind: Any
    default: Any
    meaning: str
    hint: str | None = None
    aliases: tuple[str, ...] = ()
    expected: str | None = None
    example: str | None = None
    valid: Callable[[Any], bool] | None = None
    # " Did you mean 'x'?" about a text that is not valid, or nothing.
    guess: Callable[[str], str] | None = None


Options = Mapping[str, Option]


def choices(option: Option) -> tuple[str, ...]:
    """The values an option may have, if they can be listed."""
    kind = _Kind.of(option.kind)
    return kind.choices if kind is not None else ()


def parse(
    groups: Mapping[str, Options],
    argv: list[str],
    prog: str,
    description: str,
    prefixed: tuple[str, ...] = (),
) -> dict[str, dict[str, Any]]:
    """Values by group and name. A group is a box of the help, and with `prefixed` in the names."""
    fields: list[Any] = []
    flags: dict[str, Option] = {}
    for index, (title, options) in enumerate(groups.items()):
        inner: list[Any] = []
        for name, option in options.items():
            flag = f"--{title}." if title in prefixed else "--"
            flag += name.replace("_", "-")
            flags[flag] = option
            kind = _annotated(flag, option, prefix_name=title in prefixed)
            # A factory, since a dataclass refuses lists as defaults.
            default: Any = dataclasses.field(
                default_factory=functools.partial(_same, option.default)
            )
            inner.append((name, kind, default))
        if inner:
            box = dataclasses.make_dataclass("Options", inner, frozen=True)
            box.__doc__ = ""
            fields.append((f"group_{index}", Annotated[box, tyro.conf.arg(name=title)]))
    parser = dataclasses.make_dataclass("Options", fields, frozen=True)
    parsed: Any
    parsed, unknown = tyro.cli(
        parser, args=argv, prog=prog, description=description, return_unknown_args=True
    )
    if unknown:
        _refuse_unknown(unknown[0], flags, prog)
    values = {
        title: vars(getattr(parsed, f"group_{index}")) if options else {}
        for index, (title, options) in enumerate(groups.items())
    }
    missing = [
        flag
        for flag, value in zip(flags, (v for g in values.values() for v in g.values()), strict=True)
        if value is REQUIRED
    ]
    if missing:
        flag, option = missing[0], flags[missing[0]]
        kind = _Kind.of(option.kind)
        example = option.example or (kind.example if kind else "1 2")
        raise KerasdistError(
            f"Received no `{flag}`. Expected a value: it has no default. Add it, for example "
            f"`{flag} {example}`."
        )
    return values


def _same(value: Any) -> Any:
    return value


def _refuse_unknown(text: str, flags: Mapping[str, Option], prog: str) -> None:
    name = text.partition("=")[0]
    old = _OLD_NAMES.get(name.lstrip("-").replace("-", "_"), "").replace("_", "-")
    guess = f" Did you mean '--{old}'?" if f"--{old}" in flags else closest(name, flags)
    expected = f"an option of `{prog}`" if text.startswith("-") else "options, which begin with --"
    raise KerasdistError(
        f"Received {name!r}. Expected {expected}.{guess} `{prog} --help` lists them."
    )


def _annotated(flag: str, option: Option, prefix_name: bool) -> Any:
    """The type that tyro reads, with the help and with our own errors."""
    hint = option.hint
    if hint is None and (option.default is None or option.default is False):
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
        f"Received `{flag} {text}`. Expected {option.expected or kind.expected}.{guess} Give "
        f"for example `{flag} {option.example or kind.example}`."
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
    str: (str, "TEXT", "a text", "abc"),
}


@dataclass(frozen=True)
class _Kind:
    """How the text of a type of value is read, tried in order."""

    readers: tuple[Callable[[str], Any], ...]
    is_optional: bool
    metavar: str
    expected: str
    example: str
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: Any) -> _Kind | None:
        """None for what tyro reads better: lists and the like."""
        is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
        parts = typing.get_args(kind) if is_union else (kind,)
        is_optional = type(None) in parts
        parts = tuple(part for part in parts if part is not type(None))
        if len(parts) == 1 and typing.get_origin(parts[0]) is Literal:
            choices = {str(c): c for c in typing.get_args(parts[0]) if c is not None}
            is_optional |= len(choices) < len(typing.get_args(parts[0]))
            listed = ", ".join(choices)

            def choose(text: str) -> Any:
                if text not in choices:
                    raise ValueError(text)
                return choices[text]

            first, *_ = known = tuple(choices)
            return cls((choose,), is_optional, "NAME", f"one of {listed}", first, known)
        if not parts or not all(part in _SCALARS for part in parts):
            return None
        readers, metavars, expected, examples = zip(*(_SCALARS[p] for p in parts), strict=True)
        return cls(readers, is_optional, "|".join(metavars), " or ".join(expected), examples[0])
