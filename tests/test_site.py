"""The site builds without warnings, needs nothing from elsewhere, and shows every public name."""

import html
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import keras
import pytest
from markdown_it import MarkdownIt

import kerasdist

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = [name for name in kerasdist.__all__ if name != "__version__"]


def build(folder, *options):
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-W", "error", "-m", "mkdocs", "build", "--strict", *options]
    return subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, where its links lead, its anchors and its elements."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors, self.text = [], [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "src" in values:
            self.loads.append(values["src"])
        if "href" in values:
            loads = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload")
            (self.loads if loads else self.links).append(values["href"])
        self.anchors |= {values[name] for name in ("id", "name") if name in values}

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_a_page_of_each_file(site):
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file()
    for name in ("index", "changelog", "notebooks/quickstart", "recipes/cifar10", "api"):
        assert (site / f"{name}.html").is_file()


def test_nothing_is_loaded_from_another_site(site, pages):
    for path, page in pages.items():
        assert page.loads
        for target in page.loads:
            assert not re.match(r"(https?:)?//", target), f"{path.name} loads {target}"
            assert (path.parent / target.partition("?")[0].partition("#")[0]).is_file(), target
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", style.read_text()), style


def test_links_between_pages_lead_to_pages_and_headings(pages):
    count = 0
    for path, page in pages.items():
        for target in page.links:
            name, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            found = (path.parent / name).resolve() if name and name != "." else path
            found = found / "index.html" if found.is_dir() else found
            assert found.is_file(), f"{path.name} links to {target}"
            if anchor and found in pages:
                assert anchor in pages[found].anchors, f"{path.name} links to {target}"
            count += 1
    assert count > 1000


def test_links_to_the_code_lead_to_files(pages):
    text = (ROOT / "pyproject.toml").read_text()
    repository = re.search(r'^repository = "(.*)"$', text, re.M)[1]
    found = 0
    for path, page in pages.items():
        for target in page.links:
            inside = re.fullmatch(rf"{repository}/(?:blob|raw)/main/([^#]+)(#.*)?", target)
            if inside:
                assert (ROOT / inside[1]).exists(), f"{path.name} links to {target}"
                found += 1
    assert found >= 3


def section(site, anchor):
    """The text of the reference below an anchor, without spaces and quotes."""
    text = (site / "api.html").read_text().partition(f'id="{anchor}"')[2]
    text = re.sub(r"<[^>]+>|[\s'\"]", "", re.sub(r"<span[^>]*></span>", "", text[:60000]))
    return html.unescape(text).replace('"', "").replace("'", "")


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_shows_a_name_with_its_types_and_its_example(name, site, pages):
    (page,) = (page for path, page in pages.items() if path.name == "api.html")
    assert f"kerasdist.{name}" in page.anchors
    shown = " ".join("".join(page.text).split())
    public = getattr(kerasdist, name)
    first = " ".join(inspect.getdoc(public).split("\n\n")[0].split()).replace("`", "")
    assert html.unescape(first) in shown
    if not (isinstance(public, type) and issubclass(public, (Exception, keras.Model))):
        parameters = inspect.signature(public).parameters.values()
        signature = section(site, f"kerasdist.{name}")
        for parameter in parameters:
            kind = re.sub(r"['\"]", "", f"{parameter.annotation}").removeprefix("t.")
            written = f"{parameter.name}: {kind}" if parameter.annotation != parameter.empty else ""
            assert written.replace(" ", "") in signature, parameter
    # The first line of the example is code, with its prompt.
    example = re.search(r"^ *>>> (.*)$", inspect.getdoc(public), re.M)
    if name != "DivergedError":  # That one has no example: a step must diverge for it.
        assert f">>> {' '.join(example[1].split())}" in shown


def test_the_reference_links_to_types_and_pages(pages):
    (page,) = (page for path, page in pages.items() if path.name == "api.html")
    assert "#kerasdist.training.options.DataLike" in page.links
    assert "data.html" in page.links
    assert "docs/data.md" not in "".join(page.text)


def test_notebooks_have_their_outputs(site, pages):
    for name in ("quickstart", "from_tf1_towers"):
        notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())
        outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", [])]
        pictures = sum("image/png" in output.get("data", {}) for output in outputs)
        page = pages[site / "notebooks" / f"{name}.html"]
        assert sum(name in target for target in page.loads) == pictures
        printed = next(o["text"] for o in outputs if o["output_type"] == "stream")
        assert printed[0].strip() in "".join(page.text)


# Elements that GitHub's Markdown and the site's must agree about.
ELEMENTS = ("table", "tr", "li", "pre", "h2", "h3", "img", "strong")


# Files outside of docs/, and their pages. Those of docs/ keep their names.
OUTSIDE = {
    "README.md": "index",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "benchmarks/RESULTS.md": "benchmarks",
    "recipes/audio/README.md": "recipes/audio",
    "recipes/cifar10/README.md": "recipes/cifar10",
}
SOURCES = {f"docs/{path.name}": path.stem for path in sorted((ROOT / "docs").glob("*.md"))}


@pytest.mark.parametrize("source", [*OUTSIDE, *SOURCES])
def test_a_page_has_the_same_parts_as_on_github(source, site):
    """The two read Markdown differently, for example a list right below a paragraph."""
    text = re.sub(r"^\[\^\w+\]: .*(\n {4}.*)*", "", (ROOT / source).read_text(), flags=re.M)
    github = MarkdownIt("commonmark").enable("table").render(text)
    built = (site / f"{(OUTSIDE | SOURCES)[source]}.html").read_text()
    built = re.search(r"<article.*?>(.*)</article>", built, re.S)[1]
    built = re.sub(r'<div class="footnote">.*?</ol>\s*</div>|<nav.*?</nav>', "", built, flags=re.S)
    for element in ELEMENTS:
        counts = [len(re.findall(rf"<{element}[\s>/]", page)) for page in (github, built)]
        assert counts[0] == counts[1], f"{element}: {counts[0]} on GitHub, {counts[1]} on the site"
