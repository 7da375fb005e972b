"""The package's long description: README.md, with links that also work outside of the repository.

On GitHub, README.md links to files beside it. The package index has only its text, so there each
such link becomes the address of the file in the repository, at the tag of the version. The address
of the repository is one setting: `repository` in pyproject.toml. hatchling uses this file when it
builds the package, and `.ci/site_hooks.py` when it builds the site.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = "README.md"
PICTURES = {".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp"}
# A link, or code, in which nothing is a link. Code comes first, so that it wins.
LINK_OR_CODE = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,}).*?^[ ]{0,3}(?P=fence)[ ]*$"
    r"|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|(?P<before>\]\(|^\[(?!\^)[^\]]+\]:[ ]+|\b(?:href|src|srcset)=\")(?P<target>[^)\s\"<]+)",
    re.MULTILINE | re.DOTALL,
)


def rewrite(text, change):
    """Markdown with `change(target)` in the place of every link's target to a file.

    Links to other sites and to headings of the same page stay as they are.
    """

    def replace(match):
        target = match["target"]
        if not target or target.startswith("#") or re.match(r"[a-z]+:", target):
            return match[0]
        return match["before"] + change(target)

    return LINK_OR_CODE.sub(replace, text)


def address(repository, ref, path):
    """Where GitHub shows a file of the repository. Pictures are served as they are."""
    name, _, anchor = path.partition("#")
    kind = "raw" if Path(name).suffix.lower() in PICTURES else "blob"
    return f"{repository}/{kind}/{ref}/{name}" + (f"#{anchor}" if anchor else "")


def description(text, repository, version):
    """README.md for the package index."""
    return rewrite(text, lambda target: address(repository, f"v{version}", target))


def site(repository):
    """Where GitHub publishes the pages of a repository."""
    owner, name = repository.removeprefix("https://github.com/").split("/")
    return f"https://{owner}.github.io/{name}/"


def urls(repository, version):
    """The links beside the description."""
    return {
        "Repository": repository,
        "Documentation": site(repository),
        "Changelog": address(repository, f"v{version}", "CHANGELOG.md"),
        "Issues": f"{repository}/issues",
    }


class Description(MetadataHookInterface):
    """Adds the description and the links to the metadata of the package."""

    def update(self, metadata):
        repository, version = self.config["repository"], metadata["version"]
        text = (Path(self.root) / README).read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(text, repository, version),
        }
        metadata["urls"] = urls(repository, version)
