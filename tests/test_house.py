"""The house: every module has its room, imports go down, and rooms keep their size."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "kerasdist"
# From the ground up. A room may import from lower levels only, never from its own level.
LEVELS = {
    "errors": {"errors"},
    "versions": {"versions"},
    "what takes time": {"phases"},
    "places": {"devices", "recipes"},
    "what is trained": {"models"},
    "what it is trained on": {"data", "tables"},
    "how": {"engine", "runs"},
    "what is written": {"reports", "model_files"},
    "fit, evaluate, predict": {"training"},
    "answers, and whole programs": {"evaluation", "finders", "programs"},
    "commands": {"cli"},
}
HEIGHT = {room: height for height, rooms in enumerate(LEVELS.values()) for room in rooms}
# `optimizers` is public: importing it registers kerasdist's classes with Keras.
AT_THE_TOP = {"__init__.py", "__main__.py", "errors.py", "optimizers.py", "versions.py"}
MOST_FILES_OF_A_ROOM = 14
MOST_LINES_OF_A_MODULE = 320
MOST_LINES_OF_A_FUNCTION = 60

FILES = sorted(PACKAGE.rglob("*.py"))
INSIDE = [path for path in FILES if path.parent != PACKAGE]
MODULES = [path for path in INSIDE if path.stem != "__init__"]


def title(path):
    return str(path.relative_to(PACKAGE))


each_file = pytest.mark.parametrize("path", INSIDE, ids=title)
each_module = pytest.mark.parametrize("path", MODULES, ids=title)


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """`(name, line)` of everything that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_only_rooms_are_at_the_top():
    assert {path.name for path in PACKAGE.glob("*.py")} == AT_THE_TOP
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == set(HEIGHT) - {"errors", "versions"}


def test_a_room_is_not_crowded():
    for folder in {path.parent for path in MODULES}:
        assert len(list(folder.glob("*.py"))) - 1 <= MOST_FILES_OF_A_ROOM, folder


@each_file
def test_imports_go_down(path):
    own = room_of(path)
    for name, line in imports(path):
        package, _, rest = name.partition(".")
        other = rest.split(".")[0]
        if package == "kerasdist" and other in HEIGHT and other != own:
            assert HEIGHT[other] < HEIGHT[own], f"{path}:{line} imports {name}"


def test_modules_do_not_import_in_a_circle():
    names = {".".join(("kerasdist", *p.relative_to(PACKAGE).with_suffix("").parts)) for p in FILES}
    names |= {name.removesuffix(".__init__") for name in names}
    wanted = {}
    for path in FILES:
        own = ".".join(("kerasdist", *path.relative_to(PACKAGE).with_suffix("").parts))
        found = {n if n in names else n.rpartition(".")[0] for n, _ in imports(path)}
        wanted[own.removesuffix(".__init__")] = found - {"kerasdist"}
    while wanted:
        ready = {name for name, others in wanted.items() if not others & set(wanted)}
        assert ready, f"a circle in {sorted(wanted)}"
        wanted = {name: others for name, others in wanted.items() if name not in ready}


@each_module
def test_a_module_says_its_one_job(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


@each_module
def test_a_module_is_short(path):
    assert path.read_text().count("\n") <= MOST_LINES_OF_A_MODULE


@each_file
def test_a_function_fits_on_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= MOST_LINES_OF_A_FUNCTION, f"{node.name}: {lines} lines"


def test_private_keras_names_are_only_in_pure():
    found = [path for path in FILES if "keras.src" in path.read_text()]
    assert found
    assert all(PACKAGE / "models" / "pure" in path.parents for path in found)


PRIVATE_TENSORFLOW = PACKAGE / "devices" / "private_tensorflow.py"


@each_module
def test_private_tensorflow_names_are_only_in_one_place(path):
    if path == PRIVATE_TENSORFLOW:
        return
    assert "__internal__" not in path.read_text()
    for name, line in imports(path):
        package, _, rest = name.partition(".")
        # `import tensorflow as tf` is enough for all public names.
        assert package != "tensorflow" or not rest, f"{path}:{line} imports {name}"


@each_module
def test_private_attributes_are_used_where_they_are_defined(path):
    """`x._name` of an object of TensorFlow would not be found by the names of imports."""
    if path == PRIVATE_TENSORFLOW or PACKAGE / "models" / "pure" in path.parents:
        return
    nodes = list(ast.walk(ast.parse(path.read_text())))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in nodes if isinstance(node, functions)}
    defined |= {node.id for node in nodes if isinstance(node, ast.Name)}  # Fields of classes.
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    of_self = [a for a in attributes if ast.unparse(a.value) in ("self", "cls", "super()")]
    defined |= {attribute.attr for attribute in of_self} | {"_replace", "_asdict", "_fields"}
    for attribute in attributes:
        is_private = attribute.attr.startswith("_") and not attribute.attr.startswith("__")
        is_private = is_private and ast.unparse(attribute) != "os._exit"  # That one is public.
        if is_private and attribute.attr not in defined:
            raise AssertionError(f"{path}:{attribute.lineno} uses {ast.unparse(attribute)}")


@pytest.mark.parametrize(
    "module",
    [
        "cli.main",
        "cli.options",
        "cli.run_options",
        "cli.parser",
        "cli.completion",
        "cli.commands.board",
        "cli.finding.batch_size",
        "cli.tune.arguments",
        "cli.tune.command",
        "cli.commands.launch",
        "cli.commands.new",
        "devices.cluster",
        "devices.launcher",
        "recipes.recipe",
        "recipes.class_file",
        "runs.folder",
        "model_files.export_target",
    ],
)
def test_the_command_line_is_read_without_tensorflow(module):
    heavy = "{'tensorflow', 'keras', 'numpy', 'rich'}"
    script = f"import sys, kerasdist.{module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_recipes_import_nothing_but_the_public_interface():
    for path in (PACKAGE.parent / "recipes").glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("kerasdist."), path
            elif isinstance(node, ast.Import):
                assert not any(a.name.startswith("kerasdist.") for a in node.names), path


def test_tests_lie_in_the_rooms_of_what_they_test():
    rooms = {p.name for p in (PACKAGE.parent / "tests").iterdir() if (p / "__init__.py").is_file()}
    assert rooms - {"faults", "gpu", "keras_examples", "keras_own"} <= set(HEIGHT)


def test_the_inits_of_rooms_import_nothing():
    """One re-export there, and `kerasdist --help` would load TensorFlow."""
    for path in INSIDE:
        if path.stem == "__init__" and path.parent.parent == PACKAGE:
            assert not list(imports(path)), path
