"""What mkdocs needs to make the site of this repository; mkdocs.yml names this file.

The pages of docs/ are also read on GitHub, so they link to files of the repository. Here such a
link becomes a link to the page that the site makes of the file, or the file's address on GitHub.
"""

import ast
import base64
import html
import importlib.util
import json
import posixpath
import re
import tomllib
from pathlib import Path

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]

spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
hatch_build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hatch_build)

# Files outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "notebooks/quickstart.ipynb": "notebooks/quickstart.md",
    "notebooks/from_tf1_towers.ipynb": "notebooks/from_tf1_towers.md",
    "recipes/audio/README.md": "recipes/audio.md",
    "recipes/cifar10/README.md": "recipes/cifar10.md",
}
FILES = {page: file for file, page in PAGES.items()}

# The sections of the reference, in the order in which people need them, and their rooms.
SECTIONS = {
    "Train, evaluate and predict": ["training", "model_files"],
    "Find settings": ["finders"],
    "Keras programs, unchanged": ["programs"],
    "Devices": ["devices"],
    "Data": ["data", "tables"],
    "Models and losses": ["models"],
    "Optimizers and schedules": ["models.optimizers"],
    "Recipes": ["recipes"],
    "Errors": ["errors"],
}
# What the signatures name: the kinds of arguments.
KINDS = ["ModelLike", "DataLike", "DeviceLike", "CallbackLike", "PathLike"]
KINDS_MODULE = "kerasdist.training.options"


def on_config(config):
    config.site_url = hatch_build.site(REPOSITORY)
    config.extra["social"] = [
        {"icon": "fontawesome/brands/github", "link": REPOSITORY, "name": "The repository"}
    ]
    return config


def on_files(files, config):
    files.append(File.generated(config, "api.md", content=reference()))
    for file, page in PAGES.items():
        text = (ROOT / file).read_text()
        if file.endswith(".ipynb"):
            text, pictures = from_notebook(json.loads(text), Path(page).stem)
            text += f"\n[The notebook itself]({hatch_build.address(REPOSITORY, 'main', file)})\n"
            for name, content in pictures.items():
                picture = posixpath.join(posixpath.dirname(page), name)
                files.append(File.generated(config, picture, content=content))
        if page == "index.md":  # Its navigation is the tabs alone.
            text = f"---\nhide: [navigation]\n---\n{text}"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    own = page.file.src_uri
    folder = posixpath.dirname(FILES.get(own, f"docs/{own}"))

    def change(target):
        name, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(folder, name))
        if file.startswith("docs/"):
            found = file.removeprefix("docs/")
        elif file in PAGES:
            found = PAGES[file]
        elif (ROOT / file).exists():
            return hatch_build.address(REPOSITORY, "main", file + (f"#{anchor}" if anchor else ""))
        else:
            return target  # A picture of a notebook; mkdocs says if a link leads nowhere.
        found = posixpath.relpath(found, posixpath.dirname(own) or ".")
        return found + (f"#{anchor}" if anchor else "")

    text = before_lists(hatch_build.rewrite(markdown, change))
    # The name of a file is a good text for a link on GitHub. Here pages have names without ".md".
    return re.sub(r"\[(?:[\w.-]+/)*([\w-]+)\.(?:md|ipynb)\]\(", r"[\1](", text)


def before_lists(text):
    """Adds the blank line between a paragraph and a list that GitHub does not need."""
    lines, fence, previous = [], None, ""
    for line in text.splitlines():
        mark = re.match(r"`{3,}|~{3,}", line)
        if mark and fence in (None, mark[0]):
            fence = None if fence else mark[0]
        starts = fence is None and re.match(r"(?:[-*]|1\.) ", line)
        if starts and previous and not re.match(r"[-*\s]|\d+\.", previous):
            lines.append("")
        lines.append(line)
        previous = line
    return "\n".join(lines) + "\n"


class Docstrings(griffe.Extension):
    """What griffe does not know about the docstrings of this package."""

    def on_instance(self, *, obj, **_):
        """The `>>>` lines below "Example:" are code. griffe knows only the plural."""
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = text

    def on_attribute_instance(self, *, attr, **_):
        """A setting has its meaning in its value, `_setting(default, "meaning")`, for `--help`."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and value.canonical_name == "_setting":
            attr.value, meaning = value.arguments[:2]
            text, examples, rest = attr.parent.docstring.value.partition("Examples:\n")
            text = text if "Attributes:\n" in text else f"{text}Attributes:\n\n"
            text = f"{text.rstrip()}\n    {attr.name}: {ast.literal_eval(str(meaning))}.\n\n"
            attr.parent.docstring.value = text + examples + rest


def on_page_content(content, page, config, files):
    """Docstrings name pages as `docs/data.md`: in the reference these are links."""
    if page.file.src_uri != "api.md":
        return content
    return re.sub(r"\bdocs/([\w-]+)\.md\b", r'<a href="\1.html">\1</a>', content)


def reference():
    """A page with every public name. mkdocstrings reads the code without importing it."""
    lines = ["# Python reference", "", "Every public name of kerasdist, as its docstring says it."]
    homes = public_names()
    for title in SECTIONS:
        names = [name for name, module in homes.items() if section(module) == title]
        lines += ["", f"## {title}", ""]
        lines += [line for name in names for line in (f"::: kerasdist.{name}", "")]
    lines += ["## Kinds of arguments", "", "The types that the signatures above name.", ""]
    lines += [line for name in KINDS for line in (f"::: {KINDS_MODULE}.{name}", "")]
    return "\n".join(lines)


def public_names():
    """`{name: module}` of the public names of kerasdist, by the text of its `__init__.py`."""
    found = {}
    for node in ast.parse((ROOT / "kerasdist" / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == "kerasdist.errors":
            found.update((alias.name, "errors") for alias in node.names)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            found.update(ast.literal_eval(node.value))
    return found


def section(module):
    """The section of a module: that of the innermost room which has one."""
    room = module
    while room:
        for title, rooms in SECTIONS.items():
            if room in rooms:
                return title
        room = room.rpartition(".")[0]
    raise PluginError(f"SECTIONS of .ci/site_hooks.py has no room for kerasdist.{module}.")


def from_notebook(notebook, stem):
    """`(markdown, {name: picture})` of a notebook with its outputs."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell]({name})")
            elif text := "".join(data["text/plain"]).strip():
                parts.append(f'<pre class="output">{html.escape(text)}</pre>')
    return "\n\n".join(parts) + "\n", pictures
