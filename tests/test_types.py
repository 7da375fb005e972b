"""Types, completion, signatures and help, which work although the names are lazy."""

import ast
import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import jedi
import pytest

import kerasdist

SOURCE = Path(kerasdist.__file__)
# Keras has no types of its own. With this setting, mypy reads its code, as editors do.
SETTINGS = """
[mypy]
strict = true
[mypy-keras.*]
follow_untyped_imports = true
"""
RIGHT = """
import kerasdist


class Mean(kerasdist.Model):
    features = "x"
    targets = "y"


x = [[0.0]] * 4
history = kerasdist.fit(Mean(), x, x, batch_size=2, devices=[0], run_dir="runs", callbacks=[])
reveal_type(history)
reveal_type(kerasdist.evaluate(Mean(), x, x))
reveal_type(kerasdist.load("runs"))
reveal_type(kerasdist.list_devices()[0].name)
reveal_type(kerasdist.count_steps(100, 32, 2))
with kerasdist.enable(devices=2):
    pass
try:
    kerasdist.schedule("cosine", learning_rate=0.1, total_steps=9)
except kerasdist.KerasdistError as error:
    print(error)
"""
REVEALED = [
    "keras.src.callbacks.history.History",
    "dict[str, Any]",
    "keras.src.models.model.Model",
    "str",
    "int",
]
WRONG = """
import kerasdist

model = kerasdist.load("runs")
kerasdist.fit(model, None, batch_size="2")
kerasdist.fit(model, None, batchsize=2)
kerasdist.evaluate(model, None, devices=1.5)
kerasdist.load("runs", which=3)
kerasdist.fitt(model)
"""
COMPLAINTS = {
    5: 'Argument "batch_size" to "fit" has incompatible type "str"',
    6: 'Unexpected keyword argument "batchsize" for "fit"',
    7: 'Argument "devices" to "evaluate" has incompatible type "float"',
    8: 'Argument "which" to "load" has incompatible type',
    9: 'Module has no attribute "fitt"',
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """`{file: the lines that mypy prints about it}` for a right and a wrong program."""
    folder = tmp_path_factory.mktemp("program")
    for name, text in (("mypy.ini", SETTINGS), ("right.py", RIGHT), ("wrong.py", WRONG)):
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "right.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent.parent)},
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    lines = done.stdout.splitlines()
    return {
        name: [line for line in lines if line.startswith(name)] for name in ("right.py", "wrong.py")
    }


def test_mypy_knows_the_types_of_results(checked):
    assert not [line for line in checked["right.py"] if ": error:" in line]
    revealed = [line.split('"')[1] for line in checked["right.py"] if "Revealed type" in line]
    assert revealed == REVEALED


def test_mypy_reports_wrong_arguments_and_names(checked):
    for number, complaint in COMPLAINTS.items():
        found = [
            line for line in checked["wrong.py"] if line.startswith(f"wrong.py:{number}: error")
        ]
        assert any(complaint in line for line in found), (number, checked["wrong.py"])
    assert len({line.split(":")[1] for line in checked["wrong.py"] if "error" in line}) == 5


def test_type_checkers_and_python_find_a_name_in_the_same_module():
    tree = ast.parse(SOURCE.read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    for_checkers = {
        alias.name: node.module.removeprefix("kerasdist.")
        for node in block.body
        for alias in node.names
    }
    assert for_checkers == kerasdist._HOMES
    assert set(for_checkers) <= set(kerasdist.__all__)


@pytest.fixture(scope="module")
def editor():
    """`editor(text)` is the text in an editor, with the cursor at its end."""
    project = jedi.Project(SOURCE.parent.parent, load_unsafe_extensions=False)
    return lambda text: jedi.Script(text, project=project)


def test_an_editor_completes_names_arguments_and_results(editor):
    found = {name.name for name in editor("import kerasdist\nkerasdist.").complete()}
    assert found >= set(kerasdist.__all__)
    found = [name.name for name in editor("import kerasdist\nkerasdist.fit(m, dev").complete()]
    assert "devices=" in found
    text = "import kerasdist\nkerasdist.fit(None)."
    assert {"history", "epoch"} <= {name.name for name in editor(text).complete()}


def test_an_editor_shows_the_signature_and_the_docstring(editor):
    (signature,) = editor("import kerasdist\nkerasdist.fit(").get_signatures()
    names = [parameter.name for parameter in signature.params]
    assert names == list(inspect.signature(kerasdist.fit).parameters)
    assert "batch_size: int | None=None" in signature.to_string()
    assert "Trains a Keras model on one or more devices" in signature.docstring()


def test_a_notebook_completes_what_dir_lists():
    found = {
        name.name
        for name in jedi.Interpreter("kerasdist.", [vars(sys.modules[__name__])]).complete()
    }
    assert found >= set(dir(kerasdist))


def test_dir_lists_the_public_names():
    assert dir(kerasdist) == sorted(kerasdist.__all__)
    for name in dir(kerasdist):
        assert getattr(kerasdist, name) is not None
    assert not hasattr(kerasdist, "fitt")


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict", "enable", "load", "optimizer"])
def test_help_shows_the_signature_and_the_docstring(name):
    function = getattr(kerasdist, name)
    text = pydoc.plain(pydoc.render_doc(function))
    parameters = inspect.signature(function).parameters
    assert "args" not in parameters or name == "enable"
    for parameter in parameters.values():
        assert f"{parameter.name}" in text
    assert inspect.getdoc(function).splitlines()[0] in text
    assert function.__name__ == name


def test_help_of_the_package_lists_every_name():
    text = pydoc.plain(pydoc.render_doc(kerasdist))
    for name in kerasdist.__all__:
        assert name in text or name == "__version__"  # It has a part of its own.
    assert f"VERSION\n    {kerasdist.__version__}" in text


def test_an_editor_lists_no_names_that_kerasdist_itself_imports(editor):
    found = {name.name for name in editor("import kerasdist\nkerasdist.").complete()}
    assert "fit" in found
    assert not found & {"os", "sys", "platform", "Any", "import_module", "hide_in_programs"}
