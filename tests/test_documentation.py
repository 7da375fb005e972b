"""What README, docs and docstrings show is run."""

import doctest
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kerasdist
from kerasdist.recipes import places
from kerasdist.recipes import recipe as recipes
from kerasdist.recipes.importing import import_part

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
needs_readme = pytest.mark.skipif(not README.read_text().strip(), reason="README is empty")


def blocks(path, language):
    """`(line, text)` of each fenced block of a language."""
    text = path.read_text()
    for match in FENCE.finditer(text):
        if match[1] == language:
            yield text.count("\n", 0, match.start()) + 2, match[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    """The blocks of a page share their names, in order."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for line, text in blocks(page, "python"):
        # Blank lines before it, so that a traceback has the page's own line numbers.
        exec(compile("\n" * (line - 1) + text, page, "exec"), names)


def in_the_diff():
    """The program that the README's diff leads to, with a model and data for its dots and names."""
    ((_, text),) = blocks(README, "diff")
    first, *lines = [line[1:] for line in text.splitlines() if not line.startswith("-")]
    data = ["import keras, numpy as np", "x = np.ones((64, 3))", "y = np.arange(64) % 3"]
    layers = "[keras.layers.Dense(3)]"
    return "\n".join([first, *data, *lines, ""]).replace("[...]", layers)


@needs_readme
@pytest.mark.parametrize("what", ["blocks", "diff"])
def test_the_readmes_python_runs_in_a_new_process(what, tmp_path):
    """As a reader runs it: without the logical CPUs that the tests have set up."""
    text = "".join(text for _, text in blocks(README, "python"))
    text = text if what == "blocks" else in_the_diff()
    assert text
    environment = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def cells(notebook):
    """The code of a notebook."""
    content = json.loads(notebook.read_text())
    return "".join("".join(c["source"]) for c in content["cells"] if c["cell_type"] == "code")


def test_no_two_pages_train_different_models_in_one_folder():
    """Readers run the pages in the same folder."""
    pages = {}
    for page in PAGES:
        text = "".join(text for _, text in blocks(page, "python"))
        for folder in set(re.findall(r'run_dir="([^"]+)"', text)):
            pages.setdefault(folder, []).append(page.name)
    assert [names for names in pages.values() if len(names) > 1] == []


PROGRAMS = [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))]


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda path: path.name)
def test_examples_import_kerasdist_before_what_loads_tensorflow(page):
    """So that TensorFlow's start-up messages are hidden."""
    is_page = page.suffix == ".md"
    text = "".join(text for _, text in blocks(page, "python")) if is_page else cells(page)
    imports = re.findall(r"^(?:import|from) .*", text, re.M)
    names = re.findall(r"\b(?:kerasdist|keras|tensorflow)\b", "\n".join(imports))
    assert "kerasdist" not in names or names[0] == "kerasdist"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_that_uses_several_devices_makes_them_first(page):
    text = "".join(text for _, text in blocks(page, "python"))
    several = re.search(r"""devices=(?!1\b|"auto"|"cpu"|None)|for devices in""", text)
    if several:
        assert "kerasdist.logical_cpus(" in text[: several.start()]


@needs_readme
def test_the_readme_has_two_commands_and_ci_runs_the_tests_as_it_says():
    section = re.search(r"^#+ [^\n]*Install.*?(?=^#|\Z)", README.read_text(), re.M | re.S)[0]
    commands = [match[2].strip() for match in FENCE.finditer(section) if match[1] == "bash"]
    assert len(commands) == 2
    assert all("\n" not in command for command in commands)
    train, test = commands
    assert "kerasdist fit recipes/cifar10" in train
    assert "pytest" in test
    # In parentheses: `set -e` does not see that the first of two joined commands fails.
    assert f"\n(\n{test}\n)\n" in (ROOT / ".ci" / "run").read_text()


PUBLIC = [name for name in kerasdist.__all__ if name not in ("__version__", "DivergedError")]


def run_examples(thing, name, names=None):
    """How many lines of `>>>` a docstring and those inside it have; fails where one is wrong."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(exclude_empty=True).find(thing, name, extraglobs=names):
        printed = []
        runner.run(test, out=printed.append)
        assert not runner.failures, "".join(printed)
    return runner.tries


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_examples_that_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_examples(getattr(kerasdist, name), name) > 0


@pytest.mark.parametrize("part", places.PARTS)
@pytest.mark.parametrize("recipe", places.bundled().values(), ids=lambda path: path.name)
def test_recipes_have_examples_that_run(recipe, part):
    module = import_part(recipe, part)
    names = {"Config": recipes.config_class(recipe)}
    assert run_examples(module, f"{recipe.name}.{part}", names) > 0


def test_every_argument_of_the_interface_is_documented():
    finders = (kerasdist.find_learning_rate, kerasdist.find_batch_size)
    of_keras = (kerasdist.fit, kerasdist.evaluate, kerasdist.predict)
    for function in (*of_keras, *finders, kerasdist.load_recipe):
        documented = re.findall(r"^ {4}\*{0,2}(\w+): ", inspect.getdoc(function), re.MULTILINE)
        assert documented[: len(inspect.signature(function).parameters)] == list(
            inspect.signature(function).parameters
        )


def test_the_readmes_table_of_speed_is_a_part_of_the_results():
    readme, results = (ROOT / name for name in ("README.md", "benchmarks/RESULTS.md"))
    block = readme.read_text().split("<!-- speed -->")[1].split("<!-- end of speed -->")[0]
    rows = [line for line in block.splitlines() if line.startswith("|")]
    assert len(rows) > 5
    assert set(rows) <= set(results.read_text().splitlines())
