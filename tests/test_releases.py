"""`.ci/release` refuses by name what cannot be released, and leaves nothing behind if it fails.

Each test has its own small git repository with the files of a release.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = (".ci/release", "kerasdist/__init__.py", "CITATION.cff", "CHANGELOG.md")
CHANGELOG = """# Changelog

All notable changes to kerasdist. Versions follow
[semantic versioning](https://semver.org). Nothing has been released yet.

## [Unreleased]

### Added

- `fit` trains.

### Fixed

- Nothing #1.
"""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Repository:
    """A git repository in a folder, and the release command in it."""

    def __init__(self, path):
        self.path = path
        # The settings of this machine (hooks, signatures, names) must not change a test.
        left_out = {name for name in os.environ if name.startswith("GIT_")}
        self.environment = {k: v for k, v in os.environ.items() if k not in left_out}
        self.environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_NAME": "Ada", f"GIT_{role}_EMAIL": "ada@example.org"}

    def git(self, *words):
        done = subprocess.run(
            ["git", *words], cwd=self.path, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip()

    def read(self, name):
        return (self.path / name).read_text()

    def commit(self, **files):
        for name, text in files.items():
            (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "A change")

    def package(self, script):
        """Gives the repository a `.ci/package`."""
        file = self.path / ".ci" / "package"
        file.write_text(f"#!/usr/bin/env bash\n{script}\n")
        file.chmod(0o755)
        self.commit()

    def start(self, *words):
        return subprocess.Popen(
            [sys.executable, ".ci/release", *words],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def release(self, *words):
        process = self.start(*words)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def state(self):
        """Everything that a failed release must not change."""
        return (
            {name: self.read(name) for name in FILES},
            self.git("rev-parse", "HEAD"),
            self.git("tag", "--list"),
            self.git("status", "--porcelain"),
        )

    def refused(self, reason, *words):
        before = self.state()
        code, output = self.release(*words)
        assert code == 1
        assert output.startswith("Not released. ")
        assert re.search(reason, output), output
        assert self.state() == before


@pytest.fixture
def repository(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, line in (
        ("kerasdist/__init__.py", '__version__ = "0.1.0"'),
        ("CITATION.cff", "version: 0.1.0"),
    ):
        pattern = f"^{line.split()[0]}.*$"
        text, count = re.subn(pattern, line, (tmp_path / name).read_text(), flags=re.MULTILINE)
        assert count == 1
        (tmp_path / name).write_text(re.sub(r"date-released:.*\n", "", text))
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    made = Repository(tmp_path)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit()
    return made


def test_a_release_sets_the_version_everywhere(repository):
    before = repository.git("rev-parse", "HEAD")
    code, output = repository.release("0.2.0", "--no-package")
    assert code == 0, output
    assert "  git push --atomic origin main v0.2.0\n" in output
    assert '\n__version__ = "0.2.0"\n' in repository.read("kerasdist/__init__.py")
    citation = repository.read("CITATION.cff")
    (date,) = re.findall(r"^version: 0\.2\.0\ndate-released: (\d{4}-\d\d-\d\d)$", citation, re.M)
    expected = CHANGELOG.replace(" Nothing has been released yet.", "").replace(
        "## [Unreleased]\n", f"## [Unreleased]\n\n## [0.2.0] - {date}\n"
    )
    assert repository.read("CHANGELOG.md") == expected
    assert repository.git("log", "-1", "--format=%s") == "Release 0.2.0"
    assert repository.git("rev-parse", "HEAD~1") == before
    changed = repository.git("diff", "--name-only", "HEAD~1").split()
    assert sorted(changed) == ["CHANGELOG.md", "CITATION.cff", "kerasdist/__init__.py"]
    assert repository.git("status", "--porcelain") == ""


def test_the_tag_is_annotated_with_the_section(repository):
    assert repository.release("0.2.0", "--no-package")[0] == 0
    assert repository.git("cat-file", "-t", "v0.2.0") == "tag"
    assert repository.git("rev-parse", "v0.2.0^{commit}") == repository.git("rev-parse", "HEAD")
    message = repository.git("tag", "--list", "--format=%(contents)", "v0.2.0")
    section = "### Added\n\n- `fit` trains.\n\n### Fixed\n\n- Nothing #1."
    assert message.rstrip() == f"Release 0.2.0\n\n{section}"


def test_one_release_after_another(repository):
    # 0.1.0 is in the files already, and is released once.
    assert repository.release("0.1.0", "--no-package")[0] == 0
    first = repository.read("CHANGELOG.md")
    repository.refused(r"The tag v0\.1\.0 exists", "0.1.0", "--no-package")
    repository.refused("is empty", "0.1.1", "--no-package")
    text = first.replace("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n")
    repository.commit(**{"CHANGELOG.md": text})
    assert repository.release("0.10.0", "--no-package")[0] == 0
    titles = re.findall(r"^## \[(.*?)\]", repository.read("CHANGELOG.md"), re.M)
    assert titles == ["Unreleased", "0.10.0", "0.1.0"]
    assert repository.read("CHANGELOG.md").endswith(first.split("## [Unreleased]\n\n")[1])
    assert repository.read("CITATION.cff").count("date-released:") == 1
    message = repository.git("tag", "--list", "--format=%(contents)", "v0.10.0")
    assert message.rstrip() == "Release 0.10.0\n\n- More."
    repository.commit(**{"CHANGELOG.md": text})
    # 0.9.0 is newer than 0.10.0 only as a string.
    repository.refused(r"0\.9\.0 is older than the last release, 0\.10\.0", "0.9.0", "--no-package")


@pytest.mark.parametrize(
    "version", ["1.0", "v1.0.0", "1.0.0rc1", "01.0.0", "1.0.0.0", "1.0.0\n", "٣.0.0", ""]
)
def test_what_is_not_a_version_is_refused(repository, version):
    repository.refused("is not a version", version)


def test_a_version_that_is_older_than_the_package_is_refused(repository):
    repository.refused(r"0\.0\.9 is older than kerasdist's version, 0\.1\.0", "0.0.9")


def test_a_tag_that_exists_is_refused_if_the_files_are_older(repository):
    repository.git("tag", "v0.3.0")
    repository.refused(r"The tag v0\.3\.0 exists", "0.3.0")
    repository.refused(r"0\.2\.0 is older than the last release, 0\.3\.0", "0.2.0")


def test_other_tags_are_no_releases(repository):
    repository.git("tag", "v9-experiment")
    assert repository.release("0.2.0", "--no-package")[0] == 0


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.txt"])
def test_a_tree_with_changes_is_refused(repository, name):
    with (repository.path / name).open("a") as file:
        file.write("- More.\n")
    repository.refused(rf"tree has changes.*\n.*{name}", "0.2.0")


def test_another_branch_is_refused(repository):
    repository.git("switch", "--quiet", "--create", "next")
    repository.refused("branch 'next'", "0.2.0")
    repository.git("switch", "--quiet", "--detach")
    repository.refused("branch 'HEAD'", "0.2.0")


@pytest.mark.parametrize("text", ["", "### Added\n\n### Fixed\n"])
def test_an_empty_section_is_refused(repository, text):
    changelog = f"# Changelog\n\n## [Unreleased]\n\n{text}\n## [0.0.1] - 2026-01-01\n\n- Old.\n"
    repository.commit(**{"CHANGELOG.md": changelog})
    repository.refused("is empty", "0.2.0")


def test_a_changelog_without_the_section_is_refused(repository):
    repository.commit(**{"CHANGELOG.md": "# Changelog\n\n## [0.0.1] - 2026-01-01\n\n- Old.\n"})
    repository.refused("has no line", "0.2.0")


def test_a_file_without_its_version_is_refused(repository):
    repository.commit(**{"CITATION.cff": "title: kerasdist\n"})
    repository.refused("CITATION.cff has 0 lines", "0.2.0", "--no-package")
    repository.commit(**{"kerasdist/__init__.py": "\n"})
    repository.refused("must have one `__version__`", "0.2.0", "--no-package")


def test_the_packages_are_tested_with_the_new_version_before_the_commit(repository):
    repository.package("grep ^__version__ kerasdist/__init__.py; git log -1 --format=%s; git tag")
    code, output = repository.release("0.2.0")
    assert code == 0, output
    assert output.startswith('__version__ = "0.2.0"\nA change\n')


def test_packages_that_fail_stop_the_release(repository):
    repository.package("exit 3")
    repository.refused("`.ci/package` failed with exit code 3", "0.2.0")


def test_a_commit_that_fails_changes_nothing(repository):
    hook = repository.path / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho the hook says no >&2\nexit 1\n")
    hook.chmod(0o755)
    repository.refused("the hook says no", "0.2.0", "--no-package")


def test_a_tag_that_fails_undoes_the_commit(repository):
    # Git takes the tag for one that another process is writing.
    (repository.path / ".git" / "refs" / "tags" / "v0.2.0.lock").touch()
    repository.refused("`git tag --annotate` failed", "0.2.0", "--no-package")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_release_that_is_stopped_changes_nothing(repository, number):
    repository.package("touch .git/started; sleep 60 & echo $! > .git/sleeper; wait")
    before = repository.state()
    process = repository.start("0.2.0")
    end = time.monotonic() + 30
    while not (repository.path / ".git" / "sleeper").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert repository.state() != before  # The new version is in the files.
    process.send_signal(number)
    os.kill(int(repository.read(".git/sleeper")), signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert repository.state() == before


def test_the_real_changelog_can_be_released(repository):
    text = (ROOT / "CHANGELOG.md").read_text()
    text = text.replace("## [Unreleased]\n", "## [Unreleased]\n\n- A last line.\n")
    repository.commit(**{"CHANGELOG.md": text})
    assert repository.release("999.0.0", "--no-package")[0] == 0
    lines = repository.read("CHANGELOG.md").splitlines()
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        line for line in lines if line.startswith("- ")
    ]
    assert "Nothing has been released yet." not in repository.read("CHANGELOG.md")
