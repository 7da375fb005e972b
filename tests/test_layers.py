"""The module map: imports go downward only, private Keras names are in one place."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kerasdist"
LAYERS = [
    {"errors", "importing", "interrupts", "loopback", "messages", "processes", "progress"},
    {"cluster", "display", "gpus", "watchdog"},
    {"workers"},
    {
        *{"arguments", "checkpoints", "devices", "locks", "models", "readers", "reporting"},
        *{"environment", "kernel_muon", "optimizer_config", "rows", "saving", "signatures", "sums"},
        *{"circumstances", "datasets", "graphs", "losses", "placing", "plan", "settings", "trust"},
    },
    {"ownership"},
    {"parsing", "pure", "recipes", "runs", "schedules", "sources"},
    {"announcing", "in_memory", "recovery"},
    {
        "architecture",
        "arrays",
        "data",
        "loops",
        "optimizers",
        "refusals",
        "sealed",
        "shards",
        "state",
        "updates",
    },
    {"additivity", "exports", "observing", "predictions", "reports", "shard_functions", "views"},
    {"confusion", "identity", "inspection", "steps", "summaries", "weights"},
    {"feeding", "hooks", "loading", "profiling"},
    {"best_model", "checked_data", "validation"},
    {"benching", "epochs", "exporting"},
    {"inference", "training"},
    {"options"},
    {"commands", "launching", "listing", "run_options", "scaffold"},
    {"completion"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem[0] != "_")
# About 400; a module that needs more has two jobs.
MOST_LINES = 400

each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))


def module_of(path):
    """The name in the table: a package inside the package is one module."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """`(name, line)` of everything that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_every_module_has_its_layer():
    assert {module_of(path) for path in FILES} == set(LEVEL)


@each_file
def test_imports_go_downward(path):
    own = module_of(path)
    for name, line in imports(path):
        package, _, rest = name.partition(".")
        other = rest.split(".")[0]
        if package == "kerasdist" and other in LEVEL and other != own:
            assert LEVEL[other] < LEVEL[own], f"{path}:{line} imports {name}"


def test_files_of_a_package_do_not_import_in_a_circle():
    wanted = {}
    for path in FILES:
        if path.parent != PACKAGE and path.stem != "__init__":
            own = f"kerasdist.{path.parent.name}."
            wanted[own + path.stem] = {
                own + name.removeprefix(own).split(".")[0]
                for name, _ in imports(path)
                if name.startswith(own)
            }
    while wanted:
        ready = {name for name, others in wanted.items() if not others & set(wanted)}
        assert ready, f"a circle in {sorted(wanted)}"
        wanted = {name: others for name, others in wanted.items() if name not in ready}


def test_private_keras_names_are_only_in_pure():
    assert {module_of(path) for path in FILES if "keras.src" in path.read_text()} == {"pure"}


@pytest.mark.parametrize(
    "module",
    [
        "__init__",
        "cli",
        "cluster",
        "launching",
        "options",
        "parsing",
        "recipes",
        "reporting",
        "runs",
        "signatures",
    ],
)
def test_the_command_line_is_read_without_tensorflow(module):
    """What `kerasdist --help` needs, by the imports at the top of the modules."""
    for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        assert not {"tensorflow", "keras", "numpy", "rich"} & {n.split(".")[0] for n in names}


def test_recipes_import_nothing_but_the_public_interface():
    for path in (PACKAGE.parent / "recipes").glob("*/*.py"):
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


@each_file
def test_a_module_is_short(path):
    assert lines_of_code(path) <= MOST_LINES
