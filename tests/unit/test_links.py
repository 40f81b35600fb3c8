"""Every link of the documentation leads to a file that is there, and to a heading that is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("lab/*.md"), *(TOP / "docs").rglob("*.md")])

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def links(text: str) -> list[str]:
    """Where the links and pictures of a page lead, but for other hosts."""
    bare = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))
    return [link for link in _LINK.findall(bare) if "://" not in link and not link.startswith("mailto:")]


def anchors(text: str) -> set[str]:
    """The names that GitHub and the site give to the headings of a page; a repeated one gets a number there."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{n}" if n else name for name, last in found.items() for n in range(last + 1)}


def faults(page: Path, text: str) -> Iterator[str]:
    for link in links(text):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.is_relative_to(TOP) or not path.exists():
            yield f"{link}: there is no such file"
        elif anchor:
            there = text if path == page else path.read_text(encoding="utf-8")
            if path.suffix != ".md" or anchor not in anchors(there):
                yield f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(TOP).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(faults(page, page.read_text(encoding="utf-8"))) == []


def test_there_are_links_to_check() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= {page.name for page in PAGES}
    assert sum(len(links(page.read_text(encoding="utf-8"))) for page in PAGES) > 200


@pytest.mark.parametrize(
    "wrong", ["[a](docs/nowhere.md)", "[a](docs/guarantees.md#nowhere)", "[a](#nowhere)", "![a](x.svg)"]
)
def test_a_dead_link_is_noticed(wrong: str) -> None:
    assert len(list(faults(TOP / "README.md", f"# tidings\n\n{wrong}\n"))) == 1


def test_a_link_in_code_is_none() -> None:
    assert links("`[a](b.md)`\n\n```\n[a](c.md)\n```\n\n[a](d.md)\n") == ["d.md"]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (TOP / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"- ([\w/-]+\.md)$", navigation, re.MULTILINE)
    docs = TOP / "docs"
    records = set((docs / "decisions").glob("[0-9]*.md"))
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if path not in records}
    assert pages <= set(listed), "add the page to nav in mkdocs.yml"
    assert len(listed) == len(set(listed))
