"""Constructor arguments of a class in a file, read from its source: nothing is imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError, closest

_TYPES = {"int": int, "float": float, "str": str, "bool": bool}
REQUIRED = object()


@dataclass(frozen=True)
class Argument:
    """One argument: its type (None if unknown), default or `REQUIRED`, and meaning."""

    name: str
    type: type | None
    default: Any
    help: str


@dataclass(frozen=True)
class ClassFile:
    """`FILE.py:Class`."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str, option: str) -> ClassFile:
        path, _, name = text.rpartition(":")
        if not path or not name:
            raise KerasdistError(
                f"Received `{option} {text}`. Expected FILE.py:Class. Give for example "
                f"`{option} mine.py:MyClass`."
            )
        if not Path(path).is_file():
            raise KerasdistError(
                f"Received `{option} {text}`, but there is no file {path!r}. Expected a Python "
                "file. Check the path."
            )
        return cls(Path(path).resolve(), name)

    def arguments(self) -> list[Argument]:
        """The arguments of `__init__`, of the class or of a base class in the same file."""
        classes = self._classes()
        if self.name not in classes:
            raise KerasdistError(
                f"Received the class {self.name!r}, which {self.path.name} does not define. "
                f"Expected one of {', '.join(classes) or 'none: it has no classes'}."
                f"{closest(self.name, classes)} Correct the name."
            )
        node: ast.ClassDef | None = classes[self.name]
        while node is not None:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    return _arguments(item, ast.get_docstring(node) or "")
            bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in classes]
            node = classes[bases[0]] if bases else None
        return []

    def _classes(self) -> dict[str, ast.ClassDef]:
        try:
            tree = ast.parse(self.path.read_text())
        except SyntaxError as error:
            raise KerasdistError(
                f"Received {self.path.name}, which is not Python: {error.msg} in line "
                f"{error.lineno}. Expected a Python file. Correct it."
            ) from None
        return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def load(self) -> type:
        """Imports the file and returns the class."""
        name = f"kerasdist_file_{self.path.stem}"
        module = sys.modules.get(name)
        if module is None or getattr(module, "__file__", None) != str(self.path):
            spec = importlib.util.spec_from_file_location(name, self.path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            # Files beside it can be imported, as when it is run as a script.
            sys.path.insert(0, str(self.path.parent))
            try:
                spec.loader.exec_module(module)
            finally:
                sys.path.remove(str(self.path.parent))
        return getattr(module, self.name)


def _arguments(function: ast.FunctionDef, docstring: str) -> list[Argument]:
    meanings = _documented(f"{docstring}\n{ast.get_docstring(function) or ''}")
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args][1:]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults))
    defaults += spec.defaults
    pairs = [*zip(positional, defaults, strict=True)]
    pairs += [*zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    found = []
    for argument, default in pairs:
        value = REQUIRED
        if default is not None:
            try:
                value = ast.literal_eval(default)
            except ValueError:
                continue  # A default that only running the file would tell: it stays as it is.
        kind = _TYPES.get(getattr(argument.annotation, "id", ""))
        if kind is None and value is not REQUIRED and type(value) in _TYPES.values():
            kind = type(value)
        found.append(Argument(argument.arg, kind, value, meanings.get(argument.arg, "")))
    return found


def _documented(docstring: str) -> dict[str, str]:
    """`name: meaning` lines of a Google-style docstring."""
    meanings = {}
    for line in docstring.splitlines():
        name, colon, meaning = line.strip().partition(":")
        if colon and name.isidentifier() and meaning.strip():
            meanings[name] = meaning.strip()
    return meanings
