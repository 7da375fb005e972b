"""Reads the constructor arguments of a class from its source file, without importing it."""

from __future__ import annotations

import ast
import functools
import operator
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.importing import import_part

_SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
# What an argument on the command line may be if the source does not state a type.
_ANY = int | float | str
REQUIRED = object()


@dataclass(frozen=True)
class Argument:
    """An argument: its type, its default or `REQUIRED`, and its help text."""

    name: str
    type: Any
    default: Any
    help: str


@dataclass(frozen=True)
class ClassFile:
    """A class in a file, written `FILE.py:Class`."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str, option: str) -> ClassFile:
        path, _, name = text.rpartition(":")
        if not path or not name:
            raise KerasdistError(
                f"Received `{option} {text}`. Expected FILE.py:Class. Write for example "
                f"`{option} mine.py:MyClass`."
            )
        if not Path(path).is_file():
            raise KerasdistError(
                f"Received `{option} {text}`, but there is no file {path!r}. Expected a Python "
                "file. Check the path."
            )
        return cls(Path(path).resolve(), name)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def arguments(self) -> list[Argument]:
        """The arguments of `__init__`, from the class or a base class in the same file."""
        classes = self._classes()
        if self.name not in classes:
            raise KerasdistError(
                f"{self.path.name} does not define the class {self.name!r}. Expected one of "
                f"{', '.join(classes) or 'none: it has no classes'}."
                f"{closest(self.name, classes)} Correct the name."
            )
        node: ast.ClassDef | None = classes[self.name]
        seen = set()
        while node is not None and node.name not in seen:
            seen.add(node.name)
            docstring = ast.get_docstring(node) or ""
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    return _arguments(_of_function(item), docstring, ast.get_docstring(item) or "")
            if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                return _arguments(_of_fields(node), docstring)
            bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in classes]
            node = classes[bases[0]] if bases else None
        return []

    def _classes(self) -> dict[str, ast.ClassDef]:
        try:
            tree = ast.parse(self.path.read_text())
        except (SyntaxError, UnicodeDecodeError) as error:
            line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
            reason = getattr(error, "msg", None) or getattr(error, "reason", "")
            raise KerasdistError(
                f"{self.path.name} is not valid Python: {reason}{line}. Expected a Python file. "
                "Correct it."
            ) from None
        return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def load(self) -> type:
        """Imports the file and returns the class."""
        if self.path.suffix != ".py" or "." in self.path.stem:
            raise KerasdistError(
                f"Received {str(self.path)!r}, which Python cannot import. Expected a file whose "
                "name has one dot and ends in .py. Rename it."
            )
        # It can import the files beside it, as a script can, also later while it runs.
        if str(self.path.parent) not in sys.path:
            sys.path.insert(0, str(self.path.parent))
        module = import_part(self.path.parent, self.path.stem)
        return getattr(module, self.name)


# The name, annotation and default of an argument.
_Found: TypeAlias = tuple[str, ast.expr | None, ast.expr | None]


def _of_function(function: ast.FunctionDef) -> Iterator[_Found]:
    """The arguments of a method, without `self`."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args][1:]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults))
    defaults += spec.defaults
    for argument, default in (
        *zip(positional, defaults, strict=True),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ):
        yield argument.arg, argument.annotation, default


def _of_fields(node: ast.ClassDef) -> Iterator[_Found]:
    """The fields of a dataclass."""
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if "ClassVar" not in ast.unparse(item.annotation):
            yield item.target.id, item.annotation, item.value


def _arguments(found: Iterator[_Found], *docstrings: str) -> list[Argument]:
    meanings = _documented("\n".join(docstrings))
    arguments = []
    for name, annotation, default in found:
        value: Any = REQUIRED
        if default is not None:
            try:
                value = ast.literal_eval(default)
            except (ValueError, TypeError):
                continue  # Only running the file would tell this default: it is not an option.
        kind = _annotated_type(annotation)
        if kind is None:
            kind = _type_of_default(value)
        elif value is None:
            kind = kind | None
        if kind is not None:
            arguments.append(Argument(name, kind, value, meanings.get(name, "")))
    return arguments


def _type_of_default(value: Any) -> Any:
    """The type of a default; None if the command line cannot express such values."""
    if value is REQUIRED:
        return _ANY
    if value is None:
        return _ANY | None
    if type(value) in _SCALARS.values():
        return type(value)
    if type(value) in (list, tuple):
        kinds = {type(item) for item in value}
        if len(kinds) == 1 and kinds <= set(_SCALARS.values()):
            return _many(kinds.pop(), is_list=isinstance(value, list))
    return None


def _annotated_type(node: ast.expr | None) -> Any:
    """The type in an annotation; None if the command line cannot express such values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return None
    if isinstance(node, ast.Name):
        return _SCALARS.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right])
    if not isinstance(node, ast.Subscript):
        return None
    name = ast.unparse(node.value).rpartition(".")[2]
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Optional":
        kind = _annotated_type(inner[0])
        return None if kind is None else kind | None
    if name == "Union":
        return _union(inner)
    if name == "Literal":
        return Literal[tuple(ast.literal_eval(item) for item in inner)]
    kind = _annotated_type(inner[0])
    if kind not in _SCALARS.values():
        return None
    if name in ("list", "List", "Sequence", "Iterable"):
        return _many(kind, is_list=True)
    if name in ("tuple", "Tuple"):
        return _many(kind, is_list=False)
    return None


def _many(kind: Any, *, is_list: bool) -> Any:
    return list.__class_getitem__(kind) if is_list else tuple.__class_getitem__((kind, ...))


def _union(nodes: list[ast.expr]) -> Any:
    is_none = [isinstance(node, ast.Constant) and node.value is None for node in nodes]
    kinds = [_annotated_type(node) for node, none in zip(nodes, is_none, strict=True) if not none]
    # Ignore the parts of a union that the command line cannot express.
    kinds = [kind for kind in kinds if kind is not None]
    if not kinds:
        return None
    union = functools.reduce(operator.or_, kinds)
    return union | None if any(is_none) else union


_MEANING = re.compile(r"(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s+(\S.*)")


def _documented(docstring: str) -> dict[str, str]:
    """The help texts of the arguments in a Google-style docstring, by name."""
    meanings: dict[str, str] = {}
    current, indent = "", 0
    for line in docstring.splitlines():
        own_indent = len(line) - len(line.lstrip())
        match = _MEANING.fullmatch(line.rstrip())
        if current and line.strip() and own_indent > indent:
            meanings[current] += f" {line.strip()}"
        elif match:
            current, indent = match[2], own_indent
            meanings[current] = match[3]
        else:
            current = ""
    return meanings
