"""The module map: imports go downward only, private Keras names are in one place."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kerasdist"
LAYERS = [
    {"errors"},
    {"devices", "models", "readers", "reporting", "signatures", "sums"},
    {"data", "parsing", "pure", "runs"},
    {"additivity", "shards", "updates"},
    {"inspection", "steps"},
    {"arguments", "feeding", "hooks"},
    {"recipes", "training"},
    {"options"},
    {"commands"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(p.stem for p in PACKAGE.glob("*.py") if not p.stem.startswith("__"))
# About 400; a module that needs more has two jobs.
MOST_LINES = 430


def imports(module):
    """`(name, line)` of everything that a module of the package imports, also in functions."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}.py imports relatively"
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_every_module_has_its_layer():
    assert set(MODULES) == set(LEVEL)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downward(module):
    for name, line in imports(module):
        parts = name.split(".")
        if parts[0] != "kerasdist" or len(parts) < 2 or parts[1] not in LEVEL:
            continue
        assert LEVEL[parts[1]] < LEVEL[module], f"{module}.py:{line} imports {name}"


def test_private_keras_names_are_only_in_pure():
    found = {m for m in MODULES for name, _ in imports(m) if name.startswith("keras.src")}
    assert found == {"pure"}
    for module in set(MODULES) - {"pure"}:
        assert "keras.src" not in (PACKAGE / f"{module}.py").read_text()


def test_the_command_line_is_read_without_tensorflow():
    """What `kerasdist --help` needs, by the imports at the top of the modules."""
    for module in ("cli", "options", "parsing", "recipes", "runs", "reporting", "signatures"):
        tree = ast.parse((PACKAGE / f"{module}.py").read_text())
        for node in tree.body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            assert not {"tensorflow", "keras", "numpy", "rich"} & {n.split(".")[0] for n in names}


def test_recipes_import_nothing_but_the_public_interface():
    recipes = (PACKAGE.parent / "recipes").glob("*/*.py")
    for path in recipes:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("kerasdist."), path
            elif isinstance(node, ast.Import):
                assert not any(a.name.startswith("kerasdist.") for a in node.names), path


def lines_of_code(path):
    """Lines with code on them: no comments, docstrings and blank lines."""
    source = path.read_text()
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
    lines = set()
    for token in tokenize.tokenize(io.BytesIO(source.encode()).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_short(module):
    assert lines_of_code(PACKAGE / f"{module}.py") <= MOST_LINES
