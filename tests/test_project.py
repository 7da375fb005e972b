"""The files around the package agree with each other: settings, CI, the sdist, the version."""

import itertools
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import kerasdist

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def included():
    return PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_the_files_of_the_sdist_exist():
    for name in included():
        assert (ROOT / name.strip("/")).exists(), name


def test_the_sdist_holds_every_file_of_the_project():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone: git says which files belong to the project")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = {f"/{name.split('/')[0]}" for name in listed.stdout.splitlines()}
    assert tracked - {"/pyproject.toml"} <= set(included())  # pyproject.toml is always there.


def test_ci_runs_the_script_that_contributors_run():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"run: (.*)", workflow) == ["bash .ci/run"]
    assert 'python-version: "3.11"' in workflow


def test_a_tag_is_tested_before_it_is_published():
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.findall(r"on:\n  push:\n    tags: (.*)\n", workflow) == ['["v*"]']
    tested, published = workflow.split("  publish:\n")
    commands = re.findall(r"run: (.*)", tested)
    assert commands[:2] == ["bash .ci/run", "bash .ci/package --keep dist"]
    assert "${GITHUB_REF_NAME#v}" in commands[2]  # The tag is the version of the package.
    # The last version is the one that `python3` starts. `.ci/package` tests on both by default.
    assert re.findall(r"^            (3\.\d+)$", tested, re.M) == ["3.13", "3.11"]
    assert "versions=(3.11 3.13)" in (ROOT / ".ci" / "package").read_text()
    assert "          name: packages\n          path: dist\n" in tested
    assert published.startswith("    needs: packages\n")
    assert "          name: packages\n          path: dist\n" in published
    # Only the job that publishes may ask for a token, and it runs nothing of the repository.
    assert "id-token" not in tested
    assert "run:" not in published
    assert "checkout" not in published


def test_the_site_is_built_before_it_is_published():
    workflow = (ROOT / ".github" / "workflows" / "site.yml").read_text()
    assert re.findall(r"on:\n  push:\n    branches: (.*)\n", workflow) == ["[main]"]
    built, published = workflow.split("  publish:\n")
    assert re.findall(r"run: (bash .*)", built) == ["bash .ci/site site"]
    assert "path: site\n" in built
    assert published.startswith("    needs: build\n")
    # Only the job that publishes may write, and it runs nothing of the repository.
    assert ": write" not in built
    assert "run:" not in published
    assert "checkout" not in published


@pytest.mark.parametrize("name", ["release", "site"])
def test_what_is_published_links_to_the_repository_that_publishes_it(name):
    workflow = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    (check,) = re.findall(r"run: (grep .*)", workflow)
    repository = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    server, owner, project = repository.rsplit("/", 2)
    for place, code in ((f"{owner}/{project}", 0), (f"someone/{project}", 1)):
        address = {"GITHUB_SERVER_URL": server, "GITHUB_REPOSITORY": place}
        done = subprocess.run(["bash", "-c", check], cwd=ROOT, env={**os.environ, **address})
        assert done.returncode == code, place


@pytest.mark.parametrize("name", ["ci", "gpu", "release", "site"])
def test_workflows_may_only_read(name):
    workflow = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    assert "\npermissions:\n  contents: read\njobs:" in re.sub(
        r"concurrency:\n(  .*\n)+", "", workflow
    )
    may_write = {"      id-token"} | ({"      pages"} if name == "site" else set())
    assert set(re.findall(r"(.*): write", workflow)) <= may_write
    assert workflow.count("timeout-minutes:") == workflow.count("runs-on:")
    for script in re.findall(r"bash (\.ci/[\w-]+)", workflow):
        assert (ROOT / script).is_file()


def test_every_workflow_has_a_test():
    found = {path.stem for path in (ROOT / ".github" / "workflows").iterdir()}
    assert found == {"canary", "ci", "gpu", "release", "site"}


@pytest.mark.parametrize("script", ["run", "full"])
def test_the_commands_of_a_script_are_in_contributing(script):
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert f"`bash .ci/{script}`" in guide
    lines = (ROOT / ".ci" / script).read_text().splitlines()
    commands = [line for line in lines if re.search(r"pytest|harness|^ruff|^mypy", line)]
    assert len(commands) >= 3
    for command in commands:
        assert f"`{command.removesuffix(' || exit 1').removesuffix(' .')}`" in guide


@pytest.mark.parametrize("script", ["matrix", "package", "release", "site"])
def test_a_script_is_in_contributing(script):
    assert f".ci/{script}" in (ROOT / "CONTRIBUTING.md").read_text()
    assert os.access(ROOT / ".ci" / script, os.X_OK)


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {kerasdist.__version__}\n" in citation


def test_hooks_call_the_tools_of_the_environment():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", hooks) == ["local"]
    assert set(re.findall(r"language: (.*)", hooks)) == {"system"}


def test_warnings_are_errors_and_every_excuse_has_a_reason():
    filters = PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"]
    assert filters[0] == "error"
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if line.strip().startswith('"ignore:'):
            assert before.strip().startswith("#"), line


def test_tfds_is_an_extra_which_the_tests_have():
    """With TFDS, pip changes packages of Colab. kerasdist alone must change none of them."""
    project = PROJECT["project"]
    extra = project["optional-dependencies"]["tfds"]
    assert any(name.startswith("tensorflow-datasets") for name in extra)
    assert set(extra) <= set(project["optional-dependencies"]["test"])
    assert not set(extra) & set(project["dependencies"])
    assert not any(name.startswith("tensorflow-datasets") for name in project["dependencies"])


def test_the_tests_have_what_the_site_needs():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras["docs"]) <= set(extras["test"])
    assert not set(extras["docs"]) & set(PROJECT["project"]["dependencies"])


def test_the_second_tier_lists_tests_that_exist():
    lines = (ROOT / "tests" / "second_tier.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed == list(dict.fromkeys(listed))
    for line in listed:
        path, _, name = line.partition("::")
        function = re.match(r"\w+", name)[0]
        assert f"def {function}(" in (ROOT / "tests" / path).read_text(), line
