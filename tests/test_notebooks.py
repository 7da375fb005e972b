"""The notebooks run, in a new kernel, and show what they say.

`python tests/test_notebooks.py [NAME...]` runs them and stores what they show.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets import default

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
NAMES = ["quickstart", "from_tf1_towers"]
# What TensorFlow's C++ code writes before it knows its log level.
START_UP = re.compile(r"([IWE]0000 .*|WARNING: All log messages before absl.*)?\n?")
MACHINE_PATH = re.compile(
    r"(?<![\w.:/<])/(?:tmp|home|root|work|usr|opt|var|mnt|Users|private)/|[A-Z]:\\\w"
)


class OwnKernel(AsyncKernelManager):
    """Kernels of this interpreter, whatever is installed on the machine."""

    @default("kernel_spec_manager")
    def _without_folders_to_look_in(self):
        return KernelSpecManager(kernel_dirs=[], parent=self)


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def run(notebook, folder):
    """Executes a notebook in a folder, with this interpreter and nobody's own settings."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "KERASDIST_LOGICAL_CPUS"},
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
        # The package that is tested, as `python -m pytest` finds it, and no other version.
        "PYTHONPATH": str(NOTEBOOKS.parent),
    }
    work = folder / "work"
    work.mkdir()
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=OwnKernel,
        timeout=300,
        record_timing=False,
        resources={"metadata": {"path": str(work)}},
    )
    client.execute(env=environment)
    return notebook


def texts(notebook):
    """What each cell shows as text, by its id."""
    shown = {}
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        shown[cell.id] = "".join(
            output.text
            if output.output_type == "stream"
            else output.get("data", {}).get("text/plain", "") + "\n"
            for output in outputs
            if output.get("name") != "stderr"
        )
    return shown


def tidy(notebook):
    """Leaves out what belongs to a machine, and joins what a notebook shows as one text."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        kept = []
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                lines = output.text.splitlines(keepends=True)
                output.text = "".join(line for line in lines if not START_UP.fullmatch(line))
                if not output.text:
                    continue
            output.pop("transient", None)
            last = kept[-1] if kept else None
            if (
                last is not None
                and last.output_type == output.output_type == "stream"
                and last.name == output.name
            ):
                last.text += output.text
            else:
                kept.append(output)
        cell.outputs = kept
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_is_valid_and_says_nothing_about_a_machine(name):
    notebook = read(name)
    nbformat.validate(notebook)
    path = NOTEBOOKS / f"{name}.ipynb"
    assert not MACHINE_PATH.search(path.read_text())
    for cell in notebook.cells:
        assert not cell.metadata, cell.id  # for example when it was run


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_was_run_from_its_first_cell_to_its_last(name):
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        kinds = {output.get("name", output.output_type) for output in cell.outputs}
        assert kinds <= {"stdout", "display_data", "execute_result"}, cell.id
    assert any("image/png" in o.get("data", {}) for c in cells for o in c.outputs) == (
        name == "quickstart"
    )


EPOCH = r"^epoch {}/{}  loss [\d.]+  accuracy [\d.]+"


def check_quickstart(notebook):
    shown = texts(notebook)
    assert "devices: ['CPU:0', 'CPU:1']" in shown["imports"]
    assert "2 x 32 = a global batch of 64 (CPU:0, CPU:1)" in shown["fit"]
    for epoch in range(1, 7):
        assert len(re.findall(EPOCH.format(epoch, 6), shown["fit"], re.M)) == 1
    (report,) = (output.data["text/html"] for c in notebook.cells if c.id == "report"
                 for output in c.outputs)  # fmt: skip
    assert "&lt;span&gt;validation accuracy&lt;/span&gt;" in report
    assert float(re.search(r"'accuracy': ([\d.]+)", shown["evaluate"])[1]) > 0.7
    assert "best.keras\ncheckpoints/\n" in shown["folder"]
    assert "continuing after step 378" in shown["longer"]
    assert re.findall(r"^epoch (\d)/8", shown["longer"], re.M) == ["7", "8"]
    assert re.search(r"^saved after step 20; .*\nstopped$", shown["stop"], re.M)
    assert "step 20/63" in shown["stop"]
    assert "continuing after step 20 " in shown["go-on"]
    assert re.findall(r"^epoch (\d)/2", shown["go-on"], re.M) == ["1", "2"]
    assert shown["same"] == "the same bits: True\n"
    plots = [c.id for c in notebook.cells for o in c.get("outputs", []) if "image/png" in str(o)]
    assert plots == ["data", "plot", "predict", "longer"]


def check_from_tf1_towers(notebook):
    shown = texts(notebook)
    assert "32, 32, 5]" in shown["provider"]
    assert re.search(EPOCH.format(10, 10), shown["loop"], re.M)
    assert shown["queue"] == (
        "OSError: the disk with the readings is gone\nthreads left behind: 0\n"
    )
    moved, differs = (float(value) for value in re.findall(r"(\S+)$", shown["by-hand"], re.M))
    assert moved > 0.01
    assert differs < 1e-6
    rows = [line.split() for line in shown["last"].splitlines()[2:]]
    assert [row[0] for row in rows] == ["32", "5", "3", "1"]
    naive, ours = ([float(row[column]) for row in rows] for column in (1, 2))
    assert naive[0] < 1e-5
    assert all(error > 0.05 for error in naive[1:3])
    assert naive[3] == 0.5
    assert all(error < 1e-5 for error in ours)


CHECKS = {"quickstart": check_quickstart, "from_tf1_towers": check_from_tf1_towers}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_it_says(name, tmp_path):
    notebook = read(name)
    CHECKS[name](notebook)  # as it is stored
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    CHECKS[name](tidy(run(notebook, tmp_path)))
    assert not MACHINE_PATH.search("".join(texts(notebook).values()))


def test_a_cell_that_raises_fails(tmp_path):
    cells = [nbformat.v4.new_code_cell("import sys; print(sys.executable)")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    assert run(notebook, tmp_path).cells[0].outputs[0].text.strip() == sys.executable
    cells.append(nbformat.v4.new_code_cell("raise ValueError('on purpose')"))
    (tmp_path / "again").mkdir()
    with pytest.raises(CellExecutionError, match="on purpose"):
        run(nbformat.v4.new_notebook(cells=cells), tmp_path / "again")


def store(names):
    """Runs notebooks and keeps their outputs."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            notebook = tidy(run(read(name), Path(folder)))
        CHECKS[name](notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")


if __name__ == "__main__":
    store(sys.argv[1:] or NAMES)
