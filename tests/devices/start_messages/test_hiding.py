"""TensorFlow's messages: hidden in programs and commands, and shown when something goes wrong."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.devices.start_messages import filter as messages
from tests.cli.conftest import environment

ROOT = str(Path(__file__).resolve().parents[3])
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# What TensorFlow 2.19 and 2.21 write, and what others write meanwhile.
NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "E0000 00:00:1795032811.236715   20128 cuda_dnn.cc:8579] Unable to register cuDNN factory",
    "W0000 00:00:1795032811.415646   20128 computation_placer.cc:177] computation placer already",
    "I0000 00:00:1795032852.219488   20674 port.cc:153] oneDNN custom operations are on.",
    "2026-11-18 20:13:31.164600: E external/local_xla/xla/cuda_fft.cc:467] Unable to register",
    "To enable the following instructions: AVX2 AVX512F, in other operations, rebuild TensorFlow",
)
OTHERS = ("sitecustomize: hello", "F0000 00:00:1795032811.1 20128 a.cc:1] Check failed")
# Stands in for TensorFlow: it writes to file descriptor 2 while it is imported.
PACKAGE = """
import os
os.write(2, {text!r}.encode())
{end}

class config:
    list_physical_devices = staticmethod(list)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program that finds another TensorFlow, and returns what it wrote to stderr."""

    def start(*arguments, end="", code=0, **variables):
        package = tmp_path / "tensorflow"
        package.mkdir(exist_ok=True)
        text = "".join(f"{line}\n" for line in (*NOISE, *OTHERS))
        (package / "__init__.py").write_text(PACKAGE.format(text=text, end=end))
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stderr.splitlines()

    return start


FIRST = ("-c", "import kerasdist, tensorflow; print(tensorflow.__spec__.loader.exec_module)")


def test_a_program_that_imports_kerasdist_first_does_not_see_the_messages(run):
    assert run(*FIRST) == [*OTHERS]


def test_somebody_may_look_for_tensorflow_before_it_is_imported(run):
    look = "import kerasdist, importlib.util as u; assert u.find_spec('tensorflow')"
    imports = "import tensorflow, sys; assert not [f for f in sys.meta_path if 'Quiet' in repr(f)]"
    assert run("-c", f"{look}; {imports}") == [*OTHERS]


def test_a_fatal_error_shows_everything(run):
    assert run(*FIRST, end="os.abort()", code=-6) == [*OTHERS, *NOISE]


def test_an_import_that_fails_shows_everything(run):
    lines = run(*FIRST, end="raise ImportError('broken')", code=1)
    assert lines[: len(NOISE) + len(OTHERS)] == [*OTHERS, *NOISE]
    assert lines[-1] == "ImportError: broken"


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_a_users_own_setting_is_kept_and_shows_them(run, level):
    show = f"import os, kerasdist, tensorflow; assert os.environ['{LEVEL}'] == '{level}'"
    assert run("-c", show, **{LEVEL: level}) == [*NOISE, *OTHERS]


def test_after_tensorflow_nothing_is_changed(run):
    program = f"import os, tensorflow, kerasdist; assert '{LEVEL}' not in os.environ"
    assert run("-c", program) == [*NOISE, *OTHERS]


def test_kerasdist_sets_the_level_and_does_not_import_tensorflow(run):
    program = (
        "import os, sys, kerasdist\n"
        f"assert os.environ['{LEVEL}'] == '3'\n"
        "assert not {'tensorflow', 'keras', 'numpy', 'subprocess'} & set(sys.modules)\n"
    )
    assert run("-c", program) == []


def test_the_package_can_be_missing(run, tmp_path):
    program = (
        "import kerasdist, sys\n"
        "sys.path[:] = [p for p in sys.path if 'kerasdist' in p]\n"
        "try:\n    import tensorflow\nexcept ImportError as error:\n    sys.exit(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "No module named 'tensorflow'\n"


def test_a_command_hides_all_lines_and_shows_them_after_a_fatal_error(run):
    command = ("-m", "kerasdist", "devices")
    lines = run(*command, end="os.abort()", code=-6)
    assert lines == ["kerasdist: starting TensorFlow ...", *NOISE, *OTHERS]
    shown = run(*command, "-v", end="raise ImportError('no')", code=1)
    assert shown[: len(NOISE) + 1] == ["kerasdist: starting TensorFlow ...", *NOISE]


def test_without_standard_error_there_is_nothing_to_hide(run):
    program = (
        "import os\n"
        "from kerasdist.devices.start_messages.hiding import held_back\n"
        "os.close(2)\n"
        "with held_back():\n    print('done')\n"
    )
    assert run("-c", program) == []


def test_the_filter_passes_on_what_is_not_a_message_at_once():
    lines = [f"{line}\n".encode() for line in (*NOISE, *OTHERS)]
    for last, expected in (
        ([messages.PASSED], OTHERS),
        ([messages.FAILED], (*OTHERS, *NOISE)),
        ([], (*OTHERS, *NOISE)),  # The writer died.
    ):
        target = io.BytesIO()
        messages.pass_on(io.BytesIO(b"".join([*lines, *last])), target, everything=False)
        assert target.getvalue().decode().splitlines() == [*expected]
    target = io.BytesIO()
    messages.pass_on(io.BytesIO(b"".join([*lines, messages.PASSED])), target, everything=True)
    assert target.getvalue() == b""


def test_the_real_tensorflow_prints_nothing():
    program = (
        "import kerasdist\n"
        "import tensorflow as tf\n"
        "tf.config.list_logical_devices()\n"
        "tf.function(lambda x: x @ x)(tf.eye(2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
