"""What the site of the documentation needs besides its pages; mkdocs.yml names this file.

The pages of the top folder (README and its neighbours) become pages of the site, with their links turned to where
things are there. A link to a file of the code becomes plain text, since the code is not part of the site. Examples in
docstrings, which are doctests, become blocks of code.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

TOP = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the top folder, and what they are called on the site."""
EXAMPLES = "examples/"
STYLE = "style.css"
_SHAPE = """
.wy-nav-content { max-width: 1000px; }
.wy-table-responsive table td, .wy-table-responsive table th { white-space: normal !important; }
.rst-content div.highlight { border: 0; padding: 0; }
"""
"""What the theme does otherwise: narrow pages, tables to scroll sideways, code in two boxes."""

_LINK = re.compile(r"(?<!!)\[([^]\[]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_DOCTEST = re.compile(r"(?:^>>> .*\n(?:.+\n)*)+", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the top folder, the examples that pages link to, and the colours and shapes."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=_turned(TOP / source)))
    for path in sorted((TOP / EXAMPLES).iterdir()):
        files.append(File.generated(config, EXAMPLES + path.name, abs_src_path=str(path)))
    files.append(File.generated(config, STYLE, content=HtmlFormatter().get_style_defs(".highlight") + _SHAPE))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turns links that lead out of docs/."""
    if page.file.generated_by:  # A page of the top folder, whose links have been turned.
        return markdown
    return _LINK.sub(lambda link: _on_site(link, TOP / "docs" / page.file.src_uri), markdown)


def _turned(path: Path) -> str:
    return _LINK.sub(lambda link: _on_site(link, path), path.read_text(encoding="utf-8"))


def _on_site(link: re.Match[str], source: Path) -> str:
    """A link of a page as it is on the site. What leads nowhere is left for the strict build to find."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if "://" in target:
        return link[0]
    here = source.relative_to(TOP).as_posix()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    found = PAGES.get(path, path.removeprefix("docs/"))
    if path in PAGES or path.startswith(("docs/", EXAMPLES)):
        start = posixpath.dirname(PAGES.get(here, here.removeprefix("docs/")))
        return f"[{text}]({posixpath.relpath(found, start or '.')}{anchor})"
    return text if (TOP / path).exists() else link[0]


class Doctests(Extension):
    """Puts the examples of docstrings into blocks of code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>```\n", obj.docstring.value + "\n").rstrip()
