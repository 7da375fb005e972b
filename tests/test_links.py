"""Links and pictures of the README and the docs lead somewhere, also on the package index."""

import email
import html.parser
import json
import os.path
import re
from pathlib import Path

import hatchling.build
import pytest
import readme_renderer.markdown

import hatch_build
import kerasdist

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = re.search(r'^repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "recipes/*/*.md", "benchmarks/*.md", "notebooks/*.ipynb")
    for path in ROOT.glob(pattern)
)


def title(path):
    return str(path.relative_to(ROOT))


def markdown(path):
    text = path.read_text()
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def anchors(path):
    """The anchors that GitHub gives to the headings of a page."""
    found = []
    text = re.sub(r"^(`{3,}).*?^\1$", "", markdown(path), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.M):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        same = sum(other == slug or other.startswith(f"{slug}-") for other in found)
        found.append(f"{slug}-{same}" if slug in found else slug)
    return found


def links(text):
    """The targets of all links to files or headings in Markdown."""
    headings = re.findall(
        r"\]\((#[^)\s]+)\)", re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S)
    )
    files = []
    hatch_build.rewrite(text, lambda target: files.append(target) or target)
    return headings + files


def check_target(path, target):
    name, _, anchor = target.partition("#")
    file = Path(os.path.normpath(path.parent / name)) if name else path
    assert file.exists(), f"{title(path)} links to {target}, which does not exist"
    assert file.is_relative_to(ROOT), f"{title(path)} links to {target}, outside of the project"
    if anchor:
        assert anchor in anchors(file), (
            f"{title(path)} links to {target}, which has no such heading"
        )


@pytest.mark.parametrize("path", PAGES, ids=title)
def test_links_lead_to_files_and_headings(path):
    for target in links(markdown(path)):
        check_target(path, target)


def test_the_pages_have_links_to_check():
    found = [target for path in PAGES for target in links(markdown(path))]
    assert len(found) > 100
    assert sum(target.endswith(".png") for target in found) >= 4
    assert sum("#" in target for target in found) > 20


@pytest.mark.parametrize("target", ["nothing.md", "#nothing", "data.md#nothing", "../../etc/hosts"])
def test_a_link_that_leads_nowhere_is_found(target):
    with pytest.raises(AssertionError, match=re.escape(target)):
        check_target(ROOT / "docs" / "runs.md", target)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[a](docs/a.md)", "[a](@docs/a.md)"),
        ("[a](docs/a.md#b) and [c](d)", "[a](@docs/a.md#b) and [c](@d)"),
        ("![a](a.png)", "![a](@a.png)"),
        ("[![a](a.png)](b.md)", "[![a](@a.png)](@b.md)"),
        ('<img src="a.png" width="9">', '<img src="@a.png" width="9">'),
        ("[a]: b.md", "[a]: @b.md"),
        ("[a](https://b.c/d.md)", None),
        ("[a](mailto:b@c.d)", None),
        ("[a](#b)", None),
        ("[^a]: b", None),
        ("`[a](b)` and ``[a](`b`)``", None),
        ("```md\n[a](b)\n```", None),
        ("~~~\n```\n[a](b)\n~~~", None),
    ],
)
def test_only_links_to_files_are_rewritten(before, after):
    assert hatch_build.rewrite(before, lambda target: f"@{target}") == (after or before)


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("docs/a.md", "https://github.com/o/p/blob/v1.0.0/docs/a.md"),
        ("docs/a.md#b", "https://github.com/o/p/blob/v1.0.0/docs/a.md#b"),
        ("docs/images/a.PNG", "https://github.com/o/p/raw/v1.0.0/docs/images/a.PNG"),
    ],
)
def test_an_address_is_the_files_at_the_tag_of_the_version(path, address):
    text = hatch_build.description(f"[a]({path})", "https://github.com/o/p", "1.0.0")
    assert text == f"[a]({address})"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """The metadata of the package, as pip and the package index get them."""
    folder = tmp_path_factory.mktemp("metadata")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = hatchling.build.prepare_metadata_for_build_wheel(str(folder))
    return email.message_from_string((folder / name / "METADATA").read_text())


class Targets(html.parser.HTMLParser):
    """Where the links and pictures of a page lead, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.pictures, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "img":
            self.pictures.append(values["src"])
        elif "href" in values:
            self.links.append(values["href"])
        self.anchors |= {values[name] for name in ("id", "name") if name in values}


def test_every_link_and_picture_works_on_the_package_index(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = Targets(readme_renderer.markdown.render(metadata.get_payload()))
    assert len(shown.pictures) >= 1
    for picture in shown.pictures:
        assert picture.startswith(f"{REPOSITORY}/raw/v{kerasdist.__version__}/"), picture
    files = 0
    for target in shown.links + shown.pictures:
        inside = re.fullmatch(f"{REPOSITORY}/(?:blob|raw)/v{kerasdist.__version__}/(.+)", target)
        if inside:
            check_target(ROOT / "README.md", inside[1])
            files += 1
        elif target.startswith("#"):
            # The index's own renderer gives footnotes and their links different names.
            assert target[1:] in shown.anchors or "fn" in target, target
        else:
            assert target.startswith("https://"), target
    assert files > 20


def test_the_description_is_the_readme_but_for_the_targets_of_links(metadata):
    prefix = rf"{REPOSITORY}/(?:blob|raw)/v{re.escape(kerasdist.__version__)}/"
    assert re.sub(prefix, "", metadata.get_payload()) == (ROOT / "README.md").read_text()


def test_the_package_names_the_repository_and_the_site(metadata):
    urls = dict(value.split(", ") for value in metadata.get_all("Project-URL"))
    assert urls.keys() == {"Repository", "Documentation", "Changelog", "Issues"}
    assert urls["Repository"] == REPOSITORY
    owner, name = REPOSITORY.split("/")[-2:]
    assert urls["Documentation"] == f"https://{owner}.github.io/{name}/"
    assert urls["Changelog"].startswith(f"{REPOSITORY}/blob/v{kerasdist.__version__}/")


def test_the_address_of_the_repository_is_in_one_place_only():
    names = ("*.md", "*.py", "*.toml", "*.yml", "*.cff", "docs/*", ".ci/*", ".github/workflows/*")
    files = [path for name in names for path in ROOT.glob(name) if path.is_file()]
    assert len(files) > 40
    found = [path.name for path in files if REPOSITORY in path.read_text(errors="ignore")]
    assert found == ["pyproject.toml"]
